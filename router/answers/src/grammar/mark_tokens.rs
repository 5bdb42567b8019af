//! The special tokens of a model in the rules of grammars.

use millrace_text::Tokenizer;
use serde_json::Value;

/// The special tokens that a model can generate. In a grammar, ordinary text never contains a
/// special token.
#[derive(Clone, Copy)]
pub struct MarkTokens<'a> {
    tokenizer: &'a Tokenizer,
    /// The number of tokens of the model. The tokenizer may have more.
    vocab_size: u32,
    /// The tokens that end an answer.
    ends: &'a [u32],
}

impl<'a> MarkTokens<'a> {
    /// Returns the special tokens with ids below `vocab_size`. `ends` are the tokens that end an
    /// answer.
    pub fn new(tokenizer: &'a Tokenizer, vocab_size: u32, ends: &'a [u32]) -> Self {
        MarkTokens { tokenizer, vocab_size, ends }
    }

    /// Returns the special token with this text.
    pub(crate) fn special(self, text: &str) -> Option<u32> {
        let is_special = |id: &u32| *id < self.vocab_size && self.tokenizer.is_special(*id);
        self.tokenizer.token_id(text).filter(is_special)
    }

    /// Returns the rule for a mark: a single special token, or a text with any tokens.
    pub(crate) fn mark(self, mark: &str) -> String {
        self.special(mark).map_or_else(|| Value::from(mark).to_string(), |id| format!("<[{id}]>"))
    }

    /// Returns the rule for a text in which these marks may be special tokens.
    pub(crate) fn sequence(self, text: &str, marks: &[&str]) -> String {
        let (mut parts, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let found =
                marks.iter().filter_map(|mark| Some((rest.find(mark)?, mark.len(), self.special(mark)?)));
            let (at, length, id) = match found.min() {
                Some((at, length, id)) => (at, length, Some(id)),
                None => (rest.len(), 0, None),
            };
            if at > 0 {
                parts.push(Value::from(&rest[..at]).to_string());
            }
            parts.extend(id.map(|id| format!("<[{id}]>")));
            rest = &rest[at + length..];
        }
        parts.join(" ")
    }

    /// Returns the rule for one special token with none of these texts, or `None` if there is no
    /// such token.
    pub(crate) fn others(self, except: &[&str]) -> Option<String> {
        self.others_than(except.iter().filter_map(|text| self.special(text)).collect())
    }

    /// Returns the rule for one special token that neither has one of these texts nor ends an
    /// answer, or `None` if the vocabulary lacks it.
    pub(crate) fn others_within(self, except: &[&str]) -> Option<String> {
        let except = except.iter().filter_map(|text| self.special(text));
        self.others_than(except.chain(self.ends.iter().copied()).collect())
    }

    fn others_than(self, except: Vec<u32>) -> Option<String> {
        let ids = self.tokenizer.special_ids().iter().copied();
        let mut ranges: Vec<(u32, u32)> = Vec::new();
        for id in ids.filter(|id| *id < self.vocab_size && !except.contains(id)) {
            match ranges.last_mut() {
                Some((_, last)) if *last + 1 == id => *last = id,
                _ => ranges.push((id, id)),
            }
        }
        let ranges: Vec<String> = ranges.iter().map(|(first, last)| format!("{first}-{last}")).collect();
        (!ranges.is_empty()).then(|| format!("<[{}]>", ranges.join(",")))
    }

    /// Returns the rules for any text without the mark `end`, special tokens included: `{name}` for
    /// the text alone, and `{name}_end` for the text with the mark after it.
    pub(crate) fn text_up_to(self, name: &str, end: &str) -> String {
        let text = name.to_uppercase();
        let escaped = escape(end);
        if let Some(id) = self.special(end) {
            let part =
                self.others(&[end]).map_or_else(|| text.clone(), |others| format!("{text} | {others}"));
            return format!("{name}: ({part})*\n{name}_end: {name} <[{id}]>\n{text}: /(?s:.+)/\n");
        }
        let before = self.others(&[]).map_or_else(String::new, |others| format!("({text}? {others})* "));
        format!(
            "{name}: {before}{text}?\n{name}_end: {before}{name}_last\n\
             {name}_last[lazy]: /(?s:.*){escaped}/\n{text}: /(?s:.+)/ & ~/(?s:.*){escaped}(?s:.*)/\n"
        )
    }
}

#[cfg(any(test, feature = "test-support"))]
impl<'a> From<&'a Tokenizer> for MarkTokens<'a> {
    fn from(tokenizer: &'a Tokenizer) -> Self {
        MarkTokens::new(tokenizer, tokenizer.size(), &[millrace_text::test_support::EOS])
    }
}

/// Returns a regular expression that matches exactly this text.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if character.is_ascii_punctuation() && !matches!(character, '_' | '<' | '>') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

#[cfg(test)]
mod tests {
    use millrace_text::test_support::{EOS, assets_with};

    use super::*;

    #[test]
    fn other_special_tokens_are_named_by_ranges() {
        let tokenizer = Tokenizer::new(&assets_with(&["<a>", "<b>", "<c>"])).unwrap();
        let tokens = MarkTokens::from(&tokenizer);
        let (first, last) = (EOS - 1, EOS + 3);
        assert_eq!(tokens.others(&[]), Some(format!("<[{first}-{last}]>")));
        let around = format!("<[{first}-{},{last}-{last}]>", EOS + 1);
        assert_eq!(tokens.others(&["<b>", "text"]), Some(around));
        // A model with fewer tokens than its tokenizer cannot generate the last ones.
        let within = format!("<[{first}-{first},{last}-{last}]>");
        assert_eq!(tokens.others_within(&["<a>", "<b>"]), Some(within));
        let fewer = MarkTokens::new(&tokenizer, EOS + 1, &[]);
        assert_eq!(fewer.others(&["<a>"]), Some(format!("<[{first}-{EOS}]>")));
        assert_eq!((fewer.special("<a>"), fewer.mark("<a>")), (None, "\"<a>\"".to_owned()));
        assert_eq!(MarkTokens::new(&tokenizer, first, &[]).others(&[]), None);
    }
}
