//! JSON in the format of Python's `json.dumps`. Models were trained on its spaces.

use std::io::{self, Write};

use serde::Serialize;
use serde_json::ser::{CharEscape, Formatter, Serializer};
use serde_json::{Result, Value};

/// The arguments of `json.dumps`.
pub(super) struct JsonStyle {
    /// The number of spaces per level; `None` writes a single line.
    pub(super) indent: Option<usize>,
    /// Whether characters outside of ASCII are escaped.
    pub(super) ascii: bool,
    /// The separators between items and after keys.
    pub(super) separators: Option<Vec<String>>,
}

impl JsonStyle {
    pub(super) fn write(&self, value: &Value) -> Result<String> {
        let (mut item, mut key) = (if self.indent.is_some() { "," } else { ", " }, ": ");
        if let Some([own_item, own_key]) = self.separators.as_deref() {
            (item, key) = (own_item, own_key);
        }
        // The indentation comes from the template. The bound is larger than any template needs.
        let indent = self.indent.map(|indent| indent.min(64));
        let formatter = PythonFormatter { indent, ascii: self.ascii, item, key, depth: 0, filled: false };
        let mut bytes = Vec::new();
        value.serialize(&mut Serializer::with_formatter(&mut bytes, formatter))?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

struct PythonFormatter<'a> {
    indent: Option<usize>,
    ascii: bool,
    item: &'a str,
    key: &'a str,
    depth: usize,
    /// Whether a value was written between the innermost brackets.
    filled: bool,
}

impl PythonFormatter<'_> {
    fn open<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth += 1;
        self.filled = false;
        writer.write_all(bracket)
    }

    fn close<W: ?Sized + Write>(&mut self, writer: &mut W, bracket: &[u8]) -> io::Result<()> {
        self.depth -= 1;
        if std::mem::replace(&mut self.filled, true) {
            self.line(writer)?;
        }
        writer.write_all(bracket)
    }

    fn next<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if !first {
            writer.write_all(self.item.as_bytes())?;
        }
        self.line(writer)
    }

    fn line<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        match self.indent {
            Some(indent) => write!(writer, "\n{:width$}", "", width = indent * self.depth),
            None => Ok(()),
        }
    }
}

impl Formatter for PythonFormatter<'_> {
    fn begin_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"[")
    }

    fn end_array<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"]")
    }

    fn begin_array_value<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn end_array_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn begin_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.open(writer, b"{")
    }

    fn end_object<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        self.close(writer, b"}")
    }

    fn begin_object_key<W: ?Sized + Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        self.next(writer, first)
    }

    fn begin_object_value<W: ?Sized + Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(self.key.as_bytes())
    }

    fn end_object_value<W: ?Sized + Write>(&mut self, _: &mut W) -> io::Result<()> {
        self.filled = true;
        Ok(())
    }

    fn write_string_fragment<W: ?Sized + Write>(&mut self, writer: &mut W, text: &str) -> io::Result<()> {
        if !self.ascii {
            return writer.write_all(text.as_bytes());
        }
        for c in text.chars() {
            if c.is_ascii() {
                writer.write_all(&[c as u8])?;
                continue;
            }
            for unit in c.encode_utf16(&mut [0; 2]) {
                write!(writer, "\\u{unit:04x}")?;
            }
        }
        Ok(())
    }

    fn write_f64<W: ?Sized + Write>(&mut self, writer: &mut W, value: f64) -> io::Result<()> {
        writer.write_all(super::repr::float(value).as_bytes())
    }

    fn write_char_escape<W: ?Sized + Write>(&mut self, writer: &mut W, escape: CharEscape) -> io::Result<()> {
        let text: &[u8] = match escape {
            CharEscape::Quote => b"\\\"",
            CharEscape::ReverseSolidus => b"\\\\",
            CharEscape::Solidus => b"/",
            CharEscape::Backspace => b"\\b",
            CharEscape::FormFeed => b"\\f",
            CharEscape::LineFeed => b"\\n",
            CharEscape::CarriageReturn => b"\\r",
            CharEscape::Tab => b"\\t",
            CharEscape::AsciiControl(byte) => return write!(writer, "\\u{byte:04x}"),
        };
        writer.write_all(text)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nested_values_have_the_format_of_python() {
        let value = json!({"a": [1, {"b": null}], "c": {}, "d": [], "e": "\u{1}😀\"\n", "f": 1.0});
        let one_line = JsonStyle { indent: None, ascii: true, separators: None };
        assert_eq!(
            one_line.write(&value).unwrap(),
            r#"{"a": [1, {"b": null}], "c": {}, "d": [], "e": "\u0001\ud83d\ude00\"\n", "f": 1.0}"#
        );
        let indented = JsonStyle { indent: Some(1), ascii: false, separators: None };
        assert_eq!(
            indented.write(&json!({"a": [1, {"b": []}]})).unwrap(),
            "{\n \"a\": [\n  1,\n  {\n   \"b\": []\n  }\n ]\n}"
        );
    }
}
