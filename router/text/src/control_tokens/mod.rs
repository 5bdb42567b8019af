//! Special tokens in text that clients write.
//!
//! A prompt from a chat template has special tokens at the borders of turns. If a client writes the
//! text of such a token into a message, the prompt must not contain the token itself: the client
//! could end its own turn and speak as the system. Therefore every special token in a client's text
//! is replaced by a *placeholder* before the template sees the conversation. A placeholder consists
//! of digits that nobody can guess. Templates keep digits unchanged when they trim text, change its
//! case or write JSON. After rendering, the placeholders are replaced by the client's text again.
//! Their positions are recorded, and the tokenizer encodes these ranges as ordinary text.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use aho_corasick::{AhoCorasick, MatchKind};
use serde_json::{Map, Value};

use super::conversation::Conversation;
use super::conversation::RenderedPrompt;

/// The number of random digits at the start of every placeholder of a request.
const NONCE_DIGITS: usize = 20;
/// The number of digits of the token's index. One digit before the index says whether the assistant
/// wrote the token.
const INDEX_DIGITS: usize = 6;
/// The length of a placeholder in bytes.
const PLACEHOLDER_BYTES: usize = NONCE_DIGITS + 1 + INDEX_DIGITS;

/// The special tokens of a model that clients must not be able to write.
#[derive(Debug)]
pub struct ControlTokens {
    texts: Vec<String>,
    /// Finds the longest token at each position.
    matcher: AhoCorasick,
}

impl ControlTokens {
    /// Creates the set from these texts. Empty texts are left out, and so are texts beyond the
    /// number that placeholders can distinguish.
    pub fn new(texts: impl IntoIterator<Item = String>) -> Self {
        let texts: BTreeSet<String> = texts.into_iter().filter(|text| !text.is_empty()).collect();
        let texts: Vec<String> = texts.into_iter().take(10usize.pow(INDEX_DIGITS as u32)).collect();
        let build =
            |texts: &[String]| AhoCorasick::builder().match_kind(MatchKind::LeftmostLongest).build(texts);
        match build(&texts) {
            Ok(matcher) => ControlTokens { texts, matcher },
            // The automaton would have too many states. This takes gigabytes of special tokens.
            Err(error) => {
                tracing::error!(%error, "special tokens in messages are not recognized");
                #[expect(clippy::unwrap_used, reason = "an automaton of no patterns has one state")]
                let matcher = build(&[]).unwrap();
                ControlTokens { texts: Vec::new(), matcher }
            }
        }
    }

    /// Returns the ranges of the tokens in a text, in ascending order and without overlap.
    pub(super) fn find(&self, text: &str) -> impl Iterator<Item = Range<usize>> {
        self.matcher.find_iter(text).map(|found| found.range())
    }
}

/// Hides the special tokens in the text of one request.
#[derive(Debug, Clone)]
pub struct ControlTokenGuard {
    /// `None` if clients may write special tokens.
    tokens: Option<Arc<ControlTokens>>,
    /// The random digits at the start of each placeholder.
    nonce: String,
    /// Whether any token was hidden.
    has_hidden: bool,
    /// The indices of the tokens in the assistant's messages.
    assistant: BTreeSet<usize>,
}

impl ControlTokenGuard {
    /// Creates a guard for one request. `tokens` is `None` if clients may write special tokens.
    pub fn new(tokens: Option<Arc<ControlTokens>>) -> Self {
        let nonce = (0..NONCE_DIGITS).map(|_| char::from(b'0' + rand::random_range(0..10u8))).collect();
        ControlTokenGuard { tokens, nonce, has_hidden: false, assistant: BTreeSet::new() }
    }

    /// Hides the special tokens in all parts of a conversation that come from the client.
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

    /// Hides the special tokens in a value that is not a message.
    pub fn hide(&mut self, value: &mut Value) {
        self.hide_in(value, false);
    }

    fn hide_in(&mut self, value: &mut Value, assistant: bool) {
        if self.tokens.is_none() {
            return;
        }
        edit(value, &mut |text| self.hidden(text, assistant));
    }

    /// Returns the text with placeholders if it contains special tokens, and `None` otherwise.
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
        self.has_hidden = true;
        Some(hidden + &text[end..])
    }

    fn placeholder(&self, token: usize, assistant: bool) -> String {
        format!("{}{}{token:0INDEX_DIGITS$}", self.nonce, u8::from(assistant))
    }

    /// Returns the indices of the tokens in the assistant's messages.
    pub(super) fn assistant_tokens(&self) -> impl Iterator<Item = usize> {
        self.assistant.iter().copied()
    }

    /// Restores these tokens in the assistant's messages.
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

    /// Replaces the placeholders by the client's text and records its ranges.
    pub fn reveal(&self, text: &str) -> RenderedPrompt {
        let Some(tokens) = self.tokens.as_ref().filter(|_| self.has_hidden) else {
            return text.to_owned().into();
        };
        let mut rendered = RenderedPrompt::default();
        let mut rest = text;
        while let Some(at) = rest.find(&self.nonce) {
            rendered.text.push_str(&rest[..at]);
            let index = rest
                .get(at + NONCE_DIGITS + 1..at + PLACEHOLDER_BYTES)
                .and_then(|digits| digits.parse::<usize>().ok());
            match index.and_then(|index| tokens.texts.get(index)) {
                Some(token) => {
                    let start = rendered.text.len();
                    rendered.text.push_str(token);
                    rendered.literal.push(start..start + token.len());
                    rest = &rest[at + PLACEHOLDER_BYTES..];
                }
                // The template has cut the placeholder.
                None => rest = &rest[at + NONCE_DIGITS..],
            }
        }
        rendered.text.push_str(rest);
        rendered
    }
}

/// Replaces the strings and keys of a JSON value for which `change` returns another text. The
/// parser of the request bounds the depth of the value.
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
mod published_tests;

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ChatTemplate;

    fn guard() -> ControlTokenGuard {
        let texts = ["<s>", "</s>", "<|end|>", "<|end", "</think>", "[INST]"].map(str::to_owned);
        ControlTokenGuard::new(Some(Arc::new(ControlTokens::new(texts))))
    }

    fn render(template: &str, messages: Value) -> RenderedPrompt {
        let template = ChatTemplate::new(template, None, Some("<s>".into()), None, 1).unwrap();
        let Value::Array(messages) = messages else { panic!("not a list") };
        let mut conversation = Conversation { messages, ..Conversation::default() };
        let mut guard = guard();
        guard.hide_conversation(&mut conversation);
        template.render_guarded_now(conversation, &guard).unwrap()
    }

    fn literal(rendered: &RenderedPrompt) -> Vec<&str> {
        rendered.literal.iter().map(|range| &rendered.text[range.clone()]).collect()
    }

    #[test]
    fn client_text_is_distinguished_from_template_text() {
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
    fn a_template_may_search_the_assistants_messages_for_tokens() {
        let template = "{% for m in messages %}{% if '</think>' in m.content %}{{ m.content.split('</think>')[1] }}\
                        {% else %}{{ m.content }}{% endif %}<|end|>{% endfor %}";
        let said = "why</think>because <|end|>";
        let rendered = render(template, json!([{"role": "assistant", "content": said}]));
        assert_eq!(rendered.text, "because <|end|><|end|>");
        assert_eq!(literal(&rendered), ["<|end|>"]);
        // The same text by another role is ordinary text.
        let rendered = render(template, json!([{"role": "user", "content": said}]));
        assert_eq!(rendered.text, "why</think>because <|end|><|end|>");
        assert_eq!(literal(&rendered), ["</think>", "<|end|>"]);
    }

    #[test]
    fn without_tokens_nothing_is_changed() {
        let mut guard = ControlTokenGuard::new(None);
        let mut value = json!({"role": "user", "content": "<s>"});
        guard.hide(&mut value);
        assert_eq!(value, json!({"role": "user", "content": "<s>"}));
        assert_eq!(guard.reveal("<s>"), "<s>".to_owned().into());
    }

    #[test]
    fn a_truncated_prompt_keeps_the_remaining_ranges() {
        let mut rendered = RenderedPrompt { text: "a<s>b</s>".into(), literal: vec![1..4, 5..9] };
        rendered.truncate(7);
        assert_eq!(rendered, RenderedPrompt { text: "a<s>b</".into(), literal: vec![1..4, 5..7] });
        rendered.truncate(1);
        assert_eq!(rendered, RenderedPrompt { text: "a".into(), literal: vec![] });
    }

    #[test]
    fn template_errors_show_the_clients_text() {
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
