//! What reading more of an answer brings.

/// What a piece of text has brought.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Delta {
    /// Text for people.
    pub content: String,
    /// Parts of calls, in the order of the calls; one part of each at most.
    pub calls: Vec<CallDelta>,
}

/// A part of a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallDelta {
    /// Which call of the answer.
    pub index: usize,
    /// Its tool; in its first part only.
    pub name: Option<String>,
    /// The next characters of its arguments.
    pub arguments: String,
}

impl Delta {
    /// Whether nothing has come.
    pub fn is_empty(&self) -> bool {
        self.content.is_empty() && self.calls.is_empty()
    }

    /// Adds what came later.
    pub fn extend(&mut self, later: Delta) {
        self.content += &later.content;
        for call in later.calls {
            self.call(call.index, call.name, &call.arguments);
        }
    }

    /// Adds the next part of a call.
    pub(super) fn call(&mut self, index: usize, name: Option<String>, arguments: &str) {
        match self.calls.last_mut() {
            Some(last) if last.index == index => last.arguments += arguments,
            _ => self.calls.push(CallDelta { index, name, arguments: arguments.to_owned() }),
        }
    }
}
