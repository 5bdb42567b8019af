//! The entry point for grammars of clients, which may not panic or hang. `cargo xtask fuzz` runs it
//! with libFuzzer. The inputs in `fuzz/seeds` also run as a normal test.
#![allow(clippy::unwrap_used, reason = "the target searches for panics")]

use std::sync::{Arc, OnceLock};

use millrace_text::test_support::{self, EOS};
use serde_json::Value;
use tokio::runtime::Runtime;

use crate::grammar::{Grammar, GrammarCompiler, GrammarError};

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

#[cfg(test)]
mod tests {
    use millrace_text::test_support::replay_seeds;

    #[test]
    fn grammar_seeds_pass() {
        replay_seeds("grammars", super::grammars);
    }
}
