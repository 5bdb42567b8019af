//! The commands that can be typed in a chat: a table, and how a line is read.

/// Each command with its argument and what it does, in the order of `/help`.
const COMMANDS: &[(&str, &str, &str)] = &[
    ("reset", "", "forget the conversation"),
    ("system", "TEXT", "begin anew with these instructions; without a text, show the current ones"),
    ("save", "FILE", "write the conversation as JSON, in the form of OpenAI's `messages`"),
    ("speed", "", "show the speed after each answer, or stop showing it"),
    ("exit", "", "leave (or end the input, Ctrl-D)"),
    ("help", "", "this list"),
];

/// How longer messages are typed.
const HINTS: &str = "\
A message of several lines begins and ends with \"\"\", or has a \\ at the end of each line but the last.
A message that begins with a slash is sent with two: //like this. Ctrl-C ends an answer.";

/// What a line asks for.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Input<'l> {
    /// Nothing was typed.
    Nothing,
    /// A message to the model.
    Message(&'l str),
    /// Forget the conversation.
    Reset,
    /// New instructions, or none: show the current ones.
    System(Option<&'l str>),
    /// Write the conversation to this file.
    Save(&'l str),
    /// Show the speed, or stop showing it.
    Speed,
    /// Leave.
    Exit,
    /// List the commands.
    Help,
    /// A command that does not exist or lacks its argument; the text says which.
    Unknown(String),
}

impl Input<'_> {
    /// Reads what was typed. A command is a slash and letters; two slashes begin a message with one.
    pub(super) fn read(line: &str) -> Input<'_> {
        let line = line.trim();
        let Some(rest) = line.strip_prefix('/') else {
            return if line.is_empty() { Input::Nothing } else { Input::Message(line) };
        };
        if rest.starts_with('/') {
            return Input::Message(rest);
        }
        let (name, argument) = rest.split_once(char::is_whitespace).unwrap_or((rest, ""));
        let argument = Some(argument.trim()).filter(|argument| !argument.is_empty());
        match (name, argument) {
            ("reset", None) => Input::Reset,
            ("system", text) => Input::System(text),
            ("save", Some(file)) => Input::Save(file),
            ("save", None) => Input::Unknown("/save needs the name of a file".into()),
            ("speed", None) => Input::Speed,
            ("exit" | "quit", None) => Input::Exit,
            ("help", None) => Input::Help,
            ("reset" | "speed" | "exit" | "quit" | "help", Some(_)) => {
                Input::Unknown(format!("/{name} takes no argument"))
            }
            _ => Input::Unknown(format!("there is no command /{name}")),
        }
    }
}

/// The list that `/help` shows, and a mistyped command too.
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
            assert!(!matches!(Input::read(&line), Input::Unknown(_) | Input::Message(_)), "{line}");
            assert!(help().contains(&format!("/{name}")));
        }
    }

    #[test]
    fn what_is_typed_is_a_message_or_a_command() {
        assert_eq!(Input::read("  hello /there "), Input::Message("hello /there"));
        assert_eq!(Input::read(" \n"), Input::Nothing);
        assert_eq!(Input::read("//etc/hosts is what?"), Input::Message("/etc/hosts is what?"));
        assert_eq!(Input::read("/system  Be brief. "), Input::System(Some("Be brief.")));
        assert_eq!(Input::read("/system"), Input::System(None));
        assert_eq!(Input::read("/save a b.json"), Input::Save("a b.json"));
        assert_eq!(Input::read("/quit"), Input::Exit);
    }

    #[test]
    fn a_command_that_does_not_exist_is_no_message() {
        assert_eq!(Input::read("/rest"), Input::Unknown("there is no command /rest".into()));
        assert_eq!(Input::read("/save"), Input::Unknown("/save needs the name of a file".into()));
        assert_eq!(Input::read("/reset now"), Input::Unknown("/reset takes no argument".into()));
        assert_eq!(Input::read("/"), Input::Unknown("there is no command /".into()));
    }
}
