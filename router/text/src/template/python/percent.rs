//! The operator `'…' % value`. minijinja has the filter `format` instead, so the operator is
//! rewritten as the filter.

/// Rewrites the operator after a quoted text as the filter. Only the text between `{{` or `{%` and
/// its end is read, once from left to right.
pub(in crate::template) fn without_percent(source: &str) -> String {
    let (mut written, mut at, mut copied) = (String::with_capacity(source.len()), 0, 0);
    while at + 1 < source.len() {
        let length = match &source.as_bytes()[at..at + 2] {
            b"{#" => source[at..].find("#}").map_or(source.len() - at, |end| end + 2),
            b"{{" | b"{%" => {
                written.push_str(&source[copied..at]);
                copied = at + tag_length(&source[at..]);
                expression(&source[at..copied], &mut written);
                copied - at
            }
            _ => 1,
        };
        at += length;
    }
    written + &source[copied..]
}

/// Returns the length of a tag in bytes. Tag ends within quotes do not count.
fn tag_length(tag: &str) -> usize {
    let (bytes, end) = (tag.as_bytes(), if tag.starts_with("{{") { b"}}" } else { b"%}" });
    let mut at = 2;
    while at < bytes.len() {
        if bytes[at..].starts_with(end) {
            return at + 2;
        }
        at += if matches!(bytes[at], b'\'' | b'"') { quoted_length(&bytes[at..]) } else { 1 };
    }
    bytes.len()
}

/// Returns the length of the quoted text at the start of `bytes`.
fn quoted_length(bytes: &[u8]) -> usize {
    let mut at = 1;
    while at < bytes.len() {
        match bytes[at] {
            b'\\' => at += 2,
            byte if byte == bytes[0] => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

fn expression(tag: &str, written: &mut String) {
    let (bytes, mut at) = (tag.as_bytes(), 0);
    let mut copied = 0;
    while at < bytes.len() {
        if !matches!(bytes[at], b'\'' | b'"') {
            at += 1;
            continue;
        }
        at += quoted_length(&bytes[at..]);
        let operator = at + blank(&bytes[at..]);
        let is_operator = bytes.get(operator) == Some(&b'%') && bytes.get(operator + 1) != Some(&b'}');
        let operand = operator + 1 + blank(bytes.get(operator + 1..).unwrap_or_default());
        let length = if is_operator { operand_length(&bytes[operand..]) } else { 0 };
        if length == 0 {
            continue;
        }
        let value = &tag[operand..operand + length];
        let arguments = tuple(value).unwrap_or(value);
        written.extend([&tag[copied..at], "|format(", arguments, ")"]);
        at = operand + length;
        copied = at;
    }
    written.push_str(&tag[copied..]);
}

fn blank(bytes: &[u8]) -> usize {
    bytes.iter().take_while(|byte| byte.is_ascii_whitespace()).count()
}

/// Returns the length of the value at the start of `bytes`: a name, a number, a quoted text or
/// brackets, with the subscripts and calls that follow.
fn operand_length(bytes: &[u8]) -> usize {
    let name = |bytes: &[u8]| {
        bytes.iter().take_while(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.')).count()
    };
    let mut at = match bytes.first() {
        Some(b'(' | b'[' | b'{') => bracketed_length(bytes),
        Some(b'\'' | b'"') => quoted_length(bytes),
        _ => name(bytes),
    };
    while at > 0 && at < bytes.len() {
        at += match bytes[at] {
            b'(' | b'[' => bracketed_length(&bytes[at..]),
            b'.' => 1 + name(&bytes[at + 1..]),
            _ => break,
        };
    }
    at
}

/// Returns the length up to the bracket that closes the first one, or 0 if there is none.
fn bracketed_length(bytes: &[u8]) -> usize {
    let (mut depth, mut at) = (0usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'\'' | b'"' => {
                at += quoted_length(&bytes[at..]);
                continue;
            }
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        at += 1;
        if depth == 0 {
            return at;
        }
    }
    0
}

/// Returns the text between the brackets of a tuple.
fn tuple(value: &str) -> Option<&str> {
    let inner = value.strip_prefix('(')?.strip_suffix(')')?;
    let (bytes, mut at) = (inner.as_bytes(), 0);
    while at < bytes.len() {
        at += match bytes[at] {
            b',' => return Some(inner.trim_end().trim_end_matches(',')),
            b'\'' | b'"' => quoted_length(&bytes[at..]),
            b'(' | b'[' | b'{' => bracketed_length(&bytes[at..]).max(1),
            _ => 1,
        };
    }
    None
}

#[cfg(test)]
mod tests {
    use super::without_percent;

    #[test]
    fn the_percent_operator_becomes_a_filter() {
        for (source, expected) in [
            ("{{ '%s' % a.b[0] ~ 'x' }}", "{{ '%s'|format(a.b[0]) ~ 'x' }}"),
            ("{{ '%s %s' % (a, f(1, 2)) }}", "{{ '%s %s'|format(a, f(1, 2)) }}"),
            ("{{ '%s' % (a) }}", "{{ '%s'|format((a)) }}"),
            ("{%- set x = \"%d\"%3 -%}", "{%- set x = \"%d\"|format(3) -%}"),
            ("{% set x = 'a' %}{{ 7 % 2 }}", "{% set x = 'a' %}{{ 7 % 2 }}"),
            ("'%s' % a {# '%s' % a #}", "'%s' % a {# '%s' % a #}"),
            ("{{ '}}' % a }}", "{{ '}}'|format(a) }}"),
            // This is invalid before and after the rewriting.
            ("{{ '%s' % (a }}", "{{ '%s'|format((a })}"),
            ("{{ 'open", "{{ 'open"),
            ("{{ 'a' % ü }}", "{{ 'a' % ü }}"),
        ] {
            assert_eq!(without_percent(source), expected, "{source}");
        }
    }
}
