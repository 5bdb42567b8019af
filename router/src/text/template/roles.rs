//! Which roles a template writes. Some templates pass over messages whose role they do not know, so that the model would
//! answer without having seen them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};

use super::{ChatTemplate, Conversation, TemplateError};

/// Stands for the text of a message. It has no characters that a template would write in another way.
const MARK: &str = "millraceprobe7391";

/// Roles of one conversation that are looked at; the API knows six, and a template names few.
const MOST_ROLES: usize = 16;

/// What has been found out about a template. A role is that of the API or one that the template has in quotes, so there are
/// few of them.
#[derive(Debug, Default)]
pub(super) struct Roles(Mutex<HashMap<String, bool>>);

impl ChatTemplate {
    /// Refuses a conversation of which the template would leave out messages.
    ///
    /// # Errors
    /// [`TemplateError::Render`] names their role.
    pub(super) fn check_roles(&self, conversation: &Conversation) -> Result<(), TemplateError> {
        match self.dropped_role(conversation) {
            None => Ok(()),
            Some(role) => Err(TemplateError::Render(format!(
                "the model's chat template leaves out messages with the role `{role}`"
            ))),
        }
    }

    /// A role in the conversation whose messages the template leaves out.
    fn dropped_role(&self, conversation: &Conversation) -> Option<String> {
        let texts = conversation.messages.iter().filter(|message| {
            message.get("content").and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty())
        });
        let mut seen: Vec<&str> = Vec::new();
        for role in texts.filter_map(|message| message["role"].as_str()) {
            // Every template writes these two.
            if matches!(role, "user" | "assistant") || seen.contains(&role) || seen.len() == MOST_ROLES {
                continue;
            }
            if self.drops(role) {
                return Some(role.to_owned());
            }
            seen.push(role);
        }
        None
    }

    /// Whether the template leaves out messages of this role.
    fn drops(&self, role: &str) -> bool {
        let known = |roles: &Mutex<HashMap<String, bool>>| {
            roles.lock().unwrap_or_else(PoisonError::into_inner).get(role).copied()
        };
        if let Some(drops) = known(&self.0.roles.0) {
            return drops;
        }
        let written: Vec<bool> = probes(role)
            .iter()
            .filter_map(|probe| self.render_now(probe).ok())
            .map(|text| text.contains(MARK))
            .collect();
        // A template that refuses the role says so itself.
        let drops = !written.is_empty() && !written.contains(&true);
        self.0.roles.0.lock().unwrap_or_else(PoisonError::into_inner).insert(role.to_owned(), drops);
        drops
    }
}

/// Short conversations with a message of this role, at the places at which templates expect one.
fn probes(role: &str) -> Vec<Conversation> {
    let function =
        json!({"name": "f", "description": "d", "parameters": {"type": "object", "properties": {}}});
    let call = json!({"id": "call00000", "type": "function", "function": {"name": "f", "arguments": {}}});
    let say = |role: &str, text: &str| json!({"role": role, "content": text});
    let (user, answer) = (say("user", "a"), say("assistant", "b"));
    let probe = json!({"role": role, "name": "f", "tool_call_id": "call00000", "content": MARK});
    let caller = json!({"role": "assistant", "content": "", "tool_calls": [call]});
    let conversation = |messages: Vec<Value>, tools: bool| Conversation {
        messages,
        tools: tools.then(|| vec![json!({"type": "function", "function": function})]),
        add_generation_prompt: true,
        ..Conversation::default()
    };
    vec![
        conversation(vec![probe.clone(), user.clone()], false),
        conversation(vec![user.clone(), probe.clone()], false),
        conversation(vec![user.clone(), answer.clone(), probe.clone()], false),
        conversation(vec![user.clone(), caller.clone(), probe.clone()], true),
        conversation(vec![user.clone(), caller, probe.clone(), answer, user], true),
        conversation(vec![probe], false),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dropped(source: &str, role: &str) -> Option<String> {
        let template = ChatTemplate::new(source, None, None, None, 1).unwrap();
        let messages = vec![json!({"role": role, "content": "x"}), json!({"role": "user", "content": "y"})];
        template.dropped_role(&Conversation { messages, ..Conversation::default() })
    }

    #[test]
    fn roles_that_a_template_passes_over_are_found() {
        let some = "{% for m in messages %}{% if m.role == 'user' %}U {{ m.content }}\
                    {% elif m.role == 'assistant' %}A {{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(dropped(some, "system").as_deref(), Some("system"));
        assert_eq!(dropped(some, "tool").as_deref(), Some("tool"));
        assert_eq!(dropped(some, "user"), None);
        let all = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
        assert_eq!(dropped(all, "tool"), None);
        // Only in front, only after a call, and in JSON.
        let front = "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}\
                     {% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
        assert_eq!(dropped(front, "system"), None);
        let after = "{% for m in messages %}{% if m.role == 'tool' and messages[loop.index0 - 1].tool_calls %}\
                     {{ m.content | tojson }}{% elif m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(dropped(after, "tool"), None);
        // A template that refuses a role says so in its own words.
        let strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                      {{ m.content }}{% endfor %}";
        assert_eq!(dropped(strict, "system"), None);
    }

    #[test]
    fn a_dropped_role_is_an_error_that_names_it() {
        let source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
        let template = ChatTemplate::new(source, None, None, None, 1).unwrap();
        let messages =
            vec![json!({"role": "system", "content": "x"}), json!({"role": "user", "content": "y"})];
        let conversation = Conversation { messages, ..Conversation::default() };
        let error = template.check_roles(&conversation).unwrap_err();
        assert!(matches!(&error, TemplateError::Render(why) if why.contains("role `system`")), "{error}");
        // An empty message has nothing that could be left out.
        let mut empty = conversation;
        empty.messages[0]["content"] = json!(" ");
        assert_eq!(template.check_roles(&empty), Ok(()));
    }
}
