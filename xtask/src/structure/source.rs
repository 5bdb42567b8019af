//! Rust source text reduced to what the module graph needs.

/// Returns `text` without comments, string and character literals, and without the items that
/// `#[cfg(test)]` marks. Line breaks stay where they are.
pub(super) fn code_of(text: &str) -> String {
    without_tests(&without_literals(text))
}

fn without_literals(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let rest = &bytes[at..];
        let length = match rest {
            [b'/', b'/', ..] => rest.iter().position(|&b| b == b'\n').unwrap_or(rest.len()),
            [b'/', b'*', ..] => block_comment(rest),
            [b'r', b'"' | b'#', ..] if may_prefix(&out) => raw_string(rest).unwrap_or(0),
            [b'"', ..] => string(rest),
            [b'\'', b'\\', ..] => escaped_character(rest),
            [b'\'', ..] => character(rest),
            _ => 0,
        };
        if length == 0 {
            out.push(rest[0]);
            at += 1;
        } else {
            let skipped = &rest[..length.min(rest.len())];
            out.push(b' ');
            out.extend(skipped.iter().filter(|&&b| b == b'\n'));
            at += skipped.len();
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Whether an `r` after `before` can begin a raw string: it begins a word, or it is the second
/// letter of the prefix `br` or `cr`.
fn may_prefix(before: &[u8]) -> bool {
    let is_word = |byte: Option<&u8>| byte.is_some_and(|b| b.is_ascii_alphanumeric() || *b == b'_');
    match before {
        [rest @ .., b'b' | b'c'] => !is_word(rest.last()),
        _ => !is_word(before.last()),
    }
}

/// Length of a block comment, which may hold others.
fn block_comment(text: &[u8]) -> usize {
    let (mut depth, mut at) = (0, 0);
    while at + 1 < text.len() {
        match &text[at..at + 2] {
            b"/*" => (depth, at) = (depth + 1, at + 2),
            b"*/" => (depth, at) = (depth - 1, at + 2),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// Length of a raw string, or `None` if this is a raw identifier.
fn raw_string(text: &[u8]) -> Option<usize> {
    let hashes = text[1..].iter().take_while(|&&b| b == b'#').count();
    if text.get(1 + hashes) != Some(&b'"') {
        return None;
    }
    let end: Vec<u8> = std::iter::once(b'"').chain(std::iter::repeat_n(b'#', hashes)).collect();
    let start = 2 + hashes;
    let found = text[start..].windows(end.len()).position(|window| window == end);
    Some(found.map_or(text.len(), |found| start + found + end.len()))
}

/// Length of a string: up to the closing mark.
fn string(text: &[u8]) -> usize {
    let mut at = 1;
    while at < text.len() {
        match text[at] {
            b'\\' => at += 2,
            b'"' => return at + 1,
            _ => at += 1,
        }
    }
    text.len()
}

/// Length of a character literal that begins with a backslash. The character after the backslash
/// belongs to the literal even if it is a quotation mark or another backslash.
fn escaped_character(text: &[u8]) -> usize {
    let closing = text.iter().skip(3).position(|&b| b == b'\'');
    closing.map_or(text.len(), |closing| 3 + closing + 1)
}

/// Length of a character literal, or 0 for a lifetime.
fn character(text: &[u8]) -> usize {
    let first = text.get(1).copied().unwrap_or(b' ');
    let width = match first {
        0..=0x7f => 1,
        0xc0..=0xdf => 2,
        0xe0..=0xef => 3,
        _ => 4,
    };
    if text.get(1 + width) == Some(&b'\'') { width + 2 } else { 0 }
}

/// Drops each item that follows `#[cfg(test)]`: up to its semicolon or its closing brace.
fn without_tests(code: &str) -> String {
    const MARK: &str = "#[cfg(test)]";
    let mut out = String::with_capacity(code.len());
    let mut rest = code;
    while let Some(at) = rest.find(MARK) {
        out.push_str(&rest[..at]);
        let item = &rest[at + MARK.len()..];
        rest = &item[item_length(item)..];
    }
    out.push_str(rest);
    out
}

fn item_length(item: &str) -> usize {
    let mut depth = 0_usize;
    for (at, byte) in item.bytes().enumerate() {
        match byte {
            b'{' | b'(' | b'[' => depth += 1,
            b')' | b']' => depth = depth.saturating_sub(1),
            b'}' => {
                depth = depth.saturating_sub(1);
                if depth == 0 {
                    return at + 1;
                }
            }
            b';' if depth == 0 => return at + 1,
            _ => {}
        }
    }
    item.len()
}

#[cfg(test)]
mod tests {
    use super::code_of;

    #[test]
    fn comments_literals_and_tests_are_left_out() {
        let text = "use a::B; // use c::D;\n/* use e::F; /* use g::H; */ */ let s = \"use i::J;\";\n\
                    let r = r#\"use k::L;\"#; let c = '\"'; let life: &'a str = x;\n\
                    #[cfg(test)]\nmod tests { use m::N; }\n#[cfg(test)] use o::P;\nuse q::R;";
        let code = code_of(text);
        let left: Vec<&str> = code.match_indices("use ").map(|(at, _)| &code[at + 4..at + 5]).collect();
        assert_eq!(left, ["a", "q"], "{code}");
        assert!(code.contains("&'a str"), "{code}");
    }

    #[test]
    fn code_after_an_escaped_character_is_kept() {
        for literal in [r"'\\'", r"'\''", r"'\n'", r"'\x41'", r"'\u{1f600}'", r"b'\\'", r"b'\''"] {
            let code = code_of(&format!("f({literal}); crate::a::b(); let c = 'x';"));
            assert!(code.ends_with("); crate::a::b(); let c =  ;"), "{literal}: {code}");
        }
    }

    #[test]
    fn raw_strings_of_bytes_have_no_escapes() {
        assert_eq!(code_of(r##"f(br"\"); g(cr#"""#); h(r"\");"##), "f(b ); g(c ); h( );");
    }
}
