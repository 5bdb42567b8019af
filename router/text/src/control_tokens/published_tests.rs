//! Tests guarded conversations with chat templates of many families, against the unguarded
//! rendering.

use std::path::Path;

use serde_json::{Value, json};

use super::{ControlTokenGuard, RenderedPrompt};
use crate::test_support::{assets_with, template_marks, test_data};
use crate::{ChatTemplate, Conversation, SpecialTokens, Tokenizer};

struct Family {
    name: String,
    template: ChatTemplate,
    tokenizer: Tokenizer,
    marks: Vec<String>,
}

impl Family {
    fn new(name: &str, source: &str) -> Self {
        let marks: Vec<String> = template_marks(source).into_iter().collect();
        let texts: Vec<&str> = marks.iter().map(String::as_str).collect();
        let tokenizer = Tokenizer::new(&assets_with(&texts)).unwrap();
        let template = ChatTemplate::new(source, None, Some("<s>".into()), Some("</s>".into()), 1).unwrap();
        Family { name: name.into(), template, tokenizer, marks }
    }

    fn ids(&self, rendered: &RenderedPrompt) -> Vec<u32> {
        self.tokenizer.encode_rendered_now(rendered, SpecialTokens::Omit).unwrap().ids
    }

    /// Renders the prompt without and with a guard; `None` if the template refuses the
    /// conversation.
    fn prompts(&self, conversation: &Conversation) -> Option<(RenderedPrompt, RenderedPrompt)> {
        let plain = self.template.render_now(conversation).ok()?;
        let mut guard = ControlTokenGuard::new(Some(self.tokenizer.control_tokens().clone()));
        let mut hidden = conversation.clone();
        guard.hide_conversation(&mut hidden);
        let guarded = self.template.render_guarded_now(hidden, &guard).unwrap();
        Some((plain.into(), guarded))
    }

    /// Checks that the guard does not change a conversation without special tokens. Returns whether
    /// the conversation was compared.
    fn changes_nothing(&self, conversation: &Conversation) -> bool {
        let client =
            format!("{:?} {:?} {:?}", conversation.messages, conversation.tools, conversation.documents);
        if self.marks.iter().any(|mark| client.contains(mark.as_str())) || client.contains("s>") {
            return false;
        }
        let Some((plain, guarded)) = self.prompts(conversation) else { return false };
        assert_eq!(guarded, plain, "{}", self.name);
        true
    }

    /// Writes each special token into the messages of a role, and checks that none of them becomes
    /// a token of the prompt.
    fn is_not_fooled(&self, role: &str, messages: &[Value]) -> bool {
        let with = |text: &str| {
            let mut messages = messages.to_vec();
            for message in messages.iter_mut().filter(|message| message["role"] == role) {
                message["content"] = text.into();
            }
            let conversation =
                Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
            self.prompts(&conversation)
        };
        let special = |rendered: &RenderedPrompt| -> Vec<u32> {
            self.ids(rendered).into_iter().filter(|&id| self.tokenizer.is_special(id)).collect()
        };
        let Some((_, harmless)) = with("hello") else { return false };
        let harmless = special(&harmless);
        let marks = self.marks.iter().map(String::as_str).chain(["<s>", "</s>"]);
        for mark in marks {
            let Some((plain, guarded)) = with(&format!("x {mark} y")) else { continue };
            assert_eq!(
                special(&guarded),
                harmless,
                "{}: {mark} of the {role} in {:?}",
                self.name,
                guarded.text
            );
            // A template that searches for a token does not find it in the text of roles other than
            // the assistant.
            if !is_searched_for(mark) {
                assert_eq!(guarded.text, plain.text, "{}: {mark}", self.name);
            }
        }
        true
    }
}

/// Whether templates give a message with this text a special treatment, whoever wrote it.
fn is_searched_for(mark: &str) -> bool {
    mark.contains("think")
}

fn check(family: &Family, conversations: &Value) -> (usize, usize) {
    let list = |value: &Value| value.as_array().cloned();
    let (mut same, mut guarded) = (0, 0);
    for conversation in conversations.as_object().unwrap().values() {
        let conversation = Conversation {
            messages: list(&conversation["messages"]).unwrap(),
            tools: list(&conversation["tools"]),
            documents: list(&conversation["documents"]),
            more: conversation["more"].as_object().cloned().unwrap_or_default(),
            add_generation_prompt: true,
        };
        same += usize::from(family.changes_nothing(&conversation));
    }
    for (role, messages) in [
        ("user", json!([{"role": "user", "content": "a"}])),
        ("system", json!([{"role": "system", "content": "a"}, {"role": "user", "content": "b"}])),
    ] {
        guarded += usize::from(family.is_not_fooled(role, messages.as_array().unwrap()));
    }
    (same, guarded)
}

#[test]
fn golden_templates_distinguish_their_tokens_from_the_clients() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden/templates.json");
    let golden: Value = serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap();
    let (mut same, mut guarded) = (0, 0);
    for template in golden["templates"].as_array().unwrap() {
        let family = Family::new(template["name"].as_str().unwrap(), template["template"].as_str().unwrap());
        let counts = check(&family, &golden["conversations"]);
        (same, guarded) = (same + counts.0, guarded + counts.1);
    }
    assert!(same >= 150 && guarded >= 30, "{same} {guarded}");
}

#[test]
#[ignore = "needs the published templates of MILLRACE_TEST_DATA"]
fn published_templates_distinguish_their_tokens_from_the_clients() {
    let root = test_data("chat-templates");
    let conversations: Value =
        serde_json::from_slice(&std::fs::read(root.join("conversations.json")).unwrap()).unwrap();
    let (mut same, mut guarded) = (0, 0);
    for entry in std::fs::read_dir(root.join("templates")).unwrap() {
        let path = entry.unwrap().path();
        let source = std::fs::read_to_string(&path).unwrap();
        let family = Family::new(&path.file_stem().unwrap().to_string_lossy(), &source);
        let counts = check(&family, &conversations);
        (same, guarded) = (same + counts.0, guarded + counts.1);
    }
    assert!(same >= 400 && guarded >= 60, "{same} {guarded}");
}
