//! Tests whether a chat template can render a system message in the middle of a conversation.
//!
//! Some templates render every message under its role, some raise an exception at a system message
//! that is not the first message, and some drop it. The text of a template does not tell which, so
//! the test renders a conversation.

use millrace_text::{ChatTemplate, Conversation};
use serde_json::json;

/// A text that no template contains.
const PROBE: &str = "a-late-system-message";

/// Returns the roles of instructions that the template renders behind other messages.
pub(super) fn rendered_roles(template: &ChatTemplate) -> Vec<&'static str> {
    ["system", "developer"].into_iter().filter(|role| is_rendered(template, role)).collect()
}

/// Whether the template renders a message of this role between a user message and an assistant
/// message.
fn is_rendered(template: &ChatTemplate, late_role: &str) -> bool {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = vec![
        message("system", "a"),
        message("user", "b"),
        message(late_role, PROBE),
        message("assistant", "c"),
        message("user", "d"),
    ];
    let conversation = Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
    template.render_now(&conversation).is_ok_and(|prompt| prompt.contains(PROBE))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_rendered_by(template: &str) -> bool {
        let roles = rendered_roles(&ChatTemplate::new(template, None, None, None, 1).unwrap());
        roles.contains(&"system")
    }

    #[test]
    fn the_roles_of_instructions_are_told_apart() {
        let template =
            "{% for m in messages %}{% if m.role != 'developer' %}{{ m.content }}{% endif %}{% endfor %}";
        let template = ChatTemplate::new(template, None, None, None, 1).unwrap();
        assert_eq!(rendered_roles(&template), ["system"]);
    }

    #[test]
    fn templates_that_refuse_or_drop_late_system_messages_are_recognized() {
        assert!(is_rendered_by("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}"));
        let refusing = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                        {{ raise_exception('System message must be at the beginning.') }}{% endif %}{{ m.content }}{% endfor %}";
        assert!(!is_rendered_by(refusing));
        let dropping = "{{ messages[0].content }}{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}";
        assert!(!is_rendered_by(dropping));
    }
}
