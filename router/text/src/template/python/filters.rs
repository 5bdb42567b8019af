//! Jinja2 filters that minijinja lacks or implements differently.

use minijinja::filters;
use minijinja::value::{Kwargs, Rest, ValueKind, from_args};
use minijinja::{Environment, Error, ErrorKind, State, Value};

use super::json::JsonStyle;
use super::methods::center;
use super::repr::printed;

pub(super) fn install(environment: &mut Environment<'_>) {
    environment.add_filter("tojson", tojson);
    environment.add_filter("string", |value: &Value| printed(value));
    environment.add_filter("pprint", |value: &Value| printed(value));
    environment.add_filter("length", length);
    environment.add_filter("count", length);
    environment.add_filter("join", join);
    environment.add_filter("int", int);
    environment.add_filter("float", float);
    environment.add_filter("round", round);
    environment.add_filter("replace", replace);
    environment.add_filter("indent", indent);
    environment.add_filter("truncate", truncate);
    environment
        .add_filter("center", |text: &str, width: Option<usize>| center(text, width.unwrap_or(80), ' '));
    environment.add_filter("wordcount", wordcount);
    environment.add_filter("striptags", striptags);
    environment.add_filter("urlencode", urlencode);
}

fn tojson(value: Value, indent: Option<usize>, options: Kwargs) -> Result<Value, Error> {
    let failed = |e: serde_json::Error| Error::new(ErrorKind::BadSerialization, e.to_string());
    let indent = match indent {
        Some(indent) => Some(indent),
        None => options.get::<Option<usize>>("indent")?,
    };
    let style = JsonStyle {
        indent,
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        separators: options.get::<Option<Vec<String>>>("separators")?,
    };
    let sort = options.get::<Option<bool>>("sort_keys")?.unwrap_or(false);
    options.assert_all_used()?;
    let mut value = serde_json::to_value(value).map_err(failed)?;
    if sort {
        value.sort_all_objects();
    }
    Ok(Value::from(style.write(&value).map_err(failed)?))
}

/// The length of Jinja2's undefined value is 0.
fn length(value: &Value) -> Result<usize, Error> {
    if value.is_undefined() { Ok(0) } else { filters::length(value) }
}

/// The arguments of a filter by position or by name. Arguments by position take precedence.
struct Arguments {
    places: Vec<Value>,
    names: Kwargs,
}

impl Arguments {
    fn new(given: &[Value]) -> Result<Self, Error> {
        let (places, names): (Rest<Value>, Kwargs) = from_args(given)?;
        Ok(Arguments { places: places.0, names })
    }

    fn get(&self, place: usize, name: &str) -> Option<Value> {
        self.places.get(place).cloned().or_else(|| self.names.get::<Value>(name).ok())
    }
}

fn join(value: &Value, given: Rest<Value>) -> Result<String, Error> {
    let arguments = Arguments::new(&given)?;
    let between = arguments.get(0, "d").map(|text| printed(&text)).unwrap_or_default();
    let attribute = arguments.get(1, "attribute").map(|name| printed(&name));
    let mut joined = String::new();
    for (index, mut item) in value.try_iter()?.enumerate() {
        for name in attribute.iter().flat_map(|path| path.split('.')) {
            item = item.get_attr(name)?;
        }
        joined.push_str(if index > 0 { &between } else { "" });
        joined.push_str(&printed(&item));
    }
    Ok(joined)
}

/// Returns `int()` of a number or of a text in a base, else the truncated `float()`, else the
/// default.
fn int(value: &Value, given: Rest<Value>) -> Result<Value, Error> {
    let arguments = Arguments::new(&given)?;
    let base = arguments.get(1, "base").and_then(|base| base.as_usize()).unwrap_or(10);
    let number = match value.as_str() {
        Some(text) => {
            let text = text.trim().replace('_', "");
            whole(&text, base as u32).or_else(|| truncated(text.parse().ok()?))
        }
        None => i128::try_from(value.clone())
            .ok()
            .or_else(|| truncated(f64::try_from(value.clone()).ok().filter(|_| is_number(value))?)),
    };
    Ok(number.map(Value::from).or_else(|| arguments.get(0, "default")).unwrap_or(Value::from(0)))
}

fn is_number(value: &Value) -> bool {
    matches!(value.kind(), ValueKind::Number | ValueKind::Bool)
}

fn whole(text: &str, base: u32) -> Option<i128> {
    let (sign, digits) = match text.strip_prefix('-') {
        Some(digits) => (-1, digits),
        None => (1, text.strip_prefix('+').unwrap_or(text)),
    };
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let digits = digits.strip_prefix(prefix).unwrap_or(digits);
    let plain = (2..=36).contains(&base) && digits.starts_with(|c: char| c.is_digit(base));
    i128::from_str_radix(digits, base).ok().filter(|_| plain).map(|number| sign * number)
}

fn truncated(number: f64) -> Option<i128> {
    (number.is_finite() && number.abs() < 1e38).then_some(number as i128)
}

fn float(value: &Value, given: Rest<Value>) -> Result<f64, Error> {
    let number = match value.as_str() {
        Some(text) => text.trim().parse().ok(),
        None if value.kind() == ValueKind::Bool => Some(f64::from(u8::from(value.is_true()))),
        None => f64::try_from(value.clone()).ok().filter(|_| is_number(value)),
    };
    let default = Arguments::new(&given)?.get(0, "default").and_then(|value| f64::try_from(value).ok());
    Ok(number.or(default).unwrap_or(0.0))
}

/// Implements Python's `round`, which rounds halves to the even neighbor.
fn round(value: Value, given: Rest<Value>) -> Result<Value, Error> {
    let arguments = Arguments::new(&given)?;
    let precision = arguments.get(0, "precision").map_or(Ok(0), i32::try_from)?.clamp(-30, 30);
    let method = arguments.get(1, "method").map(|method| printed(&method));
    let number = f64::try_from(value.clone())?;
    let scale = 10f64.powi(precision);
    let rounded = match method.as_deref() {
        Some("ceil") => (number * scale).ceil() / scale,
        Some("floor") => (number * scale).floor() / scale,
        Some("common") | None => {
            if let (true, Ok(number)) = (value.is_integer(), i128::try_from(value)) {
                return Ok(Value::from(round_whole(number, precision)));
            }
            match usize::try_from(precision) {
                // The digits spell the number's exact value, as in Python.
                Ok(digits) => format!("{number:.digits$}").parse().unwrap_or(number),
                Err(_) => (number * scale).round_ties_even() / scale,
            }
        }
        Some(_) => {
            return Err(Error::new(ErrorKind::InvalidOperation, "method must be common, ceil or floor"));
        }
    };
    Ok(Value::from(rounded))
}

fn round_whole(number: i128, precision: i32) -> i128 {
    let Some(step) = 10i128.checked_pow(precision.min(0).unsigned_abs()) else { return 0 };
    let (below, rest) = (number.div_euclid(step), number.rem_euclid(step));
    let up = match (2 * rest).cmp(&step) {
        std::cmp::Ordering::Greater => true,
        std::cmp::Ordering::Equal => below % 2 != 0,
        std::cmp::Ordering::Less => false,
    };
    (below + i128::from(up)) * step
}

fn replace(text: String, old: String, new: String, count: Option<usize>) -> String {
    match count {
        Some(count) => text.replacen(&old, &new, count),
        None => text.replace(&old, &new),
    }
}

fn indent(text: &str, given: Rest<Value>) -> Result<String, Error> {
    let arguments = Arguments::new(&given)?;
    let before = match arguments.get(0, "width") {
        None => " ".repeat(4),
        Some(width) => match width.as_str() {
            Some(text) => text.to_owned(),
            // The bound is needed because the width comes from the template.
            None => " ".repeat(usize::try_from(width)?.min(1024)),
        },
    };
    let wanted = |place, name| arguments.get(place, name).is_some_and(|value| value.is_true());
    let (first, blank) = (wanted(1, "first"), wanted(2, "blank"));
    let mut indented = String::new();
    for (index, line) in text.split('\n').enumerate() {
        indented.push_str(if index > 0 { "\n" } else { "" });
        if (index == 0 && first) || (index > 0 && (blank || !line.is_empty())) {
            indented.push_str(&before);
        }
        indented.push_str(line);
    }
    Ok(indented)
}

fn truncate(text: &str, given: Rest<Value>) -> Result<String, Error> {
    let arguments = Arguments::new(&given)?;
    let number =
        |place, name: &str, default| arguments.get(place, name).and_then(|n| n.as_usize()).unwrap_or(default);
    let (length, leeway) = (number(0, "length", 255), number(3, "leeway", 5));
    let kills = arguments.get(1, "killwords").is_some_and(|value| value.is_true());
    let end = arguments.get(2, "end").map_or_else(|| "...".to_owned(), |end| printed(&end));
    if text.chars().count() <= length.saturating_add(leeway) {
        return Ok(text.to_owned());
    }
    let kept: String = text.chars().take(length.saturating_sub(end.chars().count())).collect();
    let kept = if kills { &kept } else { kept.rsplit_once(' ').map_or(kept.as_str(), |(words, _)| words) };
    Ok(format!("{kept}{end}"))
}

fn wordcount(text: &str) -> usize {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').filter(|word| !word.is_empty()).count()
}

fn striptags(text: &str) -> String {
    let (mut plain, mut rest) = (String::new(), text);
    while let Some((before, tag)) = rest.split_once('<') {
        plain.push_str(before);
        rest = match tag.split_once('>') {
            Some((_, after)) => after,
            None => {
                plain.push('<');
                tag
            }
        };
    }
    plain.push_str(rest);
    plain.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn urlencode(_: &State, value: &Value) -> Result<String, Error> {
    if value.as_str().is_some() || value.try_iter().is_err() {
        return Ok(quoted(&printed(value), b"/"));
    }
    let mut pairs = Vec::new();
    let is_map = value.kind() == ValueKind::Map;
    for item in value.try_iter()? {
        let (name, value) = match is_map {
            true => (item.clone(), value.get_item(&item)?),
            false => (item.get_item_by_index(0)?, item.get_item_by_index(1)?),
        };
        let part = |value: &Value| quoted(&printed(value), b"").replace("%20", "+");
        pairs.push(format!("{}={}", part(&name), part(&value)));
    }
    Ok(pairs.join("&"))
}

/// Percent-encodes all bytes except letters, digits, `_.-~` and the bytes of `safe`.
fn quoted(text: &str, safe: &[u8]) -> String {
    let mut quoted = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'_' | b'.' | b'-' | b'~' => quoted.push(char::from(byte)),
            byte if byte.is_ascii_alphanumeric() || safe.contains(&byte) => quoted.push(char::from(byte)),
            byte => quoted.push_str(&format!("%{byte:02X}")),
        }
    }
    quoted
}
