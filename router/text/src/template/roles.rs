//! Detects the roles whose messages a template leaves out. Some templates skip messages with
//! unknown roles, so that the model would answer without having seen them.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::{Value, json};

use crate::conversation::Conversation;
use crate::error::TemplateError;

/// Renders a conversation with the template under test.
type Render<'a> = &'a dyn Fn(&Conversation) -> Result<String, TemplateError>;

/// The text of the message under test. It contains no characters that a template would change.
const MARK: &str = "millraceprobe7391";

/// The number of roles per conversation that are checked. The API has six roles, and a template
/// names few.
const MAX_ROLES: usize = 16;

/// Caches whether a template leaves out the messages of each role. A role is one of the API's or
/// one that the template quotes, so the map stays small.
#[derive(Debug, Default)]
pub(super) struct RoleSupport(Mutex<HashMap<String, bool>>);

impl RoleSupport {
    /// Refuses a conversation if the template, which `render` runs, leaves out some of its
    /// messages.
    ///
    /// # Errors
    /// [`TemplateError::Render`] names the role of these messages.
    pub(super) fn check(&self, conversation: &Conversation, render: Render<'_>) -> Result<(), TemplateError> {
        match self.omitted_role(conversation, render) {
            None => Ok(()),
            Some(role) => Err(TemplateError::Render(format!(
                "the model's chat template leaves out messages with the role `{role}`"
            ))),
        }
    }

    /// Returns a role of the conversation whose messages the template leaves out.
    fn omitted_role(&self, conversation: &Conversation, render: Render<'_>) -> Option<String> {
        let with_text = conversation.messages.iter().filter(|message| {
            message.get("content").and_then(Value::as_str).is_some_and(|text| !text.trim().is_empty())
        });
        let mut checked: Vec<&str> = Vec::new();
        for role in with_text.filter_map(|message| message["role"].as_str()) {
            // Every template renders these two roles.
            if matches!(role, "user" | "assistant") || checked.contains(&role) || checked.len() == MAX_ROLES {
                continue;
            }
            if self.omits(role, render) {
                return Some(role.to_owned());
            }
            checked.push(role);
        }
        None
    }

    /// Whether the template leaves out messages of this role.
    fn omits(&self, role: &str, render: Render<'_>) -> bool {
        if let Some(omits) = self.roles().get(role) {
            return *omits;
        }
        let shows_mark: Vec<bool> = probe_conversations(role)
            .iter()
            .filter_map(|probe| render(probe).ok())
            .map(|text| text.contains(MARK))
            .collect();
        // If every rendering fails, the template refuses the role with its own error text.
        let omits = !shows_mark.is_empty() && !shows_mark.contains(&true);
        self.roles().insert(role.to_owned(), omits);
        omits
    }

    fn roles(&self) -> MutexGuard<'_, HashMap<String, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns short conversations with a message of this role at the places where templates expect
/// one.
fn probe_conversations(role: &str) -> Vec<Conversation> {
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
    use crate::ChatTemplate;

    fn omitted(source: &str, role: &str) -> Option<String> {
        let template = ChatTemplate::new(source, None, None, None, 1).unwrap();
        let messages = vec![json!({"role": role, "content": "x"}), json!({"role": "user", "content": "y"})];
        let conversation = Conversation { messages, ..Conversation::default() };
        RoleSupport::default().omitted_role(&conversation, &|probe| template.render_now(probe))
    }

    #[test]
    fn roles_that_a_template_omits_are_found() {
        let some = "{% for m in messages %}{% if m.role == 'user' %}U {{ m.content }}\
                    {% elif m.role == 'assistant' %}A {{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(omitted(some, "system").as_deref(), Some("system"));
        assert_eq!(omitted(some, "tool").as_deref(), Some("tool"));
        assert_eq!(omitted(some, "user"), None);
        let all = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}";
        assert_eq!(omitted(all, "tool"), None);
        // Templates that write the role only at the front, only after a call, or as JSON.
        let front = "{% if messages[0].role == 'system' %}{{ messages[0].content | trim }}{% endif %}\
                     {% for m in messages if m.role != 'system' %}{{ m.content }}{% endfor %}";
        assert_eq!(omitted(front, "system"), None);
        let after = "{% for m in messages %}{% if m.role == 'tool' and messages[loop.index0 - 1].tool_calls %}\
                     {{ m.content | tojson }}{% elif m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
        assert_eq!(omitted(after, "tool"), None);
        // A template that refuses a role does so with its own error text.
        let strict = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                      {{ m.content }}{% endfor %}";
        assert_eq!(omitted(strict, "system"), None);
    }

    #[test]
    fn an_omitted_role_is_an_error_that_names_it() {
        let source = "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}";
        let template = ChatTemplate::new(source, None, None, None, 1).unwrap();
        let messages =
            vec![json!({"role": "system", "content": "x"}), json!({"role": "user", "content": "y"})];
        let conversation = Conversation { messages, ..Conversation::default() };
        let error =
            RoleSupport::default().check(&conversation, &|probe| template.render_now(probe)).unwrap_err();
        assert!(
            matches!(&error, TemplateError::Render(reason) if reason.contains("role `system`")),
            "{error}"
        );
        // An empty message has no text that could be left out.
        let mut empty = conversation;
        empty.messages[0]["content"] = json!(" ");
        assert_eq!(RoleSupport::default().check(&empty, &|probe| template.render_now(probe)), Ok(()));
    }
}
