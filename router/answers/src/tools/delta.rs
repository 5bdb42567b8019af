//! The additions that a piece of an answer brings.

/// The content and the parts of calls that a piece of text adds.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AnswerDelta {
    /// Text with which the model reasons before it answers.
    pub reasoning: String,
    /// Text of the answer that is not part of a call.
    pub content: String,
    /// Parts of calls, in the order of the calls, with at most one part of each call.
    pub calls: Vec<CallDelta>,
}

/// A part of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallDelta {
    /// The index of the call in the answer.
    pub index: usize,
    /// The name of the tool, only in the first part of a call.
    pub name: Option<String>,
    /// The next characters of the call's arguments.
    pub arguments: String,
}

impl AnswerDelta {
    /// Whether nothing was added.
    pub fn is_empty(&self) -> bool {
        self.reasoning.is_empty() && self.content.is_empty() && self.calls.is_empty()
    }

    /// Appends a later delta.
    pub fn extend(&mut self, later: AnswerDelta) {
        self.reasoning += &later.reasoning;
        self.content += &later.content;
        for call in later.calls {
            self.call(call.index, call.name, &call.arguments);
        }
    }

    /// Appends the next part of a call.
    pub(super) fn call(&mut self, index: usize, name: Option<String>, arguments: &str) {
        match self.calls.last_mut() {
            Some(last) if last.index == index => last.arguments += arguments,
            _ => self.calls.push(CallDelta { index, name, arguments: arguments.to_owned() }),
        }
    }
}
