//! Tests grammars over a vocabulary of single bytes and one of word pieces.

use std::sync::Arc;
use std::time::Duration;

use millrace_text::Tokenizer;
use millrace_text::test_support::{self, EOS, still_clock};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::{Map, Value, json};

use super::*;
use crate::{Constraint, Mask};
use millrace_text::thread_time;

/// The model's vocabulary size. As in real models, it is larger than the tokenizer's.
const VOCAB: u32 = 300;

fn compiler() -> GrammarCompiler {
    GrammarCompiler::new(test_support::tokenizer(), Arc::new([EOS]))
}

async fn compile(grammar: &Grammar) -> Result<Arc<CompiledGrammar>, GrammarError> {
    let _still = still_clock();
    compiler().compile(grammar, VOCAB).await
}

fn regex(expression: &str) -> Grammar {
    Grammar::Regex(expression.into())
}

fn ids(mask: &Mask) -> Vec<u32> {
    (0..VOCAB.max(32 * mask.len() as u32))
        .filter(|id| mask.get(*id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1))
        .collect()
}

/// Follows a grammar with random tokens to its end, or for at most `most` tokens. With `hurry`, the
/// end is taken as soon as it is allowed.
fn random_walk(
    compiled: &Arc<CompiledGrammar>,
    eos: u32,
    seed: u64,
    most: usize,
    hurry: bool,
) -> (Vec<u32>, bool) {
    let mut random = StdRng::seed_from_u64(seed);
    let (mut walk, mut mask, mut tokens) =
        (GrammarMatcher::new(compiled.clone()), compiled.first(), Vec::new());
    while tokens.len() < most {
        let allowed = ids(&mask);
        let token = allowed[random.random_range(0..allowed.len())];
        if token == eos || hurry && allowed.contains(&eos) {
            return (tokens, true);
        }
        tokens.push(token);
        mask = walk.advance(token).unwrap();
    }
    (tokens, false)
}

fn text(tokenizer: &Tokenizer, tokens: &[u32]) -> String {
    let bytes: Vec<u8> = tokens.iter().flat_map(|&id| tokenizer.token_bytes(id).to_vec()).collect();
    String::from_utf8(bytes).expect("no half a character at the end")
}

#[tokio::test(start_paused = true)]
async fn the_end_is_allowed_where_the_text_is_complete_and_nothing_else_after_it() {
    let compiled = compile(&regex("ab?")).await.unwrap();
    let mut walk = GrammarMatcher::new(compiled.clone());
    assert_eq!(ids(&compiled.first()), [u32::from(b'a')]);
    assert_eq!(ids(&walk.advance(u32::from(b'a')).unwrap()), [u32::from(b'b'), EOS]);
    assert_eq!(ids(&walk.advance(u32::from(b'b')).unwrap()), [EOS]);
    // Another matcher is not affected.
    let mut other = GrammarMatcher::new(compiled);
    assert_eq!(ids(&other.advance(u32::from(b'a')).unwrap()), [u32::from(b'b'), EOS]);
    assert!(other.advance(u32::from(b'x')).is_err());
}

#[tokio::test(start_paused = true)]
async fn anchors_of_the_whole_text_are_accepted() {
    for expression in ["^ab$", "^ab", "ab$", "ab"] {
        let compiled = compile(&regex(expression)).await.unwrap();
        let (tokens, ended) = random_walk(&compiled, EOS, 1, 9, false);
        assert_eq!((text(&test_support::tokenizer(), &tokens).as_str(), ended), ("ab", true));
    }
    let compiled = compile(&regex(r"a\$")).await.unwrap();
    assert_eq!(text(&test_support::tokenizer(), &random_walk(&compiled, EOS, 1, 9, false).0), "a$");
}

#[tokio::test(start_paused = true)]
async fn every_random_walk_is_in_the_language() {
    let _still = still_clock();
    type Check = fn(&Value) -> bool;
    let user = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age"],
        "properties": {
            "name": {"type": "string", "maxLength": 8},
            "age": {"type": "integer", "minimum": 3, "maximum": 77},
            "tags": {"type": "array", "items": {"enum": ["x", "y"]}, "maxItems": 3},
        },
    });
    let cases: [(Value, Check); 5] = [
        (user, |v| {
            let age = v["age"].as_i64().unwrap();
            let tags = v["tags"].as_array().cloned().unwrap_or_default();
            v["name"].as_str().unwrap().chars().count() <= 8
                && (3..=77).contains(&age)
                && tags.len() <= 3
                && tags.iter().all(|tag| tag == "x" || tag == "y")
        }),
        (json!({"type": "object", "additionalProperties": {"type": "boolean"}}), |v| {
            v.as_object().unwrap().values().all(Value::is_boolean)
        }),
        (json!({"oneOf": [{"const": 1}, {"const": "b"}]}), |v| *v == 1 || v == "b"),
        (
            json!({"$ref": "#/$defs/list", "$defs": {"list": {"type": "object", "required": ["next"], "properties": {
            "next": {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/list"}]}}, "additionalProperties": false}}}),
            |v| v["next"].is_null() || v["next"].is_object(),
        ),
        (json!({"type": "string", "pattern": "^[a-c]{2,4}$"}), |v| {
            let text = v.as_str().unwrap();
            (2..=4).contains(&text.len()) && text.bytes().all(|byte| (b'a'..=b'c').contains(&byte))
        }),
    ];
    let compiler = compiler();
    let mut ends = 0;
    for (schema, check) in cases {
        let compiled = compiler.compile(&Grammar::Json(schema.clone()), VOCAB).await.unwrap();
        for seed in 0..20 {
            let (tokens, ended) = random_walk(&compiled, EOS, seed, 400, false);
            if ended {
                ends += 1;
                let text = text(&test_support::tokenizer(), &tokens);
                let value = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{text}: {error}"));
                assert!(check(&value), "{text} is not {schema}");
            }
        }
    }
    assert!(ends > 60, "only {ends} ends");
}

#[tokio::test(start_paused = true)]
async fn white_space_cannot_fill_an_answer() {
    let compiled =
        compile(&Grammar::Json(json!({"type": "array", "items": {"type": "integer"}}))).await.unwrap();
    let mut walk = GrammarMatcher::new(compiled.clone());
    let mut mask = walk.advance(u32::from(b'[')).unwrap();
    let space = u32::from(b' ');
    let spaces = (0..100).take_while(|_| {
        let more = ids(&mask).contains(&space);
        if more {
            mask = walk.advance(space).unwrap();
        }
        more
    });
    assert_eq!(spaces.count(), 1);
}

#[tokio::test(start_paused = true)]
#[ignore = "needs the published tokenizer of MILLRACE_TEST_DATA"]
async fn published_tokenizers_with_pieces_of_words_make_the_same_texts() {
    let _still = still_clock();
    let tokenizer = test_support::published_tokenizer();
    let eos = tokenizer.token_id("</s>").unwrap();
    let compiler = GrammarCompiler::new(tokenizer.clone(), Arc::new([eos]));
    let schema = json!({"type": "object", "properties": {"word": {"type": "string", "maxLength": 20}}, "required": ["word"], "additionalProperties": false});
    for vocab_size in [tokenizer.size(), 32 * 20 + 7] {
        let compiled = compiler.compile(&Grammar::Json(schema.clone()), vocab_size).await.unwrap();
        for seed in 0..30 {
            let (tokens, ended) = random_walk(&compiled, eos, seed, 120, true);
            assert!(ended, "{tokens:?}");
            assert!(tokens.iter().all(|&id| id < vocab_size && !tokenizer.is_special(id)), "{tokens:?}");
            let mut detokenizer = tokenizer.detokenizer(true, true);
            let shown: String = tokens.iter().map(|&id| detokenizer.push(id)).collect();
            let value: Value =
                serde_json::from_str(&shown).unwrap_or_else(|error| panic!("{shown}: {error}"));
            assert!(value["word"].is_string());
        }
    }
}

#[tokio::test(start_paused = true)]
async fn compiled_grammars_are_cached_and_the_oldest_evicted() {
    let _still = still_clock();
    let compiler = compiler();
    let first = compiler.compile(&regex("a"), VOCAB).await.unwrap();
    let same = compiler.compile(&regex("a"), VOCAB).await.unwrap();
    assert!(Arc::ptr_eq(&first, &same));
    let lark = compiler.compile(&Grammar::Lark("start: /a/".into()), VOCAB).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &lark));
    for i in 0..70 {
        compiler.compile(&regex(&format!("b{i}")), VOCAB).await.unwrap();
    }
    let again = compiler.compile(&regex("a"), VOCAB).await.unwrap();
    assert!(!Arc::ptr_eq(&first, &again));
}

#[tokio::test(start_paused = true)]
async fn a_model_without_end_tokens_supports_no_grammars() {
    let _still = still_clock();
    let compiler = GrammarCompiler::new(test_support::tokenizer(), Arc::default());
    let error = compiler.compile(&regex("a"), VOCAB).await.unwrap_err();
    assert!(error.to_string().starts_with("grammar is not supported"), "{error}");
}

fn object(fields: impl Iterator<Item = (String, Value)>) -> Value {
    Value::Object(fields.collect::<Map<_, _>>())
}

/// Regular expressions that are meant to keep a server busy.
const HOSTILE_EXPRESSIONS: [&str; 15] = [
    "(a|b)*a(a|b){500}",
    "(.*)*(.*)*x",
    r"\w{5000}",
    "(x+x+)+y",
    r"(\p{L}|\p{N}){0,3000}",
    "(",
    "[",
    "a(?=b)",
    "",
    "((a{30}){30}){30}",
    "(?:a{100}){100}",
    "a{99999999999999999999}",
    "[^\\x00-\\x{10FFFF}]",
    "\u{0}",
    "(?P<n>a)\\1",
];

/// An expression whose automaton has a state for each subset of positions.
fn search(i: usize) -> String {
    format!(".*a.{{{}}}", i + 1)
}

/// Lark grammars that are meant to keep a server busy.
fn hostile_larks() -> Vec<String> {
    let terminals = |n: usize, between: &str| {
        (0..n).map(|i| format!("/{}/", search(i))).collect::<Vec<_>>().join(between)
    };
    let rules = |name: &str| {
        (0..30).map(|i| format!("{name}{i}: {name}{} {name}{}\n", i + 1, i + 1)).collect::<String>()
    };
    vec![
        "start: a\na: a a | \"x\"".to_owned(),
        "start: start".into(),
        "start: x{5000}\nx: y{1,9000}\ny: \"a\"".into(),
        "nonsense".into(),
        String::new(),
        "start: <nothing>".into(),
        "start: <[7-99999999]>".into(),
        format!("start: {}\"a\"{}", "(".repeat(5000), ")".repeat(5000)),
        format!("start: A\nA: {}", terminals(30, " & ")),
        format!("start: A\nA: {}", terminals(30, " | ")),
        format!("start: a0\n{}a30: \"x\"\n", rules("a")),
        format!("start: A0\n{}A30: \"x\"\n", rules("A")),
    ]
}

/// Grammars that are meant to keep a server busy. Each is either refused or followed within a short
/// time.
fn hostile() -> Vec<Grammar> {
    let nested = |levels: usize| {
        (0..levels).fold(
            json!({"type": "string"}),
            |inner, _| json!({"properties": {"a": inner}, "required": ["a"]}),
        )
    };
    let doubling = |together: &str| {
        let level = |i: usize| {
            let next = json!({"$ref": format!("#/$defs/d{}", i + 1)});
            let twice =
                if together == "properties" { json!({"x": next, "y": next}) } else { json!([next, next]) };
            (format!("d{i}"), json!({together: twice}))
        };
        let last = ("d40".to_owned(), json!({"type": "string", "pattern": "a+"}));
        json!({"$ref": "#/$defs/d0", "$defs": object((0..40).map(level).chain([last]))})
    };
    let patterns = (0..30).map(|i| json!({"type": "string", "pattern": search(i)})).collect::<Vec<_>>();
    let nested_any_of =
        (0..20).fold(json!({"type": "string"}), |inner, i| json!({"pattern": search(i), "anyOf": [inner]}));
    let behind_references = json!({
        "allOf": (0..30).map(|i| json!({"$ref": format!("#/$defs/d{i}")})).collect::<Vec<_>>(),
        "$defs": object((0..30).map(|i| (format!("d{i}"), json!({"type": "string", "pattern": search(i)})))),
    });
    let choices = |i: usize| json!({"anyOf": (0..3).map(|j| json!({"properties": {format!("p{i}{j}"): {}}})).collect::<Vec<_>>()});
    let schemas = vec![
        nested(31),
        nested(60),
        doubling("allOf"),
        doubling("anyOf"),
        doubling("properties"),
        json!({"allOf": patterns}),
        nested_any_of,
        behind_references,
        json!({"allOf": (0..40).map(choices).collect::<Vec<_>>()}),
        json!({"type": "object", "properties": object((0..500).map(|i| (format!("k{i}"), json!({}))))}),
        json!({"type": "array", "minItems": 1e300}),
        json!({"type": "array", "minItems": 9999, "items": {"type": "array", "minItems": 9999}}),
        json!({"type": "string", "minLength": 9000, "maxLength": 10000, "pattern": "(a|b)*a(a|b){300}"}),
        json!({"type": "string", "pattern": "^.*a.{30}$", "maxLength": 30}),
        json!({"type": "number", "multipleOf": 0.000001, "minimum": 1e-300, "maximum": 1e300}),
        json!({"type": "integer", "multipleOf": 7919, "minimum": 1, "maximum": 1_000_000_000_000_000u64}),
        json!({"allOf": (2..60).map(|i| json!({"multipleOf": i * i + 1})).collect::<Vec<_>>(), "type": "integer"}),
        json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}),
        json!({"$ref": "http://127.0.0.1:9/x"}),
        json!({"$ref": "file:///etc/passwd"}),
        json!({"type": "nonsense"}),
        json!({"type": 5}),
        json!({"enum": []}),
        json!({"not": {}}),
        json!([]),
        json!(null),
        json!({"type": "string", "format": "nonsense"}),
        json!({"type": "string", "pattern": "("}),
        json!({"x-guidance": {"nonsense": 1}, "type": "string", "pattern": "a(?=b)"}),
    ];
    let long = [
        "a?".repeat(3000) + &"a".repeat(3000),
        "(".repeat(5000) + &")".repeat(5000),
        "a|".repeat(200_000),
        (0..30).map(search).collect::<Vec<_>>().join("|"),
        "(a*".repeat(50) + &")*".repeat(50),
    ];
    let schemas = schemas.into_iter().map(Grammar::Json);
    let expressions = HOSTILE_EXPRESSIONS.into_iter().map(str::to_owned).chain(long).map(Grammar::Regex);
    schemas.chain(expressions).chain(hostile_larks().into_iter().map(Grammar::Lark)).collect()
}

/// Compiles a grammar and follows it for a while. Returns `None` if it is refused.
fn follow(compiler: &GrammarCompiler, grammar: &Grammar) -> Option<()> {
    let name: String = format!("{grammar:?}").chars().take(100).collect();
    let since = thread_time();
    let compiled = bounds::check(grammar).and_then(|_| compiler.compile_now(grammar, VOCAB));
    let took = thread_time() - since;
    assert!(took < Duration::from_secs(5), "{name}: compiled for {took:?}");
    let compiled = compiled.inspect_err(|error| assert!(error.to_string().len() < 400, "{error}")).ok()?;
    let mut mask = compiled.first();
    let mut walk = GrammarMatcher::new(Arc::new(compiled));
    for step in 0..100 {
        let allowed = ids(&mask);
        let token = allowed[step * 7 % allowed.len()];
        if token == EOS {
            break;
        }
        let since = thread_time();
        let advanced = walk.advance(token);
        let took = thread_time() - since;
        assert!(took < Duration::from_secs(1), "{name}: {took:?} for a token");
        let Ok(next) = advanced else { break };
        mask = next;
    }
    Some(())
}

#[test]
fn a_hostile_grammar_is_refused_or_followed_in_bounded_time() {
    let all = || {
        let compiler = compiler();
        let grammars = hostile();
        let followed = grammars.iter().filter_map(|grammar| follow(&compiler, grammar)).count();
        (grammars.len() - followed, followed)
    };
    let thread = std::thread::Builder::new().stack_size(factory::STACK_BYTES).spawn(all).unwrap();
    let (refused, followed) = thread.join().unwrap();
    assert!(refused > 25 && followed > 15, "{refused} refused, {followed} followed");
}

/// The compiler still works after grammars that are meant to keep it busy.
#[tokio::test(start_paused = true)]
async fn the_compiler_works_after_hostile_grammars() {
    let _still = still_clock();
    let compiler = compiler();
    for grammar in hostile() {
        let _ = compiler.compile(&grammar, VOCAB).await;
    }
    assert!(compiler.compile(&regex("fine"), VOCAB).await.is_ok());
}

#[tokio::test(start_paused = true)]
async fn many_patterns_for_different_texts_are_accepted() {
    let property = |i: usize| {
        (
            format!("p{i}"),
            json!({"anyOf": [{"type": "string", "pattern": format!("^a{{{i}}}$")}, {"type": "null"}], "title": "T"}),
        )
    };
    let schema = json!({"type": "object", "properties": object((1..40).map(property)), "required": ["p1"]});
    assert!(compile(&Grammar::Json(schema)).await.is_ok());
}

/// Hostile grammars within other grammars.
fn hostile_inside() -> Vec<Grammar> {
    let patterns = |count: usize| {
        let pattern = |i: usize| json!({"pattern": format!("^(.*[a-c].{{{}}}[d-f].*)$", 5 + i)});
        json!({"type": "string", "allOf": (0..count).map(pattern).collect::<Vec<_>>()})
    };
    let chain = |length: usize| {
        let links: String = (0..length).map(|i| format!("T{i}: \"a\" T{}\n", i + 1)).collect();
        format!("start: T0\n{links}T{length}: \"b\"\n")
    };
    let larks = [
        format!("start: %json {}", patterns(40)),
        format!("start: \"a\" b\nb: %json {}\n", patterns(40)),
        format!("start: %lark {{\n start: %json {}\n}}", patterns(40)),
        format!("start: %json {}", json!({"type": "array", "minItems": 100_000})),
        "start: /(a{500}){500}/".to_owned(),
        chain(15_000),
        chain(1_000),
    ];
    larks.into_iter().map(Grammar::Lark).collect()
}

#[tokio::test(start_paused = true)]
async fn a_grammar_inside_of_another_has_the_same_bounds() {
    let _still = still_clock();
    let compiler = compiler();
    for grammar in hostile_inside() {
        let error = compiler.compile(&grammar, VOCAB).await.unwrap_err();
        assert!(matches!(error, GrammarError::TooComplex(_)), "{error}");
    }
    assert_eq!(compiler.free_permits(), (2, 1));
}

#[test]
fn a_grammar_inside_of_another_is_refused_quickly() {
    let all = || {
        let compiler = compiler();
        for grammar in hostile_inside() {
            let since = thread_time();
            let compiled = bounds::check(&grammar).and_then(|_| compiler.compile_now(&grammar, VOCAB));
            let took = thread_time() - since;
            assert!(compiled.is_err(), "{grammar:?}");
            assert!(took < Duration::from_secs(2), "{:?}: {took:?}", compiled.err());
        }
    };
    std::thread::Builder::new().stack_size(factory::STACK_BYTES).spawn(all).unwrap().join().unwrap();
}

/// A search for the ends of braces that starts again for each brace takes a minute for this grammar
/// on the calling thread.
#[tokio::test(start_paused = true)]
async fn a_megabyte_of_braces_is_refused_quickly() {
    let since = thread_time();
    for make in [Grammar::Regex as fn(String) -> Grammar, Grammar::Lark] {
        for _ in 0..2 {
            let error = compile(&make("{".repeat(1_900_000))).await.unwrap_err();
            assert!(error.to_string().contains("bytes"), "{error}");
        }
    }
    let took = thread_time() - since;
    assert!(took < Duration::from_secs(2), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn equal_grammars_are_compiled_once() {
    let _still = still_clock();
    let compiler = compiler();
    let grammar = Grammar::Json(json!({"type": "object", "properties": {"a": {"type": "string"}}}));
    let all = futures::future::join_all((0..50).map(|_| compiler.compile(&grammar, VOCAB))).await;
    let first = all[0].as_ref().unwrap();
    assert!(all.iter().all(|compiled| Arc::ptr_eq(compiled.as_ref().unwrap(), first)));
    assert_eq!(compiler.free_permits(), (2, 1));
}

/// Following an expensive grammar: no single mask takes long.
#[test]
fn the_worst_masks_are_bounded() {
    let grammars = [
        Grammar::Regex(
            (0..12).map(|i| format!("(.*[a-c].{{{}}}[d-f].*)", 5 + i)).collect::<Vec<_>>().join("|"),
        ),
        Grammar::Regex("(a|b)*a(a|b){300}.*".into()),
        Grammar::Lark("start: a+\na: \"x\" | \"x\" a | a \"x\"".into()),
        Grammar::Lark("start: (a | b | c)*\na: /[a-z]+/\nb: /[a-m]+[n-z]*/\nc: /[a-z]{1,20}/".into()),
    ];
    let all = move || {
        let compiler = compiler();
        for grammar in grammars {
            follow(&compiler, &grammar);
        }
    };
    std::thread::Builder::new().stack_size(factory::STACK_BYTES).spawn(all).unwrap().join().unwrap();
}
