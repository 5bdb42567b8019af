//! Worker processes that try grammars before the router compiles them.
//!
//! A grammar comes from a client, and no limit of llguidance bounds the time and the memory that
//! compiling it takes. A thread that compiles cannot be stopped, but a process can. A worker
//! process runs the server's own binary (see [`GrammarWorkerCommand`]). It compiles a grammar under
//! limits that the operating system enforces and reports whether the grammar fits. A worker that
//! exceeds a limit dies, and another worker replaces it. The router compiles only grammars that a
//! worker has compiled within the limits, which costs the router about the same.
//!
//! | file | its job |
//! |---|---|
//! | `protocol` | the messages and the limits, which both sides share |
//! | `process` | the worker's side: applies the limits and compiles one grammar after another |
//! | `pool` | the router's side: starts, uses and kills workers |

mod pool;
mod process;
mod protocol;

pub use pool::GrammarWorkerCommand;
pub use process::run;

pub(super) use pool::{TrialError, WorkerPool};
pub(super) use protocol::job_bytes;
