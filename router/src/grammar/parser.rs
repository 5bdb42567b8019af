//! From a grammar to a parser. The work and the memory are what the grammar asks for, up to llguidance's
//! limits, which do not bound all of it; see [`worker`](super::worker) for what does.

use std::fmt;
use std::panic::AssertUnwindSafe;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use llguidance::api::{ParserLimits, StopReason, TopLevelGrammar};
use llguidance::{JsonCompileOptions, ParserFactory, TokenParser, panic_utils};
use serde_json::Value;
use toktrie::{InferenceCapabilities, SimpleVob};

use super::bounds::too_complex;
use super::schema::{self, Purpose};
use super::vocabulary::Vocabulary;
use super::walk::{ParserMemory, mask_of};
use super::{Grammar, GrammarError, Unenforced};
use crate::engine::{Mask, thread_time};

/// Grammars are compiled recursively.
pub(super) const STACK: usize = 64 << 20;

/// The largest parser that a grammar may be compiled to, in bytes. Each request that follows the grammar
/// has a copy of it.
const LARGEST_PARSER: usize = 32 << 20;

/// Between two parts of JSON there may be so much white space: a space, or a new line with its indentation. Models write
/// compact and pretty-printed JSON like this. Runs of spaces and empty lines would only fill an answer.
const WHITE_SPACE: &str = r"\x20|\x0A(\x20{0,32}|\x09{0,16})";

/// Bounds on work and memory of a grammar and of each request that follows it.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // One or two kilobytes each.
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// A grammar that can be followed, by any number of requests.
pub struct Compiled {
    /// Never advanced; each request has its own copy.
    prototype: Mutex<TokenParser>,
    first: Mask,
    vocab_size: u32,
    bytes: usize,
    /// Where the parsers of requests that follow it are counted.
    memory: ParserMemory,
    unenforced: Unenforced,
    /// What the mask of a token has cost lately, in nanoseconds: a moving average over all requests.
    mask_cost: AtomicU64,
}

impl fmt::Debug for Compiled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiled").field("vocab_size", &self.vocab_size).finish_non_exhaustive()
    }
}

impl Compiled {
    /// The tokens that may come first.
    pub fn first(&self) -> Mask {
        self.first.clone()
    }

    /// Keywords of its schemas that do not bind what is generated.
    pub fn unenforced(&self) -> &Unenforced {
        &self.unenforced
    }

    pub(super) fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    /// The memory of the parser, which is about what each request that follows the grammar begins with.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn memory(&self) -> &ParserMemory {
        &self.memory
    }

    /// A parser at the beginning of the grammar that shares no state with others.
    pub(super) fn parser(&self) -> TokenParser {
        self.prototype.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }

    /// CPU time that the mask of a token takes, from what others took.
    pub(super) fn mask_cost(&self) -> Duration {
        Duration::from_nanos(self.mask_cost.load(Ordering::Relaxed))
    }

    /// The mask of a token has taken this CPU time.
    pub(super) fn observe(&self, cost: Duration) {
        let cost = cost.as_nanos() as u64;
        // Two requests at the same time may lose an observation, which does no harm.
        let before = self.mask_cost.load(Ordering::Relaxed);
        self.mask_cost.store(before - before / 8 + cost / 8, Ordering::Relaxed);
    }
}

/// Compiles grammars for one vocabulary.
pub(super) struct Factory {
    factory: ParserFactory,
    memory: ParserMemory,
}

impl Factory {
    /// # Errors
    /// [`GrammarError::Invalid`] if llguidance cannot use the vocabulary.
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let capabilities = InferenceCapabilities::default();
        let mut factory = ParserFactory::new(&vocabulary.environment(), capabilities, &slices)
            .map_err(|error| invalid(&error))?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(Factory { factory, memory: ParserMemory::default() })
    }

    /// Compiles a grammar for a model with this many tokens, on this thread, which needs a stack of [`STACK`]
    /// bytes. llguidance catches its own panics.
    ///
    /// # Errors
    /// [`GrammarError`] says what is wrong with the grammar.
    pub(super) fn compile(&self, grammar: &Grammar, vocab_size: u32) -> Result<Compiled, GrammarError> {
        let mut unenforced = Unenforced::default();
        let source = source(grammar, &mut unenforced)?;
        let mut parser = self.factory.create_parser(source).map_err(|error| invalid(&error))?;
        parser.start_without_prompt();
        let since = thread_time();
        let first = caught(|| next_mask(&mut parser)).map_err(|error| invalid(&error))?;
        let mask_cost = thread_time().saturating_sub(since);
        let first = mask_of(&first, vocab_size)
            .ok_or_else(|| GrammarError::Invalid("no text of this vocabulary begins like that".into()))?;
        let bytes = parser_bytes(&parser);
        if bytes > LARGEST_PARSER {
            let most = LARGEST_PARSER >> 20;
            return Err(too_complex(format!("its parser has {} MiB; at most {most} are kept", bytes >> 20)));
        }
        let mask_cost = AtomicU64::new(mask_cost.as_nanos() as u64);
        let (prototype, memory) = (Mutex::new(parser), self.memory.clone());
        Ok(Compiled { prototype, first, vocab_size, bytes, memory, unenforced, mask_cost })
    }
}

/// The tokens that may come next; those that end the text where it is complete and nothing can follow.
///
/// # Errors
/// Why no mask can be computed.
pub(super) fn next_mask(parser: &mut TokenParser) -> anyhow::Result<SimpleVob> {
    match parser.stop_reason() {
        StopReason::NotStopped => parser.compute_mask(),
        _ => Ok(parser.token_env.tok_trie().eos_token_set()),
    }
}

/// Runs `work`, whose panics become errors.
///
/// # Errors
/// Those of `work`, and its panics.
pub(super) fn caught<T>(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
    panic_utils::catch_unwind(AssertUnwindSafe(work))
}

/// The memory of a parser's lexer: nearly all that is its own, and not the grammar's.
pub(super) fn parser_bytes(parser: &TokenParser) -> usize {
    parser.parser.lexer_stats().num_bytes
}

fn source(grammar: &Grammar, unenforced: &mut Unenforced) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match grammar {
        Grammar::Json(schema) => {
            TopLevelGrammar::from_json_schema(with_options(schema, Purpose::Answer, "", unenforced)?)
        }
        Grammar::Regex(expression) => TopLevelGrammar::from_regex(unanchored(expression)),
        Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        Grammar::Calls { rules, schemas, answer } => {
            let mut text = rules.clone();
            for (name, schema) in schemas {
                let schema = with_options(schema, Purpose::Arguments, name, unenforced)?;
                text += &format!("{name}: %json {schema}\n");
            }
            if let Some(schema) = answer {
                let schema = with_options(schema, Purpose::Answer, "", unenforced)?;
                text += &format!("answer: %json {schema}\n");
            }
            TopLevelGrammar::from_lark(text)
        }
    })
}

/// A schema as llguidance takes it, which says how it is to be taken. What a client has said of that is overwritten. `name` is
/// the rule that it becomes.
fn with_options(
    schema: &Value,
    purpose: Purpose,
    name: &str,
    unenforced: &mut Unenforced,
) -> Result<Value, GrammarError> {
    let mut schema = Value::Object(schema::adapt(schema, purpose, name, unenforced)?);
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.into()),
        // Exactly one is not to be had from a grammar; one at least is.
        coerce_one_of: true,
        lenient: purpose == Purpose::Arguments,
        // Some models write `\u00fc` for `ü`. Without this the grammar would turn the escape into a control character.
        json_allow_general_unicode_escapes: true,
        ..Default::default()
    };
    options.apply_to(&mut schema);
    Ok(schema)
}

/// An expression is matched as a whole anyway; that it says so itself is no fault.
fn unanchored(expression: &str) -> &str {
    let expression = expression.strip_prefix('^').unwrap_or(expression);
    match expression.strip_suffix('$') {
        // An escaped dollar is one of the text.
        Some(rest) if rest.chars().rev().take_while(|&c| c == '\\').count() % 2 == 0 => rest,
        _ => expression,
    }
}

fn invalid(error: &anyhow::Error) -> GrammarError {
    GrammarError::Invalid(described(error))
}

/// The first line of an error, which is meant for the author of the grammar; what follows is about the parser's insides.
pub(super) fn described(error: &anyhow::Error) -> String {
    const LONGEST: usize = 300;
    let text = error.to_string();
    let line = text.lines().next().unwrap_or_default().trim();
    if line.starts_with("panic:") {
        return "it could not be understood".into();
    }
    // The parser has come to its end before anything was written.
    if line.starts_with("NoExtension") {
        return "there is no text that it describes".into();
    }
    line.chars().take(LONGEST).collect()
}
