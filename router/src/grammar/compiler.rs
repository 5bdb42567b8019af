//! From a grammar to a parser. Compiling a stranger's grammar is work that the stranger chooses; so there are few at a
//! time, each bounded in size, work and memory, on threads of their own. What was compiled is kept for the next request.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use serde_json::Value;
use tokio::sync::{Semaphore, oneshot};
use toktrie::InferenceCapabilities;

use super::walk::mask_of;
use super::{Grammar, GrammarError, bounds, vocabulary};
use crate::engine::Mask;
use crate::text::Tokenizer;

/// Grammars that are compiled at the same time. One that outlasts the client's patience still counts.
const WORKERS: usize = 2;
/// How long a client waits for its turn.
const TURN: Duration = Duration::from_secs(10);
/// How long a grammar may take. The limits below end the work itself, mostly far earlier.
const TIME: Duration = Duration::from_secs(5);
/// Grammars that are kept, and bytes of their texts.
const KEPT: usize = 64;
const KEPT_BYTES: usize = 1 << 20;
/// Grammars are compiled recursively.
pub(super) const STACK: usize = 64 << 20;

/// Between two parts of JSON there may be so much white space: enough for pretty printing, too little to fill an answer with.
const WHITE_SPACE: &str = r"[\x20\x0A\x0D\x09]{1,20}";

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
    prototype: Mutex<Matcher>,
    first: Mask,
    vocab_size: u32,
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

    pub(super) fn vocab_size(&self) -> u32 {
        self.vocab_size
    }

    pub(super) fn matcher(&self) -> Matcher {
        self.prototype.lock().unwrap_or_else(PoisonError::into_inner).deep_clone()
    }
}

/// Compiles grammars for one model. Clones are the same compiler.
#[derive(Clone)]
pub struct Compiler(Arc<Inner>);

struct Inner {
    tokenizer: Tokenizer,
    eos: Arc<[u32]>,
    /// Made with the first grammar, when the size of the model's vocabulary is known.
    factory: OnceLock<Result<ParserFactory, GrammarError>>,
    workers: Arc<Semaphore>,
    kept: Mutex<Kept>,
}

impl fmt::Debug for Compiler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Compiler").finish_non_exhaustive()
    }
}

/// A kind of grammar and its text.
type Key = (std::mem::Discriminant<Grammar>, String);

/// The grammars that were used last, the newest at the end.
#[derive(Default)]
struct Kept {
    grammars: VecDeque<(Key, Arc<Compiled>)>,
    bytes: usize,
}

impl Compiler {
    /// A compiler for a model whose texts end with one of `eos`.
    pub fn new(tokenizer: Tokenizer, eos: Arc<[u32]>) -> Self {
        let workers = Arc::new(Semaphore::new(WORKERS));
        Compiler(Arc::new(Inner {
            tokenizer,
            eos,
            factory: OnceLock::new(),
            workers,
            kept: Mutex::default(),
        }))
    }

    /// Compiles a grammar for a model with this many tokens, away from the async threads.
    ///
    /// # Errors
    /// [`GrammarError`] says what is wrong with it.
    pub async fn compile(&self, grammar: &Grammar, vocab_size: u32) -> Result<Arc<Compiled>, GrammarError> {
        let key = (std::mem::discriminant(grammar), bounds::check(grammar)?);
        if let Some(known) = self.kept().get(&key) {
            return Ok(known);
        }
        let turn = tokio::time::timeout(TURN, self.0.workers.clone().acquire_owned());
        let Ok(Ok(permit)) = turn.await else { return Err(GrammarError::Busy) };
        // Somebody else may have asked for the same meanwhile.
        if let Some(known) = self.kept().get(&key) {
            return Ok(known);
        }
        let (done, result) = oneshot::channel();
        let (compiler, grammar) = (self.clone(), grammar.clone());
        let work = move || {
            let compiled = compiler.compile_now(&grammar, vocab_size).map(Arc::new);
            if let Ok(compiled) = &compiled {
                compiler.kept().insert(key, compiled);
            }
            // Given back by the work itself, not when its client has left.
            drop(permit);
            let _ = done.send(compiled);
        };
        std::thread::Builder::new()
            .name("grammar".into())
            .stack_size(STACK)
            .spawn(work)
            .map_err(|_| GrammarError::Busy)?;
        match tokio::time::timeout(TIME, result).await {
            Ok(Ok(compiled)) => compiled,
            Ok(Err(_)) => Err(GrammarError::Invalid("it could not be compiled".into())),
            Err(_) => {
                let why = format!("it takes longer than {} s to compile", TIME.as_secs());
                Err(GrammarError::TooComplex(why))
            }
        }
    }

    /// Compiles a grammar on this thread, which needs a deep stack. llguidance catches its own panics.
    pub(super) fn compile_now(&self, grammar: &Grammar, vocab_size: u32) -> Result<Compiled, GrammarError> {
        let factory =
            self.0.factory.get_or_init(|| self.factory(vocab_size)).as_ref().map_err(Clone::clone)?;
        let parser = factory.create_parser(source(grammar)?);
        let mut matcher = Matcher::new(Ok(parser.map_err(|error| invalid(&error))?));
        let first = matcher.compute_mask_or_eos().map_err(|error| invalid(&error))?;
        let first = mask_of(&first, vocab_size)
            .ok_or_else(|| GrammarError::Invalid("no text of this vocabulary begins like that".into()))?;
        Ok(Compiled { prototype: Mutex::new(matcher), first, vocab_size })
    }

    fn factory(&self, vocab_size: u32) -> Result<ParserFactory, GrammarError> {
        let Inner { tokenizer, eos, .. } = &*self.0;
        let vocabulary = vocabulary::vocabulary(tokenizer, eos, tokenizer.size().min(vocab_size))?;
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&vocabulary, InferenceCapabilities::default(), &slices)
            .map_err(|error| invalid(&error))?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(factory)
    }

    fn kept(&self) -> std::sync::MutexGuard<'_, Kept> {
        self.0.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Kept {
    fn get(&mut self, key: &Key) -> Option<Arc<Compiled>> {
        let index = self.grammars.iter().position(|(known, _)| known == key)?;
        let found = self.grammars.remove(index)?;
        let compiled = found.1.clone();
        self.grammars.push_back(found);
        Some(compiled)
    }

    fn insert(&mut self, key: Key, compiled: &Arc<Compiled>) {
        if self.get(&key).is_some() {
            return;
        }
        self.bytes += key.1.len();
        self.grammars.push_back((key, compiled.clone()));
        while self.grammars.len() > KEPT || self.bytes > KEPT_BYTES {
            let Some((oldest, _)) = self.grammars.pop_front() else { break };
            self.bytes -= oldest.1.len();
        }
    }
}

fn source(grammar: &Grammar) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match grammar {
        Grammar::Json(schema) => TopLevelGrammar::from_json_schema(with_options(schema, false)?),
        Grammar::Regex(expression) => TopLevelGrammar::from_regex(unanchored(expression)),
        Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        Grammar::Calls { rules, schemas, answer } => {
            let mut text = rules.clone();
            for (name, schema) in schemas {
                text += &format!("{name}: %json {}\n", with_options(schema, true)?);
            }
            if let Some(schema) = answer {
                text += &format!("answer: %json {}\n", with_options(schema, false)?);
            }
            TopLevelGrammar::from_lark(text)
        }
    })
}

/// A schema that says how it is to be taken. What a client has said of that is overwritten.
fn with_options(schema: &Value, lenient: bool) -> Result<Value, GrammarError> {
    let mut schema = match schema {
        // True allows everything; and only an object can carry options.
        Value::Bool(true) => serde_json::json!({}),
        Value::Object(_) => schema.clone(),
        _ => return Err(GrammarError::Invalid("a JSON schema is an object".into())),
    };
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.into()),
        // Exactly one is not to be had from a grammar; one at least is.
        coerce_one_of: true,
        lenient,
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
