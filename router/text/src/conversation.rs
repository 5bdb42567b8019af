//! The input of a chat template.

use serde::Serialize;

/// The variables that a chat template receives.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Conversation {
    /// The messages in the client's form. The text of each message is one string.
    pub messages: Vec<serde_json::Value>,
    /// The tools in the client's form.
    pub tools: Option<Vec<serde_json::Value>>,
    /// The documents in the client's form.
    pub documents: Option<Vec<serde_json::Value>>,
    /// Further variables of the template, such as `enable_thinking`. They cannot replace the usual
    /// variables.
    pub more: serde_json::Map<String, serde_json::Value>,
    /// Whether the prompt ends with the beginning of the assistant's turn.
    pub add_generation_prompt: bool,
}
