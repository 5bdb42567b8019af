//! Values in Python's format.

use std::fmt::Write;

use minijinja::Value;
use minijinja::value::ValueKind;

/// The depth of nested lists that are printed. Deeper lists occur only by mistake.
const MAX_DEPTH: usize = 128;

/// Returns `str(value)`. An undefined value is empty, as in Jinja2.
pub(super) fn printed(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.to_owned(),
        None if value.is_undefined() => String::new(),
        None => {
            let mut text = String::new();
            write_repr(value, &mut text, 0);
            text
        }
    }
}

/// Appends `repr(value)` to `out`.
pub(super) fn write_repr(value: &Value, out: &mut String, depth: usize) {
    if depth > MAX_DEPTH {
        return out.push_str("...");
    }
    match value.kind() {
        ValueKind::Undefined => out.push_str("Undefined"),
        ValueKind::None => out.push_str("None"),
        ValueKind::Bool => out.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => match f64::try_from(value.clone()) {
            Ok(number) if !value.is_integer() => out.push_str(&float(number)),
            _ => out.push_str(&value.to_string()),
        },
        ValueKind::String => write_text(value.as_str().unwrap_or_default(), out),
        ValueKind::Seq => {
            out.push('[');
            for (index, item) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&item, out, depth + 1);
            }
            out.push(']');
        }
        ValueKind::Map => {
            out.push('{');
            for (index, key) in value.try_iter().into_iter().flatten().enumerate() {
                out.push_str(if index > 0 { ", " } else { "" });
                write_repr(&key, out, depth + 1);
                out.push_str(": ");
                write_repr(&value.get_item(&key).unwrap_or_default(), out, depth + 1);
            }
            out.push('}');
        }
        _ => out.push_str(&value.to_string()),
    }
}

/// Returns the `repr` of a `float`. Rust and Python switch to exponents at the same numbers but
/// write them differently.
pub(super) fn float(number: f64) -> String {
    if !number.is_finite() {
        return number.to_string().to_lowercase();
    }
    let text = format!("{number:?}");
    match text.split_once('e') {
        None => text,
        Some((digits, exponent)) => {
            let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |rest| ('-', rest));
            format!("{}e{sign}{exponent:0>2}", digits.strip_suffix(".0").unwrap_or(digits))
        }
    }
}

/// Writes the `repr` of a `str`: in single quotes, unless it contains single quotes and no double
/// quotes.
fn write_text(text: &str, out: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    out.push(quote);
    for c in text.chars() {
        match c {
            '\n' => out.push_str("\\n"),
            '\r' => out.push_str("\\r"),
            '\t' => out.push_str("\\t"),
            '\\' => out.push_str("\\\\"),
            c if c == quote => out.extend(['\\', c]),
            // Writing to a String cannot fail.
            c if c.is_control() => _ = write!(out, "\\x{:02x}", u32::from(c)),
            c => out.push(c),
        }
    }
    out.push(quote);
}
