//! Tests whether a chat template can render a system message in the middle of a conversation.
//!
//! Some templates render every message under its role, some raise an exception at a system message
//! that is not the first message, and some drop it. The text of a template does not tell which, so
//! the test renders a conversation.

use serde_json::json;

use crate::text::{ChatTemplate, Conversation};

/// A text that no template contains.
const PROBE: &str = "a-late-system-message";

/// Whether the template renders a system message between a user message and an assistant message.
pub(super) fn is_rendered(template: &ChatTemplate) -> bool {
    let message = |role: &str, content: &str| json!({"role": role, "content": content});
    let messages = vec![
        message("system", "a"),
        message("user", "b"),
        message("system", PROBE),
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
        is_rendered(&ChatTemplate::new(template, None, None, None, 1).unwrap())
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
