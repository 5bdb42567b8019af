//! Instructions in the middle of a conversation.
//!
//! Agents add instructions (messages of the roles `system` and `developer`) while a conversation
//! goes on. Most templates refuse such a message or drop it without an error, so its text is moved
//! to a message that they write.

use serde_json::{Map, Value, json};

use super::transcript::add_paragraph;

type Message = Map<String, Value>;

/// Moves the instructions that the template would not write. `writes_late` says whether the
/// template writes messages of a role that follow others.
///
/// The text is appended to the user message directly before it, so that the prompt up to there
/// stays the same and stays cached. Without such a message, the text becomes a part of the system
/// prompt. User messages that were separated only by an instruction become one, because many
/// templates refuse messages whose roles do not alternate.
pub(super) fn placed(messages: Vec<Message>, writes_late: impl Fn(&str) -> bool) -> Vec<Message> {
    let mut placed = Vec::with_capacity(messages.len());
    let mut system = None::<Message>;
    // Whether the last message is the user's and has got an instruction after its own text.
    let mut is_instructed = false;
    for message in messages {
        let (is_first, role) = (placed.is_empty() && system.is_none(), role(&message));
        let is_instruction = matches!(role, "system" | "developer");
        if is_instruction && is_first {
            system = Some(message);
        } else if is_instruction && !writes_late(role) {
            is_instructed = placed.last_mut().is_some_and(|last| is_user(last) && extend(last, &message));
            if !is_instructed {
                let system = system.get_or_insert_with(|| empty(role));
                extend(system, &message);
            }
        } else {
            let joins = is_instructed && is_user(&message);
            if !(joins && placed.last_mut().is_some_and(|last| extend(last, &message))) {
                placed.push(message);
            }
            is_instructed = false;
        }
    }
    if let Some(system) = system {
        placed.insert(0, system);
    }
    placed
}

fn role(message: &Message) -> &str {
    message.get("role").and_then(Value::as_str).unwrap_or_default()
}

fn is_user(message: &Message) -> bool {
    role(message) == "user"
}

/// Returns a message without text.
fn empty(role: &str) -> Message {
    Message::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), json!(""))])
}

/// Adds the text of a message to another one as a paragraph. Returns false if the other message has
/// no text.
fn extend(message: &mut Message, more: &Message) -> bool {
    let Some(Value::String(text)) = message.get_mut("content") else { return false };
    add_paragraph(text, more.get("content").and_then(Value::as_str).unwrap_or_default());
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Writes messages as `role: text`.
    fn texts(messages: &[(&str, &str)], writes_late: &[&str]) -> Vec<String> {
        let message = |(role, text): &(&str, &str)| {
            let message = json!({"role": role, "content": text});
            message.as_object().cloned().unwrap_or_default()
        };
        let messages = messages.iter().map(message).collect();
        let placed = placed(messages, |role| writes_late.contains(&role));
        placed.iter().map(|message| format!("{}: {}", role(message), message["content"])).collect()
    }

    #[test]
    fn an_instruction_follows_the_user_message_before_it() {
        let conversation = [("system", "s"), ("user", "a"), ("system", "late"), ("assistant", "b")];
        assert_eq!(texts(&conversation, &[]), ["system: \"s\"", "user: \"a\\n\\nlate\"", "assistant: \"b\""]);
        let unchanged = ["system: \"s\"", "user: \"a\"", "system: \"late\"", "assistant: \"b\""];
        assert_eq!(texts(&conversation, &["system"]), unchanged);
    }

    #[test]
    fn an_instruction_after_an_answer_becomes_a_part_of_the_system_prompt() {
        let conversation = [("user", "a"), ("assistant", "b"), ("developer", "one"), ("system", "two")];
        assert_eq!(
            texts(&conversation, &[]),
            ["developer: \"one\\n\\ntwo\"", "user: \"a\"", "assistant: \"b\""]
        );
    }

    #[test]
    fn several_instructions_at_the_beginning_become_one() {
        let conversation = [("system", "one"), ("developer", "two"), ("user", "a")];
        assert_eq!(texts(&conversation, &[]), ["system: \"one\\n\\ntwo\"", "user: \"a\""]);
        assert_eq!(texts(&conversation, &["developer"]).len(), 3);
    }

    #[test]
    fn user_messages_around_an_instruction_become_one() {
        let conversation = [("user", "a"), ("system", "late"), ("user", "b"), ("user", "c")];
        assert_eq!(texts(&conversation, &[]), ["user: \"a\\n\\nlate\\n\\nb\"", "user: \"c\""]);
    }
}
