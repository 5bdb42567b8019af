//! Entry points for grammars of clients and answers of models, which may not panic or hang.
//! `cargo xtask fuzz` runs them with libFuzzer. The inputs in `fuzz/seeds` also run as normal
//! tests.
#![allow(clippy::unwrap_used, reason = "the target searches for panics")]

use std::sync::{Arc, OnceLock};

use millrace_text::test_support::{self, EOS};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::grammar::{Grammar, GrammarCompiler, GrammarError};
use crate::tools::{AllowedTools, AnswerDelta, ChannelParser, Tool, ToolCallParser, ToolChoice, ToolFormat};

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap())
}

/// Compiles a grammar up to its first mask. The first byte selects the kind of grammar.
pub fn grammars(data: &[u8]) {
    static COMPILER: OnceLock<GrammarCompiler> = OnceLock::new();
    let Some((&kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let grammar = match kind % 3 {
        0 => match serde_json::from_str::<Value>(text) {
            Ok(schema) => Grammar::Json(schema),
            Err(_) => return,
        },
        1 => Grammar::Regex(text.into()),
        _ => Grammar::Lark(text.into()),
    };
    let compiler = COMPILER.get_or_init(|| GrammarCompiler::new(test_support::tokenizer(), Arc::new([EOS])));
    match runtime().block_on(compiler.compile(&grammar, EOS + 1)) {
        Ok(compiled) => assert!(compiled.first().iter().any(|&word| word != 0), "{grammar:?}"),
        Err(GrammarError::Busy) => panic!("no other grammar is compiled: {grammar:?}"),
        Err(_) => {}
    }
}

/// Reads an answer with calls, whole and in pieces, which must agree. The first line names the
/// format, and the byte after it has the length of pieces and whether calls may be parallel.
pub fn calls(data: &[u8]) {
    let Some(end) = data.iter().position(|&byte| byte == b'\n') else { return };
    let Ok(format) = std::str::from_utf8(&data[..end]).unwrap_or_default().parse::<ToolFormat>() else {
        return;
    };
    let Some((&form, text)) = data[end + 1..].split_first() else { return };
    let tools = tools(form & 1 == 1);
    let text: Vec<char> = String::from_utf8_lossy(text).chars().collect();
    let pieces = text.chunks(usize::from(form >> 1).max(1)).map(|piece| piece.iter().collect());
    let whole = read_calls(format, &tools, std::iter::once(text.iter().collect()));
    assert_eq!(read_calls(format, &tools, pieces), whole, "{format:?}");
}

/// Two tools, with an argument of each kind.
fn tools(parallel: bool) -> AllowedTools {
    let properties = serde_json::json!({
        "s": {"type": "string"}, "n": {"type": "integer"}, "list": {"type": "array"}, "map": {"type": "object"}, "yes": {"type": "boolean"},
    });
    let tool =
        |name: &str| Tool { name: name.into(), parameters: serde_json::json!({"properties": properties}) };
    AllowedTools { tools: vec![tool("get"), tool("set")], choice: ToolChoice::Auto, parallel }
}

fn read_calls(format: ToolFormat, tools: &AllowedTools, pieces: impl Iterator<Item = String>) -> AnswerDelta {
    let mut whole = AnswerDelta::default();
    let calls = match format.channels() {
        Some(channels) => {
            let mut parser = ChannelParser::new(channels, Some(tools));
            pieces.for_each(|piece| whole.extend(parser.push(&piece)));
            whole.extend(parser.finish());
            parser.calls()
        }
        None => {
            let mut parser = ToolCallParser::new(format, tools);
            pieces.for_each(|piece| whole.extend(parser.push(&piece)));
            whole.extend(parser.finish());
            parser.calls()
        }
    };
    assert_eq!(whole.calls.len(), calls, "{format:?}");
    assert!(whole.calls.iter().all(|call| call.name.is_some()), "{format:?}");
    whole
}

#[cfg(test)]
mod tests {
    use millrace_text::test_support::{replay_seeds, seeds};

    use crate::tools::ToolFormat;

    #[test]
    fn grammar_seeds_pass() {
        replay_seeds("grammars", super::grammars);
    }

    #[test]
    fn call_seeds_pass() {
        replay_seeds("calls", super::calls);
        for format in ToolFormat::all() {
            let has_seed = |(_, seed): &(String, Vec<u8>)| seed.starts_with(format!("{format}\n").as_bytes());
            assert!(seeds("calls").iter().any(has_seed), "no answer of {format} in fuzz/seeds/calls");
        }
    }
}
