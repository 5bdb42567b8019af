//! Special tokens in what clients write.
//!
//! A prompt that a chat template writes has special tokens at the borders of turns. A client that writes the text of such a
//! token into a message must not get the token: it could end its own turn and speak as the system. So, before a template
//! sees a conversation, every special token that a client has written is replaced by a *placeholder*: digits that nobody can
//! guess. Templates pass digits through whatever they do with a text (they trim, change case, or write JSON). Afterwards
//! the placeholders become the client's text again, and their places are known: the tokenizer encodes them as ordinary text.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use super::template::Conversation;

/// Random digits that begin every placeholder of a request.
const NONCE: usize = 20;
/// Digits of a token's place in the list, after one digit that says who has written it.
const INDEX: usize = 6;
/// Bytes of a placeholder.
const PLACEHOLDER: usize = NONCE + 1 + INDEX;

/// The text of a prompt, and which parts of it must be encoded as ordinary text although they look like special tokens.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rendered {
    /// The text.
    pub text: String,
    /// Byte ranges of the text, in ascending order and without overlap.
    pub literal: Vec<Range<usize>>,
}

impl From<String> for Rendered {
    fn from(text: String) -> Self {
        Rendered { text, literal: Vec::new() }
    }
}

impl Rendered {
    /// Cuts the text to at most `length` bytes, which is between two characters.
    pub fn truncate(&mut self, length: usize) {
        self.text.truncate(length);
        self.literal.retain(|range| range.start < length);
        if let Some(last) = self.literal.last_mut() {
            last.end = last.end.min(length);
        }
    }
}

/// The special tokens of a model that clients must not be able to write.
#[derive(Debug)]
pub struct ControlTokens {
    texts: Vec<String>,
    /// Finds the longest of them at each place.
    matcher: AhoCorasick,
}

impl ControlTokens {
    /// These texts; empty ones, and more than can be numbered, are left out.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let texts: BTreeSet<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        let texts: Vec<String> = texts.into_iter().take(10usize.pow(INDEX as u32)).collect();
        let build =
            |texts: &[String]| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        match build(&texts) {
            Ok(matcher) => ControlTokens { texts, matcher },
            // More states than the matcher can number: gigabytes of special tokens.
            Err(error) => {
                tracing::error!(%error, "special tokens in messages are not recognised");
                #[expect(clippy::unwrap_used, reason = "an automaton of no patterns has one state")]
                let matcher = build(&[]).unwrap();
                ControlTokens { texts: Vec::new(), matcher }
            }
        }
    }

    /// Where they are in a text, in ascending order and without overlap.
    pub(super) fn find(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.matcher.find_iter(text).map(|found| found.range())
    }
}

/// Hides the special tokens that one request contains.
#[derive(Debug, Clone)]
pub struct Guard {
    /// `None` if clients may write special tokens.
    tokens: Option<Arc<ControlTokens>>,
    /// Begins each placeholder.
    nonce: String,
    /// Whether anything was hidden.
    hides: bool,
    /// Which tokens the assistant's messages have.
    assistant: BTreeSet<usize>,
}

impl Guard {
    /// Hides these tokens; none if clients may write them.
    pub fn new(tokens: Option<Arc<ControlTokens>>) -> Self {
        let nonce = (0..NONCE).map(|_| char::from(b'0' + rand::random_range(0..10u8))).collect();
        Guard { tokens, nonce, hides: false, assistant: BTreeSet::new() }
    }

    /// Hides the special tokens in all that a conversation has from the client.
    pub fn hide_conversation(&mut self, conversation: &mut Conversation) {
        for message in &mut conversation.messages {
            let assistant = message["role"] == "assistant";
            self.hide_in(message, assistant);
        }
        for values in [&mut conversation.tools, &mut conversation.documents].into_iter().flatten() {
            values.iter_mut().for_each(|value| self.hide(value));
        }
        conversation.more.values_mut().for_each(|value| self.hide(value));
    }

    /// Hides the special tokens in a value that is no message.
    pub fn hide(&mut self, value: &mut Value) {
        self.hide_in(value, false);
    }

    fn hide_in(&mut self, value: &mut Value, assistant: bool) {
        if self.tokens.is_none() {
            return;
        }
        edit(value, &mut |text| self.hidden(text, assistant));
    }

    /// The text with placeholders, if it has special tokens.
    fn hidden(&mut self, text: &str, assistant: bool) -> Option<String> {
        let tokens = self.tokens.clone()?;
        let mut hidden = String::new();
        let mut end = 0;
        for found in tokens.matcher.find_iter(text) {
            hidden.push_str(&text[end..found.start()]);
            hidden.push_str(&self.placeholder(found.pattern().as_usize(), assistant));
            end = found.end();
            if assistant {
                self.assistant.insert(found.pattern().as_usize());
            }
        }
        if end == 0 {
            return None;
        }
        self.hides = true;
        Some(hidden + &text[end..])
    }

    fn placeholder(&self, token: usize, assistant: bool) -> String {
        format!("{}{}{token:0INDEX$}", self.nonce, u8::from(assistant))
    }

    /// The tokens that the assistant's messages have.
    pub(super) fn said_by_assistant(&self) -> impl Iterator<Item = usize> {
        self.assistant.iter().copied()
    }

    /// Puts these tokens back into the assistant's messages.
    pub(super) fn show(&self, conversation: &mut Conversation, tokens: &[usize]) {
        let Some(texts) = self.tokens.as_ref().map(|tokens| &tokens.texts) else { return };
        let pairs: Vec<_> =
            tokens.iter().map(|&token| (self.placeholder(token, true), &texts[token])).collect();
        for message in &mut conversation.messages {
            edit(message, &mut |text| {
                let mut shown = None::<String>;
                for (hidden, token) in pairs.iter().filter(|(hidden, _)| text.contains(hidden.as_str())) {
                    shown = Some(shown.as_deref().unwrap_or(text).replace(hidden.as_str(), token));
                }
                shown
            });
        }
    }

    /// The text in which the placeholders are what the client has written, and where that is.
    pub fn reveal(&self, text: &str) -> Rendered {
        let Some(tokens) = self.tokens.as_ref().filter(|_| self.hides) else { return text.to_owned().into() };
        let mut rendered = Rendered::default();
        let mut rest = text;
        while let Some(at) = rest.find(&self.nonce) {
            rendered.text.push_str(&rest[..at]);
            let index =
                rest.get(at + NONCE + 1..at + PLACEHOLDER).and_then(|digits| digits.parse::<usize>().ok());
            match index.and_then(|index| tokens.texts.get(index)) {
                Some(token) => {
                    let start = rendered.text.len();
                    rendered.text.push_str(token);
                    rendered.literal.push(start..start + token.len());
                    rest = &rest[at + PLACEHOLDER..];
                }
                // The template has cut the placeholder.
                None => rest = &rest[at + NONCE..],
            }
        }
        rendered.text.push_str(rest);
        rendered
    }
}

/// Replaces texts and keys of a JSON value for which `change` has another one. The value came through a parser that bounds
/// its depth.
fn edit(value: &mut Value, change: &mut impl FnMut(&str) -> Option<String>) {
    match value {
        Value::String(text) => {
            if let Some(other) = change(text) {
                *text = other;
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| edit(item, change)),
        Value::Object(fields) => {
            let keys: Vec<Option<String>> = fields.keys().map(|key| change(key)).collect();
            if keys.iter().any(Option::is_some) {
                let old = std::mem::take(fields);
                let renamed =
                    keys.into_iter().zip(old).map(|(other, (key, value))| (other.unwrap_or(key), value));
                *fields = renamed.collect::<Map<_, _>>();
            }
            fields.values_mut().for_each(|value| edit(value, change));
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

#[cfg(test)]
mod published;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::text::ChatTemplate;
    use serde_json::json;

    fn guard() -> Guard {
        let texts = ["<s>", "</s>", "<|end|>", "<|end", "</think>", "[INST]"].map(str::to_owned);
        Guard::new(Some(Arc::new(ControlTokens::new(texts))))
    }

    fn render(template: &str, messages: Value) -> Rendered {
        let template = ChatTemplate::new(template, None, Some("<s>".into()), None, 1).unwrap();
        let Value::Array(messages) = messages else { panic!("not a list") };
        let mut conversation = Conversation { messages, ..Conversation::default() };
        let mut guard = guard();
        guard.hide_conversation(&mut conversation);
        template.render_guarded_now(conversation, &guard).unwrap()
    }

    fn literal(rendered: &Rendered) -> Vec<&str> {
        rendered.literal.iter().map(|range| &rendered.text[range.clone()]).collect()
    }

    #[test]
    fn what_a_client_writes_is_told_from_what_the_template_writes() {
        let template = "{{ bos_token }}{% for m in messages %}{{ m.role|upper }}: {{ m.content|trim|upper }}<|end|>{% endfor %}";
        let said = "a <|end|><s> <|end b";
        let rendered = render(template, json!([{"role": "user", "content": said}]));
        assert_eq!(rendered.text, "<s>USER: A <|end|><s> <|end B<|end|>");
        assert_eq!(literal(&rendered), ["<|end|>", "<s>", "<|end"]);
        assert_eq!(rendered.literal[0].start, "<s>USER: A ".len());
    }

    #[test]
    fn keys_nested_values_and_json_are_guarded() {
        let template = "{{ messages[0] | tojson(ensure_ascii=true) }}";
        let message = json!({"role": "tool", "content": {"a</s>": ["</s>", {"b": "[INST]\n"}]}});
        let rendered = render(template, json!([message]));
        assert_eq!(rendered.text, r#"{"role": "tool", "content": {"a</s>": ["</s>", {"b": "[INST]\n"}]}}"#);
        assert_eq!(literal(&rendered), ["</s>", "</s>", "[INST]"]);
    }

    #[test]
    fn a_template_may_look_for_tokens_in_what_the_assistant_has_said() {
        let template = "{% for m in messages %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[1] }}\
                        {% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}";
        let said = "why</think>because <|end|>";
        let rendered = render(template, json!([{"role": "assistant", "content": said}]));
        assert_eq!(rendered.text, "because <|end|><|end|>");
        assert_eq!(literal(&rendered), ["<|end|>"]);
        // The same words of somebody else are only words.
        let rendered = render(template, json!([{"role": "user", "content": said}]));
        assert_eq!(rendered.text, "why</think>because <|end|><|end|>");
        assert_eq!(literal(&rendered), ["</think>", "<|end|>"]);
    }

    #[test]
    fn without_tokens_nothing_is_changed() {
        let mut guard = Guard::new(None);
        let mut value = json!({"role": "user", "content": "<s>"});
        guard.hide(&mut value);
        assert_eq!(value, json!({"role": "user", "content": "<s>"}));
        assert_eq!(guard.reveal("<s>"), "<s>".to_owned().into());
    }

    #[test]
    fn a_cut_prompt_keeps_the_places_that_are_left() {
        let mut rendered = Rendered { text: "a<s>b</s>".into(), literal: vec![1..4, 5..9] };
        rendered.truncate(7);
        assert_eq!(rendered, Rendered { text: "a<s>b</".into(), literal: vec![1..4, 5..7] });
        rendered.truncate(1);
        assert_eq!(rendered, Rendered { text: "a".into(), literal: vec![] });
    }

    #[test]
    fn the_refusal_of_a_template_shows_the_client_its_own_words() {
        let template =
            ChatTemplate::new("{{ raise_exception(messages[0].content) }}", None, None, None, 1).unwrap();
        let mut conversation = Conversation {
            messages: vec![json!({"role": "user", "content": "<s>!"})],
            ..Conversation::default()
        };
        let mut guard = guard();
        guard.hide_conversation(&mut conversation);
        let error = template.render_guarded_now(conversation, &guard).unwrap_err();
        assert_eq!(error.to_string(), "<s>!");
    }
}
