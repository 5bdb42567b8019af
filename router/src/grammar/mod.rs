//! Structured output: what may be generated, as a grammar of text.
//!
//! A client's JSON schema, regular expression or Lark grammar is compiled by llguidance into a parser over the model's
//! vocabulary. The parser is followed token by token beside the engine ([`Constraint`](crate::engine::Constraint)); the
//! shards see sets of token ids and no text.
//!
//! | file | its job |
//! |---|---|
//! | `bounds` | refuses what is too large, before anything is compiled |
//! | `expression` | bounds on regular expressions |
//! | `lark` | bounds on Lark grammars, and on the schemas and expressions in them |
//! | `intersections` | bounds on expressions for the same text |
//! | `schema` | from a client's JSON schema to one that llguidance compiles |
//! | `vocabulary` | the model's tokens as llguidance takes them |
//! | `compiler` | from a grammar to a parser: few at a time, fairly, each grammar once |
//! | `worker` | processes in which grammars are tried under limits of time and memory |
//! | `parser` | compiles one grammar on this thread |
//! | `cache` | parsers and refusals that are remembered |
//! | `walk` | one request's way through a grammar |
//! | `meter` | what this module tells `/metrics` |

mod bounds;
mod cache;
mod compiler;
mod expression;
mod intersections;
mod lark;
mod meter;
mod parser;
mod schema;
mod vocabulary;
mod walk;
pub mod worker;

#[cfg(test)]
mod tests;

use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use compiler::Compiler;
pub use parser::Compiled;
pub use schema::Unenforced;
pub use walk::Walk;
pub use worker::WorkerCommand;

/// What a text must be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Grammar {
    /// JSON that this schema describes.
    Json(Value),
    /// A text that this regular expression matches as a whole, in the syntax of Rust's `regex`.
    Regex(String),
    /// A text of this language, in llguidance's variant of Lark.
    Lark(String),
    /// Calls of tools: rules in Lark, and rules that are added to them, each the JSON that a schema describes.
    Calls {
        /// The server's own rules.
        rules: String,
        /// Names of rules, and a client's schemas. Keywords that a grammar cannot follow are left out: the model has been shown
        /// them.
        schemas: Vec<(String, Value)>,
        /// The rule `answer`, if the rules name it: JSON that a client's schema describes.
        answer: Option<Value>,
    },
}

/// Whether a grammar is small enough to be compiled. The compiler checks the same first; the cost
/// fuzzer measures the check alone.
#[cfg(any(test, feature = "fuzz"))]
pub(crate) fn within_bounds(grammar: &Grammar) -> bool {
    bounds::check(grammar).is_ok()
}

/// What an answer must be.
#[derive(Debug, Clone, PartialEq)]
pub struct Wanted {
    /// The language of the answer.
    pub grammar: Grammar,
    /// The field of the request that asks for it.
    pub field: &'static str,
    /// Whether an answer without it is an answer, if the server has no grammars.
    pub optional: bool,
}

/// Why a grammar cannot be followed. The texts are fit for a client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// The server does not serve grammars, or not for this model.
    #[error("grammar is not supported{0}")]
    Unsupported(&'static str),
    /// It is none.
    #[error("grammar is not valid: {0}")]
    Invalid(String),
    /// It is more than the server will work for.
    #[error("grammar is too complex: {0}")]
    TooComplex(String),
    /// Others are being compiled, and it was not its turn in time.
    #[error("too many grammars are being compiled")]
    Busy,
}
