//! Tests the texts that clients' schemas allow, and the reports about unsupported keywords.

use std::sync::Arc;

use millrace_text::test_support::{self, EOS};
use serde_json::{Value, json};

use crate::grammar::{CompiledGrammar, Grammar, GrammarCompiler, GrammarError, GrammarMatcher};
use crate::{Constraint, Mask};

const ANSWER: fn(Value) -> Grammar = Grammar::Json;

/// Returns a grammar of the arguments of one tool.
fn arguments(schema: Value) -> Grammar {
    Grammar::Calls { rules: "start: call\n".into(), schemas: vec![("call".into(), schema)], answer: None }
}

async fn compile(grammar: Grammar) -> Result<Arc<CompiledGrammar>, GrammarError> {
    let compiler = GrammarCompiler::new(test_support::tokenizer(), Arc::new([EOS]));
    compiler.compile(&grammar, EOS + 1).await
}

fn allows(mask: &Mask, token: u32) -> bool {
    mask.get(token as usize / 32).is_some_and(|word| word >> (token % 32) & 1 == 1)
}

/// Whether a grammar accepts a text.
fn accepts(compiled: &Arc<CompiledGrammar>, text: &str) -> bool {
    let (mut walk, mut mask) = (GrammarMatcher::new(compiled.clone()), compiled.first());
    for byte in text.bytes() {
        if !allows(&mask, u32::from(byte)) {
            return false;
        }
        mask = walk.advance(u32::from(byte)).unwrap();
    }
    allows(&mask, EOS)
}

async fn check(make: fn(Value) -> Grammar, schema: Value, good: &[&str], bad: &[&str]) {
    let compiled = compile(make(schema.clone())).await.unwrap_or_else(|error| panic!("{schema}: {error}"));
    for text in good {
        assert!(accepts(&compiled, text), "{text} is {schema}");
    }
    for text in bad {
        assert!(!accepts(&compiled, text), "{text} is not {schema}");
    }
}

#[tokio::test]
async fn an_object_has_the_properties_that_are_listed() {
    let integer = json!({"type": "integer"});
    let a = json!({"type": "object", "properties": {"a": integer}});
    for make in [ANSWER, arguments] {
        check(make, a.clone(), &["{}", r#"{"a": 1}"#], &[r#"{"b": 1}"#, r#"{"a": 1, "b": 1}"#]).await;
        let nested = json!({"type": "array", "items": a});
        check(make, nested, &[r#"[{"a": 1}]"#], &[r#"[{"b": 1}]"#]).await;
        let none = json!({"type": "object", "properties": {}});
        check(make, none, &["{}"], &[r#"{"b": 1}"#]).await;
        let mut open = a.clone();
        open["additionalProperties"] = json!({});
        check(make, open, &[r#"{"a": 1, "b": []}"#], &[r#"{"a": "x"}"#]).await;
        let any = json!({"type": "object"});
        check(make, any, &[r#"{"b": {"c": 1}}"#], &["[]"]).await;
        // A property that is required but not listed.
        let mut required = a.clone();
        required["required"] = json!(["a", "b"]);
        check(make, required, &[r#"{"a": 1, "b": [2]}"#], &[r#"{"a": 1}"#, r#"{"a": 1, "b": 2, "c": 3}"#])
            .await;
    }
}

#[tokio::test]
async fn characters_may_be_written_as_escapes() {
    let text = json!({"type": "object", "properties": {"a": {"type": "string"}}});
    let short = json!({"type": "object", "properties": {"a": {"type": "string", "maxLength": 2}}});
    for make in [ANSWER, arguments] {
        let good = [r#"{"a": "\u00fc\u4e2d"}"#, r#"{"a": "\ud83d\ude00ü"}"#, r#"{"a": "\n\u0007"}"#];
        let bad = [r#"{"a": "\ud83d"}"#, r#"{"a": "\u00g0"}"#];
        check(make, text.clone(), &good, &bad).await;
        check(make, short.clone(), &good, &[&bad[..], &[r#"{"a": "\u00fc\u00fc\u00fc"}"#]].concat()).await;
    }
}

#[tokio::test]
async fn parts_of_a_composition_do_not_exclude_one_another() {
    let of =
        |name: &str| json!({"type": "object", "properties": {name: {"type": "integer"}}, "required": [name]});
    let both = r#"{"a": 1, "b": 2}"#;
    let defs = json!({"A": of("a"), "B": of("b")});
    check(ANSWER, json!({"allOf": [of("a"), of("b")]}), &[both], &[r#"{"a": 1}"#]).await;
    let inherited =
        json!({"allOf": [{"$ref": "#/$defs/A"}], "properties": {"b": {"type": "integer"}}, "$defs": defs});
    check(ANSWER, inherited, &[both], &[r#"{"b": 1}"#]).await;
    let union = json!({"anyOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}], "$defs": defs});
    check(ANSWER, union, &[r#"{"a": 1}"#, r#"{"b": 1}"#], &[r#"{"a": 1, "c": 2}"#]).await;
    let shared = json!({"type": "object", "properties": {"k": {"const": 1}}, "required": ["k"], "oneOf": [of("a"), of("b")]});
    check(ANSWER, shared, &[r#"{"k": 1, "a": 1}"#], &[r#"{"a": 1}"#]).await;
    let one_of_two = json!({
        "type": "object", "properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
    });
    // The properties of a condition are not known.
    let condition = json!({
        "type": "object", "properties": {"a": {}}, "if": {"required": ["a"]}, "then": {"properties": {"b": {}}},
    });
    check(arguments, condition, &[r#"{"a": 1, "b": 2}"#], &["[]"]).await;
    check(ANSWER, one_of_two, &[r#"{"a": 1}"#, r#"{"b": 1}"#], &["{}", r#"{"a": 1, "c": 1}"#]).await;
}

#[tokio::test]
async fn white_space_is_limited_to_that_of_pretty_printed_json() {
    let schema =
        json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}}}});
    let value = json!({"a": [1, 2]});
    let pretty = serde_json::to_string_pretty(&value).unwrap();
    let tabs = pretty.replace("  ", "\t");
    let good = [r#"{"a":[1,2]}"#, r#"{"a": [1, 2]}"#, r#"{ "a": [ 1, 2 ] }"#, &pretty, &tabs];
    let bad = [
        r#"{"a":  [1]}"#,
        "{\n\n\"a\": [1]}",
        "{ \n\"a\": [1]}",
        "{\"a\":\t\t[1]}",
        &format!("{{\n{}}}", " ".repeat(33)),
    ];
    check(ANSWER, schema.clone(), &good, &bad).await;
    check(arguments, schema, &good, &bad).await;
}

async fn unenforced(grammar: Grammar) -> Vec<String> {
    let compiled = compile(grammar.clone()).await.unwrap_or_else(|error| panic!("{grammar:?}: {error}"));
    compiled.unenforced().fields("response_format")
}

#[tokio::test]
async fn unenforced_keywords_are_reported() {
    let list = json!({"type": "object", "properties": {
        "a": {"type": "array", "items": {"type": "string", "format": "color"}, "uniqueItems": true},
        "b": {"type": "array", "uniqueItems": false, "items": {"type": "string", "format": "date"}},
        // Names of properties and parts of values are not keywords.
        "not": {"type": "string", "default": {"not": 1}}, "uniqueItems": {"enum": [{"if": 2}]},
    }});
    assert_eq!(
        unenforced(ANSWER(list.clone())).await,
        ["response_format.format", "response_format.uniqueItems"]
    );
    assert_eq!(unenforced(arguments(list)).await, ["tools.format", "tools.uniqueItems"]);
    let both = Grammar::Calls {
        rules: "start: answer | call\n".into(),
        schemas: vec![("call".into(), json!({"type": "string", "maxLength": 524_288}))],
        answer: Some(json!({"type": "array", "uniqueItems": true, "items": {"type": "integer"}})),
    };
    assert_eq!(unenforced(both).await, ["response_format.uniqueItems", "tools.maxLength"]);
    assert!(unenforced(Grammar::Regex("a".into())).await.is_empty());
}

/// Tool schemas of coding agents and of servers of the Model Context Protocol.
#[tokio::test]
async fn tool_schemas_of_agents_are_accepted() {
    let object = |properties: Value| {
        json!({
            "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "properties": properties,
            "additionalProperties": false,
        })
    };
    let cases: [(Value, &[&str], &str); 16] = [
        (json!({"type": "string", "maxLength": 524_288, "minLength": 1}), &["maxLength"], r#""abc""#),
        (json!({"type": "number", "multipleOf": 0.01}), &[], "1.25"),
        (json!({"type": "number", "multipleOf": 0.07}), &["multipleOf"], "1.25"),
        (json!({"type": "string", "format": "uri"}), &[], r#""https://a.b/c""#),
        (json!({"type": "integer", "exclusiveMinimum": 0, "maximum": 9_007_199_254_740_991_i64}), &[], "7"),
        (json!({"type": "integer", "minimum": 0, "maximum": u64::MAX}), &["maximum"], "7"),
        (
            json!({"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {}}),
            &[],
            r#"{"x": [1]}"#,
        ),
        (json!({"type": "object", "propertyNames": {"pattern": "^a"}}), &["propertyNames"], r#"{"b": 1}"#),
        (json!({"anyOf": [{"const": "a"}, {"type": "null"}], "default": null}), &[], "null"),
        (
            json!({"type": "string", "pattern": "^(?!\\.)(?!.*\\.\\.)[a-z]+@[a-z]+$"}),
            &["pattern"],
            r#""a b""#,
        ),
        (
            json!({"type": "array", "items": {"type": "string"}, "maxItems": 100_000}),
            &["maxItems"],
            r#"["a"]"#,
        ),
        (json!({"not": {"type": "null"}, "type": ["string", "null"]}), &["not"], r#""a""#),
        (
            json!({"if": {"type": "string"}, "then": {"minLength": 2}, "else": {}}),
            &["else", "if", "then"],
            "1",
        ),
        (json!({"type": "any", "description": "anything"}), &["type"], "[1]"),
        (json!({"type": "string", "required": true}), &[], r#""a""#),
        (json!({"$ref": "http://json-schema.org/draft-07/schema#"}), &["$ref"], "{}"),
    ];
    for (schema, left_out, text) in cases {
        let schema = object(json!({"p": schema}));
        let left_out: Vec<String> = left_out.iter().map(|keyword| format!("tools.{keyword}")).collect();
        assert_eq!(unenforced(arguments(schema.clone())).await, left_out, "{schema}");
        check(arguments, schema, &[&format!("{{\"p\": {text}}}")], &[r#"{"q": 1}"#]).await;
    }
}

#[tokio::test]
async fn a_refusal_names_the_keyword_and_its_place() {
    let inside = |schema: Value| json!({"type": "object", "properties": {"user": {"anyOf": [{"type": "null"}, schema]}}});
    let place = "at /properties/user/anyOf/1";
    for (schema, keyword, reason) in [
        (json!({"not": {"type": "string"}}), "not", "is not supported"),
        (json!({"if": {}, "then": {}}), "if", "is not supported"),
        (json!({"type": "string", "pattern": "a(?=b)"}), "pattern", "look-around"),
        (json!({"type": "string", "pattern": "("}), "pattern", "unclosed group"),
        (json!({"type": "string", "pattern": "a(?=b)", "format": "color"}), "pattern", "look-around"),
        (json!({"type": "text"}), "type", "must be among null, boolean"),
        (json!({"$ref": "#/$defs/nothing"}), "$ref", "no place in the schema"),
        (json!({"propertyNames": {"maxLength": 3}}), "propertyNames", "is not supported"),
    ] {
        let error = compile(ANSWER(inside(schema))).await.unwrap_err();
        assert!(matches!(error, GrammarError::Invalid(_)));
        let text = error.to_string();
        assert!(text.contains(&format!("`{keyword}` {place}")) && text.contains(reason), "{text}");
    }
    for (schema, reason) in [
        (
            json!({"type": "string", "maxLength": 20_000}),
            "`maxLength` at /properties/user/anyOf/1: more than 10000",
        ),
        (
            json!({"type": "string", "pattern": "a{20000}"}),
            "`pattern` at /properties/user/anyOf/1: a count of more",
        ),
    ] {
        let error = compile(ANSWER(inside(schema))).await.unwrap_err();
        assert!(
            matches!(error, GrammarError::TooComplex(_)) && error.to_string().contains(reason),
            "{error}"
        );
    }
    let deep = (0..20)
        .fold(json!({"not": {}}), |inner, _| json!({"properties": {"property of a long name": inner}}));
    let text = compile(ANSWER(deep)).await.unwrap_err().to_string();
    assert!(text.len() < 300 && text.contains("`not` at …"), "{text}");
}

#[tokio::test]
async fn a_refusal_names_the_tool() {
    let tool = json!({"type": "object", "properties": {"p": {"type": "string", "minLength": 20_000}}});
    let schema = json!({"anyOf": [{"$ref": "#/$defs/3"}], "$defs": {"3": tool}});
    let text = compile(arguments(schema)).await.unwrap_err().to_string();
    assert!(text.contains("`minLength` of tools[3] at /properties/p: more than"), "{text}");
}

#[tokio::test]
async fn a_pattern_with_look_around_is_left_out_beside_a_known_format() {
    let schema =
        json!({"type": "string", "format": "email", "pattern": "^(?!\\.)(?!.*\\.\\.)[a-z.]+@[a-z.]+$"});
    assert_eq!(unenforced(ANSWER(schema.clone())).await, ["response_format.pattern"]);
    check(ANSWER, schema, &[r#""a@b.c""#], &[r#""a""#]).await;
}

#[tokio::test]
async fn dates_and_times_can_be_read_by_the_usual_libraries() {
    let string = |format: &str| json!({"type": "string", "format": format});
    let good = [r#""23:59:59Z""#, r#""00:00:00.123456789+01:30""#];
    let bad = [r#""23:59:60Z""#, r#""24:00:00Z""#, r#""00:00:00.1234567890Z""#, r#""00:00:00""#];
    let days = [r#""2024-02-29""#, r#""2000-02-29""#, r#""2023-12-31""#];
    let no_days =
        [r#""2023-02-29""#, r#""1900-02-29""#, r#""2023-02-30""#, r#""2023-04-31""#, r#""2023-13-01""#];
    for make in [ANSWER, arguments] {
        check(make, string("time"), &good, &bad).await;
        check(make, string("date"), &days, &no_days).await;
        let moments = [r#""2024-02-29T23:59:59Z""#, r#""2023-01-31t00:00:00.5-08:00""#];
        let no_moments = [r#""2023-02-29T23:59:59Z""#, r#""2024-02-29T23:59:60Z""#, r#""2024-02-29""#];
        check(make, string("date-time"), &moments, &no_moments).await;
    }
    let late = json!({"type": "string", "format": "time", "pattern": "^23:"});
    check(ANSWER, late, &[r#""23:00:00Z""#], &[r#""22:00:00Z""#, r#""23:00:60Z""#]).await;
}

#[tokio::test]
async fn items_among_a_few_values_are_unique() {
    let color = json!({"enum": ["red", "green", "blue"]});
    let list =
        json!({"type": "array", "items": {"$ref": "#/$defs/Color"}, "uniqueItems": true, "minItems": 1});
    let schema =
        json!({"type": "object", "properties": {"a": list}, "required": ["a"], "$defs": {"Color": color}});
    let good = [r#"{"a": ["red"]}"#, r#"{"a": ["blue", "red"]}"#, r#"{"a": ["green", "blue", "red"]}"#];
    let bad = [r#"{"a": []}"#, r#"{"a": ["red", "red"]}"#, r#"{"a": ["red", "green", "red"]}"#];
    for make in [ANSWER, arguments] {
        check(make, schema.clone(), &good, &bad).await;
    }
    assert!(unenforced(ANSWER(schema)).await.is_empty());
    let many = json!({"type": "array", "items": {"enum": (0..9).collect::<Vec<_>>()}, "uniqueItems": true});
    assert_eq!(unenforced(ANSWER(many)).await, ["response_format.uniqueItems"]);
}

#[tokio::test]
async fn references_in_all_forms_are_followed() {
    let definitions = json!({
        "a/b": {"enum": [1]}, "c d": {"enum": [2]}, "named": {"$anchor": "here", "enum": [3]},
        "own": {"$id": "own.json", "enum": [4]}, "tree": {"$anchor": "tree", "type": "array", "items": {"$ref": "#tree"}},
    });
    for (reference, good, bad) in [
        ("#/$defs/a~1b", "1", "2"),
        ("#/%24defs/c%20d", "2", "1"),
        ("#here", "3", "1"),
        ("own.json", "4", "1"),
        ("#tree", "[[], [[]]]", "1"),
    ] {
        let schema = json!({"type": "object", "properties": {"p": {"$ref": reference}}, "required": ["p"], "$defs": definitions});
        let [good, bad] = [good, bad].map(|value| format!("{{\"p\": {value}}}"));
        for make in [ANSWER, arguments] {
            check(make, schema.clone(), &[&good], &[&bad]).await;
        }
    }
}

#[tokio::test]
async fn keys_that_are_not_listed_do_not_repeat() {
    let integer = json!({"type": "integer"});
    for schema in [
        json!({"type": "object", "additionalProperties": integer, "minProperties": 2}),
        json!({"type": "object", "patternProperties": {"^[a-z]+$": integer}, "additionalProperties": false, "minProperties": 2}),
        json!({"type": "object"}),
        json!({}),
    ] {
        let good = [r#"{"a": 1, "b": 2}"#, r#"{"a": 1, "aa": 2}"#];
        for make in [ANSWER, arguments] {
            check(make, schema.clone(), &good, &[r#"{"a": 1, "a": 2}"#]).await;
        }
    }
    // If no other key is possible, the grammar decides.
    let one = json!({"type": "object", "patternProperties": {"^a$": integer}, "additionalProperties": false});
    check(ANSWER, one, &[r#"{"a": 1}"#], &[r#"{"b": 1}"#]).await;
}
