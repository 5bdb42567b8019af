//! Translation of grammars in GBNF, the language of llama.cpp, to llguidance's variant of Lark. The
//! EBNF of xgrammar, which vLLM takes, is almost the same language.
//!
//! llguidance has a lexer: it reads terminals, which are regular expressions, and combines them by
//! rules. GBNF has rules only. A rule that does not refer to itself, not even through other rules,
//! is a regular expression and becomes a terminal. In the other rules, elements in a row that are
//! regular become one terminal.
//!
//! | file | its job |
//! |---|---|
//! | `parse` | reads the rules |
//! | `write` | decides which rules are terminals, and writes Lark |

mod parse;
mod write;

/// The maximum number of bytes that are translated. It is also the bound of other grammars.
const MAX_BYTES: usize = 256 << 10;

/// Returns whether a grammar is written in GBNF and not in Lark: its first rule has `::=` after its
/// name.
pub fn is_gbnf(text: &str) -> bool {
    let mut rest = text.trim_start();
    while let Some(comment) = rest.strip_prefix('#').or_else(|| rest.strip_prefix("//")) {
        rest = comment.split_once('\n').map_or("", |(_, rest)| rest).trim_start();
    }
    let name = rest.bytes().take_while(|byte| parse::is_name(*byte)).count();
    name > 0 && rest[name..].trim_start().starts_with("::=")
}

/// Translates a grammar to Lark.
///
/// # Errors
/// The text names the line and the part that is wrong or has no translation.
pub fn to_lark(text: &str) -> Result<String, String> {
    if text.len() > MAX_BYTES {
        return Err(format!("grammar is too complex: more than {MAX_BYTES} bytes"));
    }
    parse::parse(text)
        .and_then(|grammar| write::write(&grammar))
        .map_err(|reason| format!("grammar is not valid: {reason}"))
}

#[cfg(test)]
mod tests;
