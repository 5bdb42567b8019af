//! Methods of Python's strings, lists and dictionaries that minijinja-contrib lacks.

use minijinja::value::{ValueKind, from_args};
use minijinja::{Error, ErrorKind, State, Value};

/// The maximum width of padded text in characters. The width comes from the template.
const MAX_WIDTH: usize = 1 << 16;

/// Calls a method that minijinja does not implement for the value.
pub(super) fn call(state: &State, value: &Value, name: &str, given: &[Value]) -> Result<Value, Error> {
    let found = match (value.as_str(), value.kind()) {
        (Some(text), _) => of_text(text, name, given)?,
        (None, ValueKind::Seq) if name == "index" => {
            let (wanted,): (Value,) = from_args(given)?;
            let place = value.try_iter()?.position(|item| item == wanted);
            Some(Value::from(place.ok_or_else(|| missing("value is not in the list"))?))
        }
        (None, ValueKind::Seq | ValueKind::Map) if name == "copy" => {
            let () = from_args(given)?;
            Some(value.clone())
        }
        _ => None,
    };
    match found {
        Some(value) => Ok(value),
        None => minijinja_contrib::pycompat::unknown_method_callback(state, value, name, given),
    }
}

fn missing(what: &str) -> Error {
    Error::new(ErrorKind::InvalidOperation, what.to_owned())
}

fn of_text(text: &str, name: &str, given: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "rsplit" => {
            let (between, most): (Option<&str>, Option<i64>) = from_args(given)?;
            Value::from(rsplit(text, between, most))
        }
        "partition" | "rpartition" => {
            let (between,): (&str,) = from_args(given)?;
            let last = name == "rpartition";
            let parts = if last { text.rsplit_once(between) } else { text.split_once(between) };
            let parts = match parts {
                Some((before, after)) => [before, between, after],
                None if last => ["", "", text],
                None => [text, "", ""],
            };
            Value::from(parts.map(str::to_owned).to_vec())
        }
        "removeprefix" | "removesuffix" => {
            let (part,): (&str,) = from_args(given)?;
            let rest = if name == "removeprefix" { text.strip_prefix(part) } else { text.strip_suffix(part) };
            Value::from(rest.unwrap_or(text))
        }
        "find" | "rfind" | "index" | "rindex" => {
            let (part, from, to): (&str, Option<i64>, Option<i64>) = from_args(given)?;
            let place = found(text, part, (from, to), name.starts_with('r'));
            match place {
                None if name.ends_with("index") => return Err(missing("substring not found")),
                place => Value::from(place.map_or(-1, |place| place as i64)),
            }
        }
        // minijinja-contrib implements these methods without bounds.
        "startswith" | "endswith" if given.len() > 1 => {
            let (part, from, to): (&str, Option<i64>, Option<i64>) = from_args(given)?;
            let (_, range) = part_of(text, (from, to));
            Value::from(if name == "startswith" { range.starts_with(part) } else { range.ends_with(part) })
        }
        "swapcase" => {
            let () = from_args(given)?;
            let swapped = text.chars().map(|c| match c.is_uppercase() {
                true => c.to_lowercase().collect::<String>(),
                false => c.to_uppercase().collect(),
            });
            Value::from(swapped.collect::<String>())
        }
        "casefold" => {
            let () = from_args(given)?;
            Value::from(text.to_lowercase().replace('ß', "ss"))
        }
        "expandtabs" => {
            let (size,): (Option<usize>,) = from_args(given)?;
            Value::from(expand_tabs(text, size.unwrap_or(8).min(MAX_WIDTH)))
        }
        "encode" => {
            let (_, _): (Option<&str>, Option<&str>) = from_args(given)?;
            Value::from_bytes(text.as_bytes().to_vec())
        }
        _ => return padding_method(text, name, given),
    }))
}

/// Calls a method that pads a string.
fn padding_method(text: &str, name: &str, given: &[Value]) -> Result<Option<Value>, Error> {
    Ok(Some(match name {
        "zfill" => {
            let (width,): (usize,) = from_args(given)?;
            let (sign, digits) = text.split_at(usize::from(text.starts_with(['+', '-'])));
            let zeros = width.min(MAX_WIDTH).saturating_sub(text.chars().count());
            Value::from(format!("{sign}{}{digits}", "0".repeat(zeros)))
        }
        "ljust" | "rjust" | "center" => {
            let (width, fill): (usize, Option<char>) = from_args(given)?;
            let fill = fill.unwrap_or(' ');
            let padding = fill.to_string().repeat(width.min(MAX_WIDTH).saturating_sub(text.chars().count()));
            Value::from(match name {
                "ljust" => format!("{text}{padding}"),
                "rjust" => format!("{padding}{text}"),
                _ => center(text, width, fill),
            })
        }
        _ => return Ok(None),
    }))
}

/// Splits from the right, at most `most` times. Without a separator, it splits at white space.
fn rsplit(text: &str, between: Option<&str>, most: Option<i64>) -> Vec<String> {
    let most = most.and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX - 1);
    let mut parts: Vec<String> = match between {
        Some(between) => text.rsplitn(most + 1, between).map(str::to_owned).collect(),
        None => {
            let (mut parts, mut rest) = (Vec::new(), text.trim_end());
            while parts.len() < most
                && let Some((before, last)) = rest.rsplit_once(char::is_whitespace)
            {
                parts.push(last.to_owned());
                rest = before.trim_end();
            }
            parts.extend((!rest.trim_start().is_empty()).then(|| rest.trim_start().to_owned()));
            parts
        }
    };
    parts.reverse();
    parts
}

/// Returns the position of the first character and the text between two positions. Negative
/// positions count from the end.
fn part_of(text: &str, (from, to): (Option<i64>, Option<i64>)) -> (usize, &str) {
    let length = text.chars().count() as i64;
    let place = |place: i64| (if place < 0 { place + length } else { place }).clamp(0, length) as usize;
    let (from, to) = (place(from.unwrap_or(0)), place(to.unwrap_or(length)));
    let byte = |place: usize| text.char_indices().nth(place).map_or(text.len(), |(at, _)| at);
    (from, text.get(byte(from)..byte(to)).unwrap_or_default())
}

/// Returns the position of a part of a text, in characters.
fn found(text: &str, part: &str, bounds: (Option<i64>, Option<i64>), last: bool) -> Option<usize> {
    let (from, range) = part_of(text, bounds);
    let at = if last { range.rfind(part) } else { range.find(part) }?;
    Some(from + range[..at].chars().count())
}

fn expand_tabs(text: &str, size: usize) -> String {
    let (mut expanded, mut column) = (String::new(), 0);
    for c in text.chars() {
        match c {
            '\t' => {
                let spaces = size.saturating_sub(column % size.max(1));
                expanded.push_str(&" ".repeat(spaces));
                column += spaces;
            }
            c => {
                expanded.push(c);
                column = if matches!(c, '\n' | '\r') { 0 } else { column + 1 };
            }
        }
    }
    expanded
}

/// Implements `str.center`. If the padding is odd, a text of even length gets the additional
/// character on the left.
pub(super) fn center(text: &str, width: usize, fill: char) -> String {
    let width = width.min(MAX_WIDTH);
    let missing = width.saturating_sub(text.chars().count());
    let left = missing / 2 + (missing & width & 1);
    let fill = |count: usize| fill.to_string().repeat(count);
    format!("{}{text}{}", fill(left), fill(missing - left))
}
