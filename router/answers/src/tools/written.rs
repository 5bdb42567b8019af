//! Calls as a model writes them, and the tokens that they consist of.

use millrace_text::Tokenizer;
use serde_json::Value;

use super::format::ToolFormat;
use super::syntax::CallSyntax;

impl ToolFormat {
    /// Returns the special tokens that are shown as text in answers that may call tools.
    pub fn marks(self, tokenizer: &Tokenizer) -> Vec<u32> {
        let marks = self.syntax().marks.iter().filter_map(|mark| tokenizer.token_id(mark));
        marks.filter(|&id| tokenizer.is_special(id)).collect()
    }

    /// Returns the texts of the format that may be special tokens.
    #[cfg(any(test, feature = "test-support"))]
    pub fn syntax_marks(self) -> &'static [&'static str] {
        self.syntax().marks
    }

    /// Whether each call has a marker before it.
    pub fn always_has_marker(self) -> bool {
        let syntax = self.syntax();
        syntax.open.is_some() && syntax.bare.is_empty()
    }

    /// Writes a call in this format. `arguments` is an object.
    pub(super) fn write(self, name: &str, arguments: &Value) -> String {
        let syntax = self.syntax();
        let open = syntax.open.filter(|_| syntax.bare.is_empty()).unwrap_or_default();
        let call = match syntax.call {
            CallSyntax::Object { name: name_key, arguments: key } => {
                let object = format!("{{\"{name_key}\": {}, \"{key}\": {arguments}}}", Value::from(name));
                if syntax.list { format!("[{object}]") } else { object }
            }
            CallSyntax::Keyed => format!("[{{{}: {arguments}}}]", Value::from(name)),
            CallSyntax::Named { before, after, .. } => format!("{before}{name}{after}{arguments}"),
            CallSyntax::Tags(tags) => tags.write(name, arguments),
            CallSyntax::Python => super::python_call::write(name, arguments),
            CallSyntax::Gemma => super::gemma_call::write(name, arguments),
        };
        let close = if syntax.bare.is_empty() { syntax.closing.concat() } else { String::new() };
        format!("{open}{call}{close}")
    }
}
