//! Tools: what a model may call, how it writes a call, and how what it wrote is read.
//!
//! | file | its job |
//! |---|---|
//! | `format` | how models write calls, and which of these a model does |
//! | `language` | the grammar of answers that call tools |
//! | `delta` | what reading more of an answer brings |
//! | `held` | the end of a text that may become a call |
//! | `parser` | from the text of an answer to its calls, as it comes |
//! | `scan` | the JSON of one call, as it comes |
//! | `tags` | the same for a call in tags, which becomes JSON |
//! | `text_argument` | the text in a call of a tool that takes a text |
//! | `shown` | tools and calls as text, where a template has no place for them |

mod delta;
mod format;
mod held;
mod language;
mod parser;
mod scan;
mod shown;
mod tags;
mod text_argument;

use serde_json::Value;

pub use delta::{CallDelta, Delta};
pub use format::{Format, UnknownFormat};
pub use language::grammar;
pub use parser::Parser;
pub use shown::{show_calls, show_tools};
pub use text_argument::TextArgument;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// What it is called by.
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// Whether the model calls tools.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Choice {
    /// If it wants to.
    Auto,
    /// At least one.
    Required,
    /// This one.
    Named(String),
}

/// What a request allows.
#[derive(Debug, Clone, PartialEq)]
pub struct Tools {
    /// Not empty; their names differ.
    pub tools: Vec<Tool>,
    /// Whether they are called.
    pub choice: Choice,
    /// Whether there may be several calls in an answer.
    pub parallel: bool,
}

impl Tools {
    /// The tools that this choice leaves.
    pub(crate) fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| match &self.choice {
            Choice::Named(name) => tool.name == *name,
            Choice::Auto | Choice::Required => true,
        })
    }
}
