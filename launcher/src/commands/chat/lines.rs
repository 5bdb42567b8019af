//! The input of a chat: an editor with history at a terminal, or plain lines from a pipe.

use std::io::{BufRead, IsTerminal};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Completer, Config, Editor, Helper, Highlighter, Hinter};

/// The mark that begins and ends a message of several lines.
const QUOTES: &str = "\"\"\"";

/// Limit of the lines in the history.
const KEPT: usize = 1000;

/// The source of messages.
pub(super) enum Lines {
    /// A terminal.
    Terminal {
        /// The line editor with its history.
        editor: Box<Editor<Multiline, FileHistory>>,
        /// File that keeps the history between chats, if there is a folder for it.
        history: Option<PathBuf>,
    },
    /// A pipe or file.
    Pipe(Box<dyn BufRead>),
}

/// Tells the editor whether a message is complete.
#[derive(Completer, Helper, Highlighter, Hinter)]
pub(super) struct Multiline;

impl Validator for Multiline {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(match is_complete(context.input()) {
            true => ValidationResult::Valid(None),
            false => ValidationResult::Incomplete,
        })
    }
}

impl Lines {
    /// Opens standard input as a terminal or a pipe.
    ///
    /// # Errors
    /// If the terminal cannot be used.
    pub(super) fn from_stdin() -> Result<Lines> {
        if !std::io::stdin().is_terminal() {
            return Ok(Lines::Pipe(Box::new(std::io::stdin().lock())));
        }
        let config = Config::builder().max_history_size(KEPT)?.history_ignore_space(true).build();
        let mut editor = Editor::with_config(config).context("cannot use the terminal")?;
        editor.set_helper(Some(Multiline));
        let history = history_file();
        if let Some(file) = &history {
            // Loading fails in the first chat, which has no history.
            let _ = editor.load_history(file);
        }
        Ok(Lines::Terminal { editor: Box::new(editor), history })
    }

    /// Returns whether the input is a terminal.
    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Lines::Terminal { .. })
    }

    /// Returns the next message or command, without the marks of several lines; `None` at the end
    /// of the input.
    ///
    /// # Errors
    /// If the input cannot be read.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        match self {
            Lines::Terminal { editor, history } => match editor.readline("> ") {
                Ok(line) => {
                    // If this fails, only the history is lost.
                    let _ = editor.add_history_entry(line.as_str());
                    if let Some(file) = history {
                        let _ = editor.save_history(file);
                    }
                    Ok(Some(unquoted(&line)))
                }
                Err(ReadlineError::Eof | ReadlineError::Interrupted) => Ok(None),
                Err(error) => Err(error).context("cannot read from the terminal"),
            },
            Lines::Pipe(input) => read_message(input),
        }
    }
}

/// Reads lines until a message is complete. The end of the input completes a message too.
fn read_message(input: &mut dyn BufRead) -> Result<Option<String>> {
    let mut message = String::new();
    while input.read_line(&mut message).context("cannot read standard input")? > 0 {
        if is_complete(&message) {
            break;
        }
    }
    Ok((!message.is_empty()).then(|| unquoted(&message)))
}

/// Returns whether the message is complete.
fn is_complete(typed: &str) -> bool {
    let typed = typed.trim();
    match typed.strip_prefix(QUOTES) {
        Some(rest) => rest.ends_with(QUOTES),
        None => !typed.ends_with('\\'),
    }
}

/// Removes the marks of several lines.
fn unquoted(typed: &str) -> String {
    let trimmed = typed.trim();
    if let Some(rest) = trimmed.strip_prefix(QUOTES) {
        return rest.strip_suffix(QUOTES).unwrap_or(rest).trim().to_owned();
    }
    trimmed.replace("\\\n", "\n").trim_end_matches('\\').to_owned()
}

/// Returns the path `millrace/chat_history` in the user's state folder, which is created if needed.
fn history_file() -> Option<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = variable("XDG_STATE_HOME").or_else(|| Some(variable("HOME")?.join(".local/state")))?;
    let folder: &Path = &state.join("millrace");
    std::fs::create_dir_all(folder).ok()?;
    Some(folder.join("chat_history"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads all messages of a text.
    fn messages(text: &str) -> Vec<String> {
        let mut input = text.as_bytes();
        std::iter::from_fn(|| read_message(&mut input).unwrap()).collect()
    }

    #[test]
    fn lines_are_messages() {
        assert_eq!(messages("a\n b \n\nc"), ["a", "b", "", "c"]);
    }

    #[test]
    fn messages_may_have_several_lines() {
        assert_eq!(messages("one\\\ntwo\nthree\n"), ["one\ntwo", "three"]);
        assert_eq!(messages("\"\"\"one\n\ntwo\n\"\"\"\nthree"), ["one\n\ntwo", "three"]);
        assert_eq!(messages("\"\"\"one\"\"\"\n"), ["one"]);
    }

    #[test]
    fn an_input_that_ends_early_is_a_message() {
        assert_eq!(messages("\"\"\"one\ntwo"), ["one\ntwo"]);
        assert_eq!(messages("one\\"), ["one"]);
        assert!(!is_complete("\"\"\""));
    }
}
