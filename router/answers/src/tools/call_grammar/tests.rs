//! Generates answers that the grammars allow, and parses them.

use std::sync::Arc;

use millrace_text::Tokenizer;
use millrace_text::test_support::{self, EOS};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use serde_json::Value;

use super::*;
use crate::Constraint;
use crate::grammar::{GrammarCompiler, GrammarMatcher};
use crate::tools::tagged_call::ValueTypes;
use crate::tools::{AnswerDelta, ChannelParser, Tool, ToolCallParser};

pub(in crate::tools) fn tools(choice: ToolChoice, parallel: bool) -> AllowedTools {
    let get = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": false});
    let set = json!({"type": "object", "properties": {"to": {"$ref": "#/$defs/place"}}, "required": ["to"],
                     "additionalProperties": false, "$defs": {"place": {"enum": ["here", "there"]}}});
    let tool = |name: &str, parameters| Tool { name: name.into(), parameters };
    AllowedTools { tools: vec![tool("get", get), tool("set", set)], choice, parallel }
}

/// The formats whose answers are not messages in channels.
fn formats() -> impl Iterator<Item = ToolFormat> {
    ToolFormat::all().filter(|format| format.channels().is_none())
}

/// Two tokenizers: the markers are special tokens in one and ordinary text in the other.
pub(in crate::tools) fn tokenizers() -> [Tokenizer; 2] {
    let marks: std::collections::BTreeSet<&str> = ToolFormat::all()
        .filter(|&format| format != ToolFormat::DeepSeekV32 && format != ToolFormat::DeepSeekV4)
        .flat_map(|format| format.syntax().marks)
        .copied()
        .collect();
    let marks: Vec<&str> = marks.into_iter().collect();
    let marked = Tokenizer::new(&test_support::assets_with(&marks)).unwrap();
    [test_support::tokenizer(), marked]
}

/// Generates a random text that the grammar allows, beginning with `leads`. Returns `None` if the
/// grammar does not allow `leads`.
pub(in crate::tools) async fn random(
    tokenizer: &Tokenizer,
    grammar: &Grammar,
    seed: u64,
    leads: &str,
) -> Option<(String, bool)> {
    let vocab_size = tokenizer.size();
    let _still = test_support::still_clock();
    let compiled =
        GrammarCompiler::new(tokenizer.clone(), Arc::new([EOS])).compile(grammar, vocab_size).await.unwrap();
    let mut random = StdRng::seed_from_u64(seed);
    let (mut walk, mut mask) = (GrammarMatcher::new(compiled.clone()), compiled.first());
    let (mut text, mut leads) = (
        String::new(),
        tokenizer.encode_now(leads, millrace_text::SpecialTokens::Omit).unwrap().ids.into_iter(),
    );
    let mut detokenizer = tokenizer.detokenizer(false, false);
    for _ in 0..400 {
        let allowed: Vec<u32> = (0..vocab_size)
            .filter(|id| mask.get(*id as usize / 32).is_some_and(|word| word >> (id % 32) & 1 == 1))
            .collect();
        let led = leads.next();
        if let Some(led) = led {
            if !allowed.contains(&led) {
                return None;
            }
        } else if allowed.contains(&EOS) {
            return Some((text, true));
        }
        let ascii: Vec<u32> = allowed.iter().copied().filter(|id| (32..127).contains(id)).collect();
        let choose = if ascii.is_empty() { &allowed } else { &ascii };
        let token = led.unwrap_or_else(|| choose[random.random_range(0..choose.len())]);
        text += &detokenizer.push(token);
        mask = walk.advance(token).unwrap();
    }
    Some((text, false))
}

pub(in crate::tools) fn parse(text: &str, format: ToolFormat, tools: &AllowedTools) -> AnswerDelta {
    if let Some(channels) = format.channels() {
        let mut parser = ChannelParser::new(channels, Some(tools));
        let mut delta = parser.push(text);
        delta.extend(parser.finish());
        return delta;
    }
    let mut parser = ToolCallParser::new(format, tools);
    let mut delta = parser.push(text);
    delta.extend(parser.finish());
    delta
}

pub(in crate::tools) fn check(text: &str, format: ToolFormat, tools: &AllowedTools, ended: bool) -> usize {
    let delta = parse(text, format, tools);
    for (index, call) in delta.calls.iter().enumerate() {
        if index + 1 < delta.calls.len() || ended {
            let arguments: Value =
                serde_json::from_str(&call.arguments).unwrap_or_else(|e| panic!("{text}: {e}"));
            match call.name.as_deref() {
                Some("get") => assert!(arguments["n"].is_number(), "{text}"),
                Some("set") => assert!(arguments["to"] == "here" || arguments["to"] == "there", "{text}"),
                other => panic!("{other:?} in {text}"),
            }
        }
    }
    delta.calls.len()
}

#[tokio::test(start_paused = true)]
async fn required_calls_start_with_the_first_token() {
    for tokenizer in tokenizers() {
        for format in formats() {
            for choice in [ToolChoice::Required, ToolChoice::Named("set".into())] {
                for parallel in [false, true] {
                    let tools = tools(choice.clone(), parallel);
                    let grammar = call_grammar(&tools, format, (&tokenizer).into(), None).unwrap();
                    for seed in 0..4 {
                        let (text, ended) = random(&tokenizer, &grammar, seed, "").await.unwrap();
                        let calls = check(&text, format, &tools, ended);
                        assert!(calls >= 1 && (parallel || calls == 1), "{format}: {text}");
                        assert!(matches!(choice, ToolChoice::Required) || !text.contains("get"), "{text}");
                    }
                }
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn usual_schemas_are_accepted() {
    let parameters = json!({
        "$schema": "http://json-schema.org/draft-07/schema#", "type": "object", "title": "R&D & more & more & so on & on & on & on & on & on",
        "properties": {
            "url": {"type": "string", "format": "uri-of-some-kind", "description": ":( ".repeat(100)},
            "tags": {"type": "array", "uniqueItems": true, "items": {"type": "string", "pattern": "^[a-z]{1,64}(-[0-9]{1,64}){0,9}$"}},
            "what": {"oneOf": [{"const": 1}, {"type": "string"}], "default": 1, "examples": [1]},
        },
        "if": {"required": ["url"]}, "then": {"required": ["tags"]},
    });
    let tool = |i: usize| Tool { name: format!("tool{i}"), parameters: parameters.clone() };
    let tools =
        AllowedTools { tools: (0..30).map(tool).collect(), choice: ToolChoice::Required, parallel: true };
    for tokenizer in tokenizers() {
        for format in formats() {
            let grammar = call_grammar(&tools, format, (&tokenizer).into(), None).unwrap();
            let (text, _) = random(&tokenizer, &grammar, 1, "").await.unwrap();
            assert!(text.contains("tool"), "{text}");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn optional_calls_are_restricted_after_their_marker() {
    for tokenizer in tokenizers() {
        for (format, mark) in [
            (ToolFormat::Hermes, "<tool_call>\n"),
            (ToolFormat::Qwen3Coder, "<tool_call>\n<function="),
            (ToolFormat::Mistral, "[TOOL_CALLS]"),
            (ToolFormat::MistralV11, "[TOOL_CALLS]"),
            (ToolFormat::Llama3Json, "\n{ \"name\": \"get\""),
            (ToolFormat::LlamaFunction, "<function="),
            (ToolFormat::Pythonic, "[set("),
            (ToolFormat::Glm4, "get\n"),
            (ToolFormat::DeepSeekV3, "<｜tool▁calls▁begin｜>"),
            (ToolFormat::DeepSeekV31, "<｜tool▁calls▁begin｜>"),
            (ToolFormat::DeepSeekV32, "<｜DSML｜function_calls>"),
            (ToolFormat::DeepSeekV4, "<｜DSML｜tool_calls>\n"),
            (ToolFormat::Glm45, "<tool_call>"),
            (ToolFormat::KimiK2, "<|tool_calls_section_begin|>"),
            (ToolFormat::MiniMaxM2, "<minimax:tool_call>\n"),
            (ToolFormat::SeedOss, "<seed:tool_call>\n<function="),
            (ToolFormat::Phi4Mini, "<|tool_call|>["),
            (ToolFormat::Cohere, "<|START_ACTION|>[\n    "),
            (ToolFormat::Nemotron, "<TOOLCALL>["),
            (ToolFormat::GigaChat, "<|function_call|>"),
            (ToolFormat::Lfm2, "<|tool_call_start|>["),
        ] {
            let tools = tools(ToolChoice::Auto, true);
            let grammar = call_grammar(&tools, format, (&tokenizer).into(), None).unwrap();
            let text = "Any text, { < [ with whatever.\n";
            let led = random(&tokenizer, &grammar, 1, text).await.unwrap();
            assert_eq!(check(&led.0, format, &tools, led.1), 0, "{format}: {}", led.0);
            let before = if format.syntax().bare.is_empty() { text } else { "" };
            for seed in 0..4 {
                let (text, ended) =
                    random(&tokenizer, &grammar, seed, &format!("{before}{mark}")).await.unwrap();
                assert!(check(&text, format, &tools, ended) >= 1, "{format}: {text}");
            }
            assert!(
                random(&tokenizer, &grammar, 1, &format!("{before}{mark}no such call")).await.is_none(),
                "{format}"
            );
        }
        assert_eq!(
            call_grammar(&tools(ToolChoice::Auto, true), ToolFormat::Json, (&tokenizer).into(), None),
            None
        );
    }
}

/// Llama 3 calls tools with plain JSON, so that other JSON must be distinguished from calls.
#[tokio::test(start_paused = true)]
async fn json_that_is_not_a_call_is_text() {
    let tools = tools(ToolChoice::Auto, true);
    for tokenizer in tokenizers() {
        let grammar = call_grammar(&tools, ToolFormat::Llama3Json, (&tokenizer).into(), None).unwrap();
        for text in [
            r#"{"answer": 42, "list": [{"name": "get", "parameters": 7}]}"#,
            r#"{"name": "Ada", "age": 36}"#,
            r#"{"name": "get_more", "parameters": 7}"#,
            r#"{"name" : 7}"#,
            "{",
            "{ what }",
        ] {
            let (read, ended) =
                random(&tokenizer, &grammar, 1, text).await.unwrap_or_else(|| panic!("{text}"));
            assert!(read.starts_with(text));
            assert_eq!(check(&read, ToolFormat::Llama3Json, &tools, ended), 0, "{read}");
        }
        for begun in
            [r#"{"name": "get", "parameters": {"n": "x"#, r#"{"name":"set","parameters": {"to": "he"#]
        {
            let led = random(&tokenizer, &grammar, 1, begun).await;
            assert_eq!(led.is_some(), begun.contains("set"), "{begun}");
            let calls = led.map(|(text, ended)| check(&text, ToolFormat::Llama3Json, &tools, ended));
            assert!(calls.is_none_or(|calls| calls >= 1));
        }
        let two = r#"{"name": "get", "parameters": {"n": 1}}; {"name": "set", "parameters": {"to": "here"}}"#;
        let (text, ended) = random(&tokenizer, &grammar, 1, two).await.unwrap();
        assert!(check(&text, ToolFormat::Llama3Json, &tools, ended) >= 2, "{text}");
    }
}

#[tokio::test(start_paused = true)]
async fn answers_without_calls_have_the_requested_form() {
    let answer = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
                        "additionalProperties": false});
    for tokenizer in tokenizers() {
        for format in formats() {
            let tools = tools(ToolChoice::Auto, true);
            let grammar = |tools: &AllowedTools| {
                call_grammar(tools, format, (&tokenizer).into(), Some(&answer)).unwrap()
            };
            let either = grammar(&tools);
            let (text, ended) = random(&tokenizer, &either, 1, "{\"sum\": 7").await.unwrap();
            let delta = parse(&text, format, &tools);
            assert!(ended && delta.calls.is_empty(), "{format}: {text}");
            let read: Value = serde_json::from_str(&delta.content).unwrap();
            assert!(read["sum"].is_i64(), "{format}: {text}");
            let call = format.write("get", &json!({"n": 1}));
            let (text, ended) = random(&tokenizer, &either, 1, &call).await.unwrap();
            assert!(check(&text, format, &tools, ended) >= 1, "{format}: {text}");
            for neither in ["Well", "{\"m", "[7]"] {
                assert!(random(&tokenizer, &either, 1, neither).await.is_none(), "{format}: {neither}");
            }
            let must = AllowedTools { choice: ToolChoice::Required, ..tools };
            assert!(random(&tokenizer, &grammar(&must), 1, "{\"sum").await.is_none(), "{format}");
        }
    }
}

/// A call with one argument of each kind: a free string, an enumeration, JSON, and a reference.
#[tokio::test(start_paused = true)]
async fn tagged_arguments_follow_their_schemas() {
    let parameters = json!({
        "type": "object", "required": ["s", "e", "n"], "$defs": {"place": {"enum": ["here", 7]}},
        "properties": {"s": {"type": "string"}, "e": {"type": "string", "enum": ["a b", "c"]}, "n": {"type": "integer"}, "r": {"$ref": "#/$defs/place"}},
    });
    let tool = |name: &str, parameters: &Value| Tool { name: name.into(), parameters: parameters.clone() };
    let (known, any) = (tool("known", &parameters), tool("any", &json!({"type": "object"})));
    let tools = AllowedTools { tools: vec![known, any], choice: ToolChoice::Required, parallel: true };
    for tokenizer in tokenizers() {
        let grammar = call_grammar(&tools, ToolFormat::Qwen3Coder, (&tokenizer).into(), None).unwrap();
        let text = "<tool_call>\n<function=known>\n<parameter=s>\nany \"text\" <at> all\n</parameter>\n<parameter=e>\n";
        for (ends, follows) in [
            ("c\n</parameter>\n<parameter=n>\n12\n</parameter>\n</function>\n</tool_call>", true),
            (
                "a b\n</parameter>\n<parameter=n>\n-1\n</parameter>\n<parameter=r>\n7\n</parameter>\n</function>\n</tool_call>",
                true,
            ),
            ("d", false),
            ("c\n</parameter>\n</function>", false),
            ("c\n</parameter>\n<parameter=n>\nx", false),
            ("c\n</parameter>\n<parameter=n>\n1\n</parameter>\n<parameter=r>\n8", false),
        ] {
            let (whole, led) =
                (format!("{text}{ends}"), random(&tokenizer, &grammar, 1, &format!("{text}{ends}")).await);
            assert_eq!(led.is_some(), follows, "{ends}");
            if follows {
                let mut parser = ToolCallParser::new(ToolFormat::Qwen3Coder, &tools);
                let arguments: Value = serde_json::from_str(&parser.push(&whole).calls[0].arguments).unwrap();
                assert_eq!(
                    (&arguments["s"], arguments["n"].is_i64()),
                    (&json!("any \"text\" <at> all"), true)
                );
            }
        }
        let text = "<tool_call><function=any>\n<parameter=x-1>\nwhatever\n</parameter>\n<parameter=y>\n1\n</parameter>\n</function></tool_call>";
        assert!(random(&tokenizer, &grammar, 1, text).await.is_some());
    }
}

/// Templates write white space after a call, so models generate it before they end.
#[tokio::test(start_paused = true)]
async fn an_answer_may_end_after_white_space() {
    for tokenizer in tokenizers() {
        for format in formats() {
            for choice in [ToolChoice::Required, ToolChoice::Auto] {
                let tools = tools(choice, true);
                let Some(grammar) = call_grammar(&tools, format, (&tokenizer).into(), None) else { continue };
                // A bare call is the whole answer.
                let space = if format.syntax().bare.is_empty() { "\n" } else { "" };
                let call = format.write("get", &json!({"n": 1}));
                let (text, ended) = random(&tokenizer, &grammar, 1, &format!("{call}{space}"))
                    .await
                    .unwrap_or_else(|| panic!("{call}"));
                assert_eq!((text.clone(), ended), (format!("{call}{space}"), true), "{format}");
                assert_eq!(check(&text, format, &tools, ended), 1, "{format}: {text}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_of_mistral_may_have_an_id() {
    let tools = tools(ToolChoice::Auto, true);
    for tokenizer in tokenizers() {
        let grammar = call_grammar(&tools, ToolFormat::Mistral, (&tokenizer).into(), None).unwrap();
        let text = "[TOOL_CALLS][{\"name\": \"get\", \"arguments\": {\"n\": 1}, \"id\": \"call00000\"}, {\"name\": \"set\", \"arguments\": {\"to\": \"here\"}}]";
        let (said, ended) = random(&tokenizer, &grammar, 1, text).await.unwrap();
        assert_eq!((said.as_str(), ended), (text, true));
        assert_eq!(check(text, ToolFormat::Mistral, &tools, true), 2);
    }
}

#[tokio::test(start_paused = true)]
async fn strings_of_python_may_be_in_single_quotes() {
    let parameters = json!({"type": "object", "properties": {"s": {"type": "string"}, "e": {"type": "string", "enum": ["a b", "it's"]}}});
    let tool = Tool { name: "say".into(), parameters };
    let tools = AllowedTools { tools: vec![tool], choice: ToolChoice::Required, parallel: true };
    for tokenizer in tokenizers() {
        let grammar = call_grammar(&tools, ToolFormat::Lfm2, (&tokenizer).into(), None).unwrap();
        for (arguments, follows) in [
            (r#"s='a \'b\' "c"\n', e="it's""#, true),
            ("e='a b'", true),
            ("s=\"a\"", true),
            ("e='c'", false),
            ("s='a\n'", false),
        ] {
            let text = format!("<|tool_call_start|>[say({arguments})]<|tool_call_end|>");
            assert_eq!(random(&tokenizer, &grammar, 1, &text).await.is_some(), follows, "{text}");
            if follows {
                let mut parser = ToolCallParser::new(ToolFormat::Lfm2, &tools);
                let call = parser.push(&text).calls[0].arguments.clone();
                assert!(serde_json::from_str::<Value>(&call).is_ok_and(|value| value.is_object()), "{call}");
            }
        }
    }
}

/// Special tokens that are no marks of calls may come before them.
#[tokio::test(start_paused = true)]
async fn text_before_calls_may_have_special_tokens() {
    let marks = ["<tool_call>", "</tool_call>", "<|START_RESPONSE|>", "<|START_ACTION|>", "<|END_ACTION|>"];
    let tokenizer = Tokenizer::new(&test_support::assets_with(&marks)).unwrap();
    let tools = tools(ToolChoice::Auto, true);
    for format in [ToolFormat::Hermes, ToolFormat::Cohere, ToolFormat::Nemotron] {
        let grammar = call_grammar(&tools, format, (&tokenizer).into(), None).unwrap();
        let call = format.write("get", &json!({"n": 1}));
        for text in
            ["<|START_RESPONSE|>Hello", "<|START_RESPONSE|>", "a<|START_RESPONSE|>b<|START_RESPONSE|>"]
        {
            assert!(random(&tokenizer, &grammar, 1, text).await.unwrap().1, "{format}: {text}");
            let (said, ended) = random(&tokenizer, &grammar, 1, &format!("{text}{call}")).await.unwrap();
            assert!(ended && said.ends_with(&call), "{format}: {said}");
        }
    }
    for format in [ToolFormat::Llama3Json, ToolFormat::Pythonic, ToolFormat::Glm4] {
        let grammar = call_grammar(&tools, format, (&tokenizer).into(), None).unwrap();
        for text in ["<|START_RESPONSE|>Hello", "a<|START_RESPONSE|>b<|START_RESPONSE|>"] {
            assert!(random(&tokenizer, &grammar, 1, text).await.unwrap().1, "{format}: {text}");
        }
    }
}

/// The value of a string in tags, and the final text of gpt-oss, may have special tokens that are
/// no marks of the format.
#[tokio::test(start_paused = true)]
async fn texts_may_have_special_tokens() {
    let parameters = json!({"type": "object", "properties": {"s": {"type": "string"}}, "required": ["s"]});
    let tools = AllowedTools {
        tools: vec![Tool { name: "say".into(), parameters }],
        choice: ToolChoice::Required,
        parallel: true,
    };
    for format in formats() {
        let CallSyntax::Tags(tags) = format.syntax().call else { continue };
        // The mark of DeepSeek is a part of its tags.
        let marks = if tags.types == ValueTypes::IsString { &[] } else { format.syntax().marks };
        for special in [&["<think>", "</think>"][..], &[&["<think>", "</think>"], marks].concat()] {
            let tokenizer = Tokenizer::new(&test_support::assets_with(special)).unwrap();
            let grammar = call_grammar(&tools, format, (&tokenizer).into(), None).unwrap();
            for value in ["<think>a</think>b", "a <think>", "<think>"] {
                let call = format.write("say", &json!({"s": value}));
                let (said, ended) =
                    random(&tokenizer, &grammar, 1, &call).await.unwrap_or_else(|| panic!("{call}"));
                assert!(ended, "{said}");
                let arguments: Value =
                    serde_json::from_str(&parse(&said, format, &tools).calls[0].arguments).unwrap();
                assert_eq!(arguments, json!({"s": value}), "{format}: {said}");
            }
            // An argument does not end with the answer, or with another mark of the format.
            let call = format.write("say", &json!({"s": "millrace"}));
            let (begun, _) = call.split_once("millrace").unwrap();
            let is_token = |mark: &&&str| **mark != tags.end_of_value && tokenizer.token_id(mark).is_some();
            for mark in marks.iter().filter(is_token).chain(&["</s>"]) {
                let led = random(&tokenizer, &grammar, 1, &format!("{begun}mill{mark}")).await;
                assert!(led.is_none(), "{format}: {mark}");
            }
        }
    }
    let marks = ["<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>", "<|other|>"];
    let tokenizer = Tokenizer::new(&test_support::assets_with(&marks)).unwrap();
    let tools = AllowedTools { choice: ToolChoice::Auto, ..tools };
    let grammar = call_grammar(&tools, ToolFormat::Harmony, (&tokenizer).into(), None).unwrap();
    let text = "<|channel|>final<|message|>a<|other|><|other|>b";
    assert!(random(&tokenizer, &grammar, 1, text).await.unwrap().1);
    for mark in &marks[..6] {
        assert!(random(&tokenizer, &grammar, 1, &format!("{text}{mark}")).await.is_none(), "{mark}");
    }
}

#[test]
fn copies_of_definitions_are_bounded() {
    let definition: String = "x".repeat(100_000);
    let properties: serde_json::Map<String, Value> =
        (0..5_000).map(|i| (format!("p{i}"), json!({"type": "integer", "$ref": "#/$defs/d"}))).collect();
    let required: Vec<String> = (0..5_000).map(|i| format!("p{i}")).collect();
    let parameters = json!({"type": "object", "properties": properties, "required": required,
        "$defs": {"d": {"description": definition}}});
    let mut tools = tools(ToolChoice::Auto, true);
    tools.tools[0].parameters = parameters;
    let Some(Grammar::Calls { schemas, .. }) =
        call_grammar(&tools, ToolFormat::Qwen3Coder, (&test_support::tokenizer()).into(), None)
    else {
        panic!("no grammar");
    };
    let bytes: usize = schemas.iter().map(|(_, schema)| schema.to_string().len()).sum();
    assert!((1 << 20..4 << 20).contains(&bytes), "{bytes}");
}

/// Keys of Gemma are in alphabetical order, and values follow their schemas at any depth.
#[tokio::test(start_paused = true)]
async fn arguments_of_gemma_follow_their_schemas() {
    let parameters = json!({
        "type": "object", "required": ["b", "r"], "$defs": {"node": {"type": "object", "required": ["v"], "properties": {
            "v": {"type": ["integer", "null"]}, "next": {"$ref": "#/$defs/node"}}}},
        "properties": {
            "r": {"$ref": "#/$defs/node"}, "b": {"type": "boolean"}, "a": {"enum": ["x", 7, ["y"]]},
            "l": {"type": "array", "items": {"anyOf": [{"type": "string"}, {"type": "number", "minimum": 0}]}},
        },
    });
    let tool = Tool { name: "say".into(), parameters };
    let tools = AllowedTools { tools: vec![tool], choice: ToolChoice::Required, parallel: true };
    for tokenizer in tokenizers() {
        let grammar = call_grammar(&tools, ToolFormat::Gemma4, (&tokenizer).into(), None).unwrap();
        for (arguments, value) in [
            ("b:true,r:{v:1}", json!({"b": true, "r": {"v": 1}})),
            (
                "a:<|\"|>x<|\"|>,b:false,l:[<|\"|>\"<a>\n<|\"|>,1.5],r:{next:{v:null},v:-2}",
                json!({"a": "x", "b": false, "l": ["\"<a>\n", 1.5], "r": {"next": {"v": null}, "v": -2}}),
            ),
            ("a:[<|\"|>y<|\"|>],b:true,l:[],r:{v:1}", json!({"a": ["y"], "b": true, "l": [], "r": {"v": 1}})),
        ] {
            let text = format!("<|tool_call>call:say{{{arguments}}}<tool_call|>");
            let (said, ended) =
                random(&tokenizer, &grammar, 1, &text).await.unwrap_or_else(|| panic!("{text}"));
            assert!(ended && said == text, "{said}");
            let call = parse(&said, ToolFormat::Gemma4, &tools).calls.remove(0);
            assert_eq!(serde_json::from_str::<Value>(&call.arguments).unwrap(), value, "{said}");
        }
        for wrong in
            ["r:", "b:1", "b:true}", "a:8", "a:<|\"|>z", "b:true,l:[-1", "b:true,r:{}", "b:true,r:{v:<|"]
        {
            let text = format!("<|tool_call>call:say{{{wrong}");
            assert!(random(&tokenizer, &grammar, 1, &text).await.is_none(), "{text}");
        }
    }
}
