//! The tools that a request allows.

use serde_json::Value;

/// A function that the model may call.
#[derive(Debug, Clone, PartialEq)]
pub struct Tool {
    /// The name of the function.
    pub name: String,
    /// The JSON schema of its arguments.
    pub parameters: Value,
}

/// Whether the model must call a tool.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ToolChoice {
    /// The model decides whether it calls tools.
    Auto,
    /// The model calls at least one tool.
    Required,
    /// The model calls the tool with this name.
    Named(String),
}

/// The tools of a request, and how the model may use them.
#[derive(Debug, Clone, PartialEq)]
pub struct AllowedTools {
    /// The tools. The list is not empty, and the names differ.
    pub tools: Vec<Tool>,
    /// Whether the model must call a tool.
    pub choice: ToolChoice,
    /// Whether an answer may have several calls.
    pub parallel: bool,
}

impl AllowedTools {
    /// Returns the tools that the choice permits.
    pub fn callable(&self) -> impl Iterator<Item = &Tool> {
        self.tools.iter().filter(|tool| match &self.choice {
            ToolChoice::Named(name) => tool.name == *name,
            ToolChoice::Auto | ToolChoice::Required => true,
        })
    }
}
