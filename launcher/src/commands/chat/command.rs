//! The commands of a chat, and the parser of a line.

/// Name, argument and effect of each command, in the order of `/help`.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("reset", "", "forget the conversation"),
    ("system", "TEXT", "start again with these instructions; without a text, show the current ones"),
    ("save", "FILE", "write the conversation as JSON, in the form of OpenAI's `messages`"),
    ("speed", "", "show the speed after each answer, or stop showing it"),
    ("exit", "", "leave (or end the input, Ctrl-D)"),
    ("help", "", "this list"),
];

/// Help on messages of several lines.
const HINTS: &str = "\
A message of several lines begins and ends with \"\"\", or has a \\ at the end of each line but the last.
A message that begins with a slash is sent with two: //like this. Ctrl-C ends an answer.";

/// The meaning of a typed line.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum ChatInput<'l> {
    /// An empty line.
    Nothing,
    /// A message to the model.
    Message(&'l str),
    /// Forget the conversation.
    Reset,
    /// Set new instructions; without a text, show the current ones.
    System(Option<&'l str>),
    /// Write the conversation to this file.
    Save(&'l str),
    /// Show the speed, or stop showing it.
    Speed,
    /// End the chat.
    Exit,
    /// List the commands.
    Help,
    /// A command that does not exist or lacks its argument, as an error text.
    Unknown(String),
}

impl ChatInput<'_> {
    /// Parses a line. A command is a slash and letters; two slashes begin a message with one slash.
    pub(super) fn read(line: &str) -> ChatInput<'_> {
        let line = line.trim();
        let Some(rest) = line.strip_prefix('/') else {
            return if line.is_empty() { ChatInput::Nothing } else { ChatInput::Message(line) };
        };
        if rest.starts_with('/') {
            return ChatInput::Message(rest);
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
        match (name, argument) {
            ("reset", None) => ChatInput::Reset,
            ("system", text) => ChatInput::System(text),
            ("save", Some(file)) => ChatInput::Save(file),
            ("save", None) => ChatInput::Unknown("/save needs the name of a file".into()),
            ("speed", None) => ChatInput::Speed,
            ("exit" | "quit", None) => ChatInput::Exit,
            ("help", None) => ChatInput::Help,
            ("reset" | "speed" | "exit" | "quit" | "help", Some(_)) => {
                ChatInput::Unknown(format!("/{name} takes no argument"))
            }
            _ => ChatInput::Unknown(format!("there is no command /{name}")),
        }
    }
}

/// Returns the text of `/help`, which is also shown after an unknown command.
pub(super) fn help() -> String {
    let mut text = String::new();
    for (name, argument, effect) in COMMANDS {
        text += &format!("{:<14} {effect}\n", format!("/{name} {argument}").trim_end());
    }
    text + HINTS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_of_the_list_is_known() {
        for (name, argument, _) in COMMANDS {
            let line = format!("/{name} {argument}");
            assert!(
                !matches!(ChatInput::read(&line), ChatInput::Unknown(_) | ChatInput::Message(_)),
                "{line}"
            );
            assert!(help().contains(&format!("/{name}")));
        }
    }

    #[test]
    fn what_is_typed_is_a_message_or_a_command() {
        assert_eq!(ChatInput::read("  hello /there "), ChatInput::Message("hello /there"));
        assert_eq!(ChatInput::read(" \n"), ChatInput::Nothing);
        assert_eq!(ChatInput::read("//etc/hosts is what?"), ChatInput::Message("/etc/hosts is what?"));
        assert_eq!(ChatInput::read("/system  Be brief. "), ChatInput::System(Some("Be brief.")));
        assert_eq!(ChatInput::read("/system"), ChatInput::System(None));
        assert_eq!(ChatInput::read("/save a b.json"), ChatInput::Save("a b.json"));
        assert_eq!(ChatInput::read("/quit"), ChatInput::Exit);
    }

    #[test]
    fn a_command_that_does_not_exist_is_no_message() {
        assert_eq!(ChatInput::read("/rest"), ChatInput::Unknown("there is no command /rest".into()));
        assert_eq!(ChatInput::read("/save"), ChatInput::Unknown("/save needs the name of a file".into()));
        assert_eq!(ChatInput::read("/reset now"), ChatInput::Unknown("/reset takes no argument".into()));
        assert_eq!(ChatInput::read("/"), ChatInput::Unknown("there is no command /".into()));
    }
}
