//! Grammars are tried in processes of their own before the router compiles them.
//!
//! A grammar comes from a client, and no limit of llguidance bounds the time and the memory that compiling it
//! takes. A thread that compiles cannot be stopped; a process can. A worker process (the binary itself, see
//! [`WorkerCommand`]) compiles a grammar under limits that the operating system enforces, and answers whether
//! it fits. A worker that exceeds a limit dies, and another takes its place. The router compiles only what has
//! fitted, which then costs it the same.
//!
//! | file | its job |
//! |---|---|
//! | `mod` | the messages and the limits, which both sides share |
//! | `process` | the worker's side: limits, and one grammar after another |
//! | `pool` | the router's side: workers that are started, used and killed |

mod pool;
mod process;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{Grammar, GrammarError};

pub use process::run;

pub(super) use pool::Pool;

/// CPU time that a grammar may take to be compiled.
pub(super) const CPU_TIME: Duration = Duration::from_secs(2);
/// Time that a grammar may take, however busy the machine is.
pub(super) const WALL_TIME: Duration = Duration::from_secs(10);
/// Address space that a grammar may take besides what the worker has before it, in bytes.
const MEMORY: u64 = 256 << 20;

/// The largest message: the vocabulary is the largest of them.
const LONGEST_MESSAGE: usize = 256 << 20;
/// The largest answer, in bytes.
const LONGEST_ANSWER: usize = 64 << 10;

/// How a worker is started: a program that calls [`run`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerCommand {
    /// The program.
    pub program: PathBuf,
    /// Its arguments.
    pub args: Vec<OsString>,
}

/// A grammar to be tried. It follows the vocabulary, which is the first message; every message is preceded by its
/// length in bytes, a u32 in little-endian order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Job<G> {
    /// The grammar.
    pub(super) grammar: G,
    /// Tokens of the model.
    pub(super) vocab_size: u32,
}

/// What a worker says: once when it is ready, and then to each grammar.
#[derive(Debug, Serialize, Deserialize)]
struct Answer {
    verdict: Verdict,
    /// Whether the worker holds more memory than it should, and is to be replaced.
    is_worn: bool,
}

/// What a grammar came to.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// It can be compiled within the limits.
    Fits,
    /// [`GrammarError::Invalid`].
    Invalid(String),
    /// [`GrammarError::TooComplex`].
    TooComplex(String),
}

impl From<Result<(), GrammarError>> for Verdict {
    fn from(result: Result<(), GrammarError>) -> Self {
        match result {
            Ok(()) => Verdict::Fits,
            Err(GrammarError::TooComplex(why)) => Verdict::TooComplex(why),
            Err(GrammarError::Invalid(why)) => Verdict::Invalid(why),
            Err(error @ (GrammarError::Unsupported(_) | GrammarError::Busy)) => {
                Verdict::Invalid(error.to_string())
            }
        }
    }
}

/// The message that asks for a grammar to be tried; it also identifies the grammar.
pub(super) fn job_bytes(grammar: &Grammar, vocab_size: u32) -> Vec<u8> {
    // A value with texts for keys can always be written as JSON.
    serde_json::to_vec(&Job { grammar, vocab_size }).unwrap_or_default()
}
