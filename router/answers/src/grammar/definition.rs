//! The grammars that requests ask for.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The maximum count of one repetition: characters of a string, items of a list, `{n}` in an
/// expression.
pub(super) const MAX_REPETITIONS: u32 = 10_000;

/// A language of texts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Grammar {
    /// JSON that follows this schema.
    Json(Value),
    /// Texts that this regular expression matches as a whole, in the syntax of Rust's `regex`.
    Regex(String),
    /// Texts of this language, in llguidance's variant of Lark.
    Lark(String),
    /// Tool calls: Lark rules and additional rules, each of which is JSON that follows a schema.
    Calls {
        /// The server's own rules.
        rules: String,
        /// The names of the additional rules, and clients' schemas. Keywords that a grammar cannot
        /// enforce are left out, because the model has seen them in the prompt.
        schemas: Vec<(String, Value)>,
        /// The rule `answer`, if the rules refer to it: JSON that follows a client's schema.
        answer: Option<Value>,
    },
    /// A text of another grammar after the model's reasoning.
    AfterReasoning {
        /// The server's own rules, in which `@answer` stands for the other grammar.
        rules: String,
        /// The grammar of the answer, which is not of this kind itself.
        answer: Box<Grammar>,
    },
}

/// A grammar that a request asks for.
#[derive(Debug, Clone, PartialEq)]
pub struct RequestedGrammar {
    /// The language of the answer.
    pub grammar: Grammar,
    /// The field of the request that asks for the grammar.
    pub field: &'static str,
    /// Whether the request is served without the grammar if the server does not support grammars.
    pub optional: bool,
}
