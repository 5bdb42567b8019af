//! Bounds on a template's source, checked in one pass before it is parsed.
//!
//! The parser bounds how deep statements and brackets are nested. It does not bound chains such as
//! `- - - a`, `a|b|c`, `a.b.c` or `elif`, although each link takes a stack frame. A template comes
//! from the model folder, and a stack overflow would end the server. Therefore templates are
//! checked here and then parsed on a stack that is large enough for every template that passes.

use crate::error::TemplateError;

/// The maximum length of a template in bytes. Published templates have less than 20 kB.
const MAX_BYTES: usize = 1 << 20;
/// The maximum number of links in the nested chains of one tag. Published templates have at most
/// 62.
const MAX_CHAIN: usize = 1000;
/// The maximum number of `elif` branches. Published templates have at most 20.
const MAX_ELIFS: usize = 500;
/// The stack for parsing in bytes: more than 40 kB for each link of the longest chain, while the
/// parser uses a few kB.
const STACK_BYTES: usize = 64 << 20;

/// Refuses a template that is too large or has too long expressions.
pub(super) fn check(source: &str) -> Result<(), TemplateError> {
    if source.len() > MAX_BYTES {
        let text = format!("it has {} bytes, and at most {MAX_BYTES} are allowed", source.len());
        return Err(TemplateError::Syntax(text));
    }
    let bytes = source.as_bytes();
    let (mut at, mut elifs) = (0, 0);
    while let Some(begin) = find(bytes, at, b"{") {
        let close: &[u8] = match bytes.get(begin + 1) {
            Some(b'{') => b"}}",
            Some(b'%') => b"%}",
            Some(b'#') => {
                let Some(end) = find(bytes, begin + 2, b"#}") else { return Ok(()) };
                at = end + 2;
                continue;
            }
            _ => {
                at = begin + 1;
                continue;
            }
        };
        let inside = begin + 2;
        let word = if close == b"%}" { first_word(bytes, inside) } else { b"" };
        elifs += usize::from(word == b"elif");
        if elifs > MAX_ELIFS {
            return Err(TemplateError::Syntax(format!("it has more than {MAX_ELIFS} `elif` branches")));
        }
        if word == b"raw" {
            // The text up to the end of the block is not parsed.
            at = end_of_raw(bytes, inside);
            continue;
        }
        at = tag(bytes, inside, close).map_err(|at| {
            let line = 1 + bytes[..at].iter().filter(|&&byte| byte == b'\n').count();
            let what =
                format!("an expression has more than {MAX_CHAIN} operators in one another (line {line})");
            TemplateError::Syntax(what)
        })?;
    }
    Ok(())
}

/// Runs `parse` on a thread whose stack is large enough for every template that passes [`check`].
pub(super) fn on_large_stack<T: Send>(
    parse: impl FnOnce() -> Result<T, TemplateError> + Send,
) -> Result<T, TemplateError> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("template".into()).stack_size(STACK_BYTES);
        let thread = thread
            .spawn_scoped(scope, parse)
            .map_err(|error| TemplateError::Syntax(format!("no thread to parse it: {error}")))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Reads a tag after its opening. Returns the end of the tag, or the position at which its chains
/// become too long as an error.
fn tag(bytes: &[u8], mut at: usize, close: &[u8]) -> Result<usize, usize> {
    // The number of links in each open bracket. An item after a comma begins a new chain.
    let (mut open, mut chain, mut total) = (Vec::new(), 0usize, 0usize);
    while let Some(&byte) = bytes.get(at) {
        if open.is_empty() && bytes[at..].starts_with(close) {
            return Ok(at + close.len());
        }
        let mut next = at + 1;
        match byte {
            b'\'' | b'"' => next = end_of_string(bytes, next, byte),
            b'(' | b'[' | b'{' => {
                (chain, total) = (chain + 1, total + 1);
                open.push(std::mem::take(&mut chain));
            }
            b')' | b']' | b'}' => {
                total -= chain;
                chain = open.pop().unwrap_or(0);
            }
            b',' | b':' => total -= std::mem::take(&mut chain),
            _ if byte.is_ascii_whitespace() => {}
            _ => {
                if is_word(byte) {
                    while bytes.get(next).is_some_and(|&byte| is_word(byte)) {
                        next += 1;
                    }
                }
                (chain, total) = (chain + 1, total + 1);
            }
        }
        if total > MAX_CHAIN {
            return Err(at);
        }
        at = next;
    }
    Ok(at)
}

fn is_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || !byte.is_ascii()
}

fn find(bytes: &[u8], from: usize, what: &[u8]) -> Option<usize> {
    bytes.get(from..)?.windows(what.len()).position(|window| window == what).map(|at| from + at)
}

/// Returns the first word of a block, after a white space control sign.
fn first_word(bytes: &[u8], at: usize) -> &[u8] {
    let rest = &bytes[at.min(bytes.len())..];
    let begin = rest.iter().position(|byte| !byte.is_ascii_whitespace() && !matches!(byte, b'-' | b'+'));
    let rest = &rest[begin.unwrap_or(rest.len())..];
    let end = rest.iter().position(|&byte| !is_word(byte)).unwrap_or(rest.len());
    &rest[..end]
}

/// Returns the position after the string that begins before `at`.
fn end_of_string(bytes: &[u8], mut at: usize, quote: u8) -> usize {
    while let Some(&byte) = bytes.get(at) {
        match byte {
            b'\\' => at += 2,
            _ if byte == quote => return at + 1,
            _ => at += 1,
        }
    }
    bytes.len()
}

/// Returns the position of the block that ends the raw text, or the end of the template.
fn end_of_raw(bytes: &[u8], mut at: usize) -> usize {
    while let Some(begin) = find(bytes, at, b"{%") {
        if first_word(bytes, begin + 2) == b"endraw" {
            return begin;
        }
        at = begin + 2;
    }
    bytes.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChatTemplate;

    fn compile(source: &str) -> Result<(), TemplateError> {
        ChatTemplate::new(source, None, None, None, 1).map(|_| ())
    }

    #[test]
    fn long_chains_are_refused_instead_of_overflowing_the_stack() {
        let n = 100_000;
        for source in [
            format!("{{{{ {}1 }}}}", "- ".repeat(n)),
            format!("{{{{ {}1 }}}}", "not ".repeat(n)),
            format!("{{{{ {}1{} }}}}", "(".repeat(n), ")".repeat(n)),
            format!("{{{{ {}1{} }}}}", "[".repeat(n), "]".repeat(n)),
            format!("{{{{ a{} }}}}", ".b".repeat(n)),
            format!("{{{{ a{} }}}}", "[0]".repeat(n)),
            format!("{{{{ a{} }}}}", "()".repeat(n)),
            format!("{{{{ a{} }}}}", "|upper".repeat(n)),
            format!("{{{{ 1{} }}}}", "+1".repeat(n)),
            format!("{{{{ 1{} }}}}", " ~ 'a'".repeat(n)),
            format!("{{{{ 1{} }}}}", "**1".repeat(n)),
            format!("{{{{ 1{} }}}}", " is odd".repeat(n)),
            format!("{{{{ 1{} }}}}", " if 1 else 1".repeat(n)),
            format!("{{{{ {}1{} }}}}", "f(".repeat(n), ")".repeat(n)),
            format!("{{{{ {{'}}}}': 1{} }}}}", "+1".repeat(n)),
            format!("{{% set x = {}1 %}}", "- ".repeat(n)),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(n)),
            "{% if 1 %}".repeat(n),
            "{% for a in b %}".repeat(n),
            format!("{{% raw %}}{{{{ '{{% endraw %}}{{{{ {}1 }}}}", "- ".repeat(n)),
            format!("{{# ' #}}{{{{ {}1 }}}}", "- ".repeat(n)),
            format!("{{% filter {}upper %}}a{{% endfilter %}}", "upper|".repeat(n)),
            "x".repeat(MAX_BYTES + 1),
        ] {
            let error = compile(&source);
            assert!(matches!(error, Err(TemplateError::Syntax(_))), "{}: {error:?}", &source[..40]);
        }
    }

    #[test]
    fn allowed_templates_fit_the_stack() {
        let n = MAX_CHAIN - 2;
        for source in [
            format!("{{{{ {}1 }}}}", "- ".repeat(n)),
            format!("{{{{ {}1 }}}}", "not ".repeat(n)),
            format!("{{{{ a{} }}}}", ".b".repeat(n / 2)),
            format!("{{{{ a{} }}}}", "|upper".repeat(n / 2)),
            format!("{{{{ 1{} }}}}", "+1".repeat(n / 2)),
            format!("{{% if 1 %}}{}{{% endif %}}", "{% elif 1 %}".repeat(MAX_ELIFS)),
        ] {
            assert_eq!(compile(&source), Ok(()), "{}", &source[..40]);
        }
    }

    #[test]
    fn long_tables_are_not_chains() {
        let entries: String = (0..2000).map(|i| format!("'k{i}': ['a', {i}], ")).collect();
        assert_eq!(compile(&format!("{{% set t = {{{entries}}} %}}{{{{ t['k7'][1] }}}}")), Ok(()));
    }
}
