//! Structured output: grammars that restrict the text which a model generates.
//!
//! llguidance compiles a client's JSON schema, regular expression or Lark grammar into a parser
//! over the model's vocabulary. For each request, a [`GrammarMatcher`] advances this parser token
//! by token beside the engine (see [`Constraint`](crate::Constraint)). Shards receive sets of
//! allowed token ids and never see text.
//!
//! | file | its job |
//! |---|---|
//! | `definition`, `error` | the grammars of requests, and why a grammar is refused |
//! | `bounds` | refuses grammars that are too large, before anything is compiled |
//! | `limits` | limits that several modules apply |
//! | `schema` | converts a client's JSON schema to one that llguidance compiles |
//! | `gbnf` | translates grammars of llama.cpp and vLLM to Lark |
//! | `mark_tokens` | the special tokens of a model in the server's own rules |
//! | `vocabulary` | the model's tokens in llguidance's form |
//! | `compiler` | schedules compilation: few grammars at a time, each grammar once |
//! | `worker` | processes that try grammars under limits of time and memory |
//! | `factory` | compiles one grammar on the current thread |
//! | `compiled` | a compiled grammar, which any number of requests can use |
//! | `cache` | compiled grammars and refusals that are remembered |
//! | `matcher` | the state of one request in its grammar |
//! | `repeated_keys` | excludes keys that an object has already |
//! | `parser_memory` | bounds on the memory of all requests' parsers |
//! | `llguidance_support` | masks, panics and error texts of llguidance |
//! | `metrics` | this module's metrics |

mod bounds;
mod cache;
mod compiled;
mod compiler;
mod definition;
mod error;
mod factory;
mod gbnf;
mod llguidance_support;
mod mark_tokens;
mod matcher;
mod metrics;
mod parser_memory;
mod repeated_keys;
mod schema;
mod vocabulary;
pub mod worker;

#[cfg(test)]
mod tests;

#[cfg(any(test, feature = "fuzz"))]
pub use bounds::is_within_bounds;
pub use compiled::CompiledGrammar;
pub use compiler::GrammarCompiler;
pub use definition::{Grammar, RequestedGrammar};
pub use error::GrammarError;
pub use gbnf::{is_gbnf, to_lark};
pub use mark_tokens::MarkTokens;
pub(crate) use mark_tokens::escape;
pub use matcher::GrammarMatcher;
pub use schema::{UnenforcedKeywords, with_plain_references};
pub use worker::GrammarWorkerCommand;
