//! Splits a PTX text into tokens.

use crate::ParseError;

/// A token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Token<'a> {
    /// A name, a number, a directive or an opcode.
    Word(&'a str),
    /// The text between quotes.
    Text(&'a str),
    Sign(char),
}

/// A token and its line.
pub(super) type Located<'a> = (Token<'a>, u32);

fn is_word(c: u8) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, b'_' | b'$' | b'%' | b'.')
}

pub(super) fn tokens(text: &str) -> Result<Vec<Located<'_>>, ParseError> {
    let bytes = text.as_bytes();
    let mut out = Vec::new();
    let (mut i, mut line) = (0, 1);
    while i < bytes.len() {
        let start = i;
        match bytes[i] {
            b'\n' => {
                line += 1;
                i += 1;
            }
            b' ' | b'\t' | b'\r' => i += 1,
            b'/' if bytes.get(i + 1) == Some(&b'/') => {
                i += text[i..].find('\n').unwrap_or(text.len() - i);
            }
            b'"' => {
                let len = text[i + 1..].find('"').ok_or_else(|| error(line, "a quote has no end"))?;
                out.push((Token::Text(&text[i + 1..i + 1 + len]), line));
                i += len + 2;
            }
            c if is_word(c) => {
                while i < bytes.len() && (is_word(bytes[i]) || bytes[i..].starts_with(b"::")) {
                    i += if bytes[i] == b':' { 2 } else { 1 };
                }
                out.push((Token::Word(&text[start..i]), line));
            }
            c if c.is_ascii_punctuation() => {
                out.push((Token::Sign(c as char), line));
                i += 1;
            }
            _ => return Err(error(line, "a character that PTX does not have")),
        }
    }
    Ok(out)
}

pub(super) fn error(line: u32, message: impl Into<String>) -> ParseError {
    ParseError { line, message: message.into() }
}
