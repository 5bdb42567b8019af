//! Compiling of one grammar on the current thread. Its time and memory depend on the grammar, up to
//! llguidance's limits. These do not bound everything; the limits of [`worker`](super::worker) do.

use std::sync::Arc;

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::{JsonCompileOptions, ParserFactory, TokenParser};
use serde_json::Value;
use toktrie::InferenceCapabilities;

use super::compiled::{CompiledGrammar, CompiledParts};
use super::definition::Grammar;
use super::error::GrammarError;
use super::llguidance_support::{catch_panics, error_summary, mask_of, next_mask, parser_bytes};
use super::parser_memory::ParserMemory;
use super::repeated_keys::QuoteTokens;
use super::schema::{self, SchemaPurpose, UnenforcedKeywords, without_broken_tools};
use super::vocabulary::Vocabulary;
use millrace_text::thread_time;

/// The stack for compiling, which is recursive, in bytes.
pub(super) const STACK_BYTES: usize = 64 << 20;

/// The maximum memory of a compiled grammar's parser in bytes. Each request that uses the grammar
/// has a copy of it.
const MAX_PARSER_BYTES: usize = 32 << 20;

/// The white space that is allowed between two parts of JSON: a space, or a line break with
/// indentation. This covers compact and pretty-printed JSON. Runs of spaces and empty lines would
/// only fill an answer.
const WHITE_SPACE: &str = r"\x20|\x0A(\x20{0,32}|\x09{0,16})";

/// Returns the bounds on work and memory of a grammar and of each request that uses it.
fn limits() -> ParserLimits {
    ParserLimits {
        max_items_in_row: 2000,
        initial_lexer_fuel: 1_000_000,
        step_lexer_fuel: 200_000,
        step_max_items: 50_000,
        // Each state takes one or two kilobytes.
        max_lexer_states: 20_000,
        max_grammar_size: 200_000,
        precompute_large_lexemes: false,
        verbose_errors: false,
    }
}

/// Compiles grammars for one vocabulary.
pub(super) struct GrammarFactory {
    factory: ParserFactory,
    memory: ParserMemory,
    quotes: Arc<QuoteTokens>,
}

impl GrammarFactory {
    /// Creates a factory for a vocabulary.
    ///
    /// # Errors
    /// [`GrammarError::Invalid`] if llguidance cannot use the vocabulary.
    pub(super) fn new(vocabulary: &Vocabulary) -> Result<Self, GrammarError> {
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let capabilities = InferenceCapabilities::default();
        let environment = vocabulary.environment();
        let quotes = Arc::new(QuoteTokens::of(environment.tok_trie()));
        let mut factory =
            ParserFactory::new(&environment, capabilities, &slices).map_err(|error| invalid(&error))?;
        *factory.limits_mut() = limits();
        factory.quiet();
        Ok(GrammarFactory { factory, memory: ParserMemory::default(), quotes })
    }

    /// Compiles a grammar for a model with `vocab_size` tokens on the current thread, which needs a
    /// stack of [`STACK_BYTES`] bytes. llguidance catches its own panics.
    ///
    /// # Errors
    /// [`GrammarError`] says what is wrong with the grammar.
    pub(super) fn compile(
        &self,
        grammar: &Grammar,
        vocab_size: u32,
    ) -> Result<CompiledGrammar, GrammarError> {
        let (mut parser, unenforced) = match self.parser(grammar) {
            Ok(created) => created,
            Err(error) => self.parser_without_broken_tools(grammar).ok_or(error)??,
        };
        parser.start_without_prompt();
        let since = thread_time();
        let first = catch_panics(|| next_mask(&mut parser)).map_err(|error| invalid(&error))?;
        let mask_cost = thread_time().saturating_sub(since);
        let first = mask_of(&first, vocab_size).ok_or_else(|| {
            GrammarError::Invalid("no token of this vocabulary can begin a matching text".into())
        })?;
        let bytes = parser_bytes(&parser);
        if bytes > MAX_PARSER_BYTES {
            let most = MAX_PARSER_BYTES >> 20;
            return Err(GrammarError::too_complex(format!(
                "its parser has {} MiB; at most {most} are kept",
                bytes >> 20
            )));
        }
        let memory = self.memory.clone();
        let quotes = unenforced.has_open_objects.then(|| self.quotes.clone());
        let parts = CompiledParts { first, vocab_size, bytes, memory, unenforced, quotes, mask_cost };
        Ok(CompiledGrammar::new(parser, parts))
    }
}

impl GrammarFactory {
    /// Creates a parser for a grammar.
    fn parser(&self, grammar: &Grammar) -> Result<(TokenParser, UnenforcedKeywords), GrammarError> {
        let mut unenforced = UnenforcedKeywords::default();
        let source = llguidance_source(grammar, &mut unenforced)?;
        let parser = self.factory.create_parser(source).map_err(|error| invalid(&error))?;
        Ok((parser, unenforced))
    }

    /// Creates a parser for a grammar of tool calls whose tools include some with schemas that
    /// cannot be compiled. The arguments of these tools become any JSON, because one tool must not
    /// make the others useless. Returns `None` if each tool can be compiled by itself.
    fn parser_without_broken_tools(
        &self,
        grammar: &Grammar,
    ) -> Option<Result<(TokenParser, UnenforcedKeywords), GrammarError>> {
        let compiles = |schema: &Value| self.parser(&tool_grammar(schema.clone())).is_ok();
        let (grammar, left_out) = without_broken_tools(grammar, &compiles)?;
        Some(
            self.parser(&grammar)
                .map(|(parser, unenforced)| (parser, UnenforcedKeywords { left_out, ..unenforced })),
        )
    }
}

/// Returns a grammar of the arguments of one tool.
fn tool_grammar(schema: Value) -> Grammar {
    Grammar::Calls { rules: "start: json_0\n".into(), schemas: vec![("json_0".into(), schema)], answer: None }
}

fn llguidance_source(
    grammar: &Grammar,
    unenforced: &mut UnenforcedKeywords,
) -> Result<TopLevelGrammar, GrammarError> {
    Ok(match grammar {
        Grammar::Json(schema) => {
            TopLevelGrammar::from_json_schema(with_options(schema, SchemaPurpose::Answer, "", unenforced)?)
        }
        Grammar::Regex(expression) => TopLevelGrammar::from_regex(unanchored(expression)),
        Grammar::Lark(text) => TopLevelGrammar::from_lark(text.clone()),
        Grammar::Calls { rules, schemas, answer } => {
            let mut text = rules.clone();
            for (name, schema) in schemas {
                let schema = with_options(schema, SchemaPurpose::Arguments, name, unenforced)?;
                text += &format!("{name}: %json {schema}\n");
            }
            if let Some(schema) = answer {
                let schema = with_options(schema, SchemaPurpose::Answer, "", unenforced)?;
                text += &format!("answer: %json {schema}\n");
            }
            TopLevelGrammar::from_lark(text)
        }
        Grammar::AfterReasoning { rules, answer } => {
            let mut whole = TopLevelGrammar::from_lark(rules.clone());
            for mut grammar in llguidance_source(answer, unenforced)?.grammars {
                grammar.name = Some("answer".into());
                whole.grammars.push(grammar);
            }
            whole
        }
    })
}

/// Adapts a schema for llguidance and adds the compile options to it. Options that the client wrote
/// are overwritten. `name` is the name of its rule.
fn with_options(
    schema: &Value,
    purpose: SchemaPurpose,
    name: &str,
    unenforced: &mut UnenforcedKeywords,
) -> Result<Value, GrammarError> {
    let mut schema = Value::Object(schema::adapt(schema, purpose, name, unenforced)?);
    let options = JsonCompileOptions {
        whitespace_pattern: Some(WHITE_SPACE.into()),
        // A grammar cannot enforce that exactly one alternative matches. It enforces that at least
        // one matches.
        coerce_one_of: true,
        lenient: purpose == SchemaPurpose::Arguments,
        // Some models write `\u00fc` for `ü`. Without this option the grammar would turn the escape
        // into a control character.
        json_allow_general_unicode_escapes: true,
        ..Default::default()
    };
    options.apply_to(&mut schema);
    Ok(schema)
}

/// Removes the anchors of an expression, which is matched as a whole anyway.
fn unanchored(expression: &str) -> &str {
    let expression = expression.strip_prefix('^').unwrap_or(expression);
    match expression.strip_suffix('$') {
        // An escaped dollar sign is part of the text.
        Some(rest) if rest.chars().rev().take_while(|&c| c == '\\').count() % 2 == 0 => rest,
        _ => expression,
    }
}

fn invalid(error: &anyhow::Error) -> GrammarError {
    GrammarError::Invalid(error_summary(error))
}
