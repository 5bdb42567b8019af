//! Reads answers of each format, in one piece and in all other divisions, and generates answers
//! that the grammars allow.

use millrace_text::Tokenizer;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::super::call_grammar::tests::{check, parse, random, tokenizers, tools};
use super::*;
use crate::grammar::Grammar;
use crate::reasoning::ReasoningStart;
use crate::tools::{AllowedTools, Tool};
use crate::tools::{AnswerDelta, ToolChoice, call_grammar};

/// The reasoning, the content, and the names and arguments of the calls.
type Answer = (String, String, Vec<(String, String)>);

fn answer(reasoning: &str, content: &str, calls: &[(&str, &str)]) -> Answer {
    let call = |(name, arguments): &(&str, &str)| ((*name).to_owned(), (*arguments).to_owned());
    (reasoning.into(), content.into(), calls.iter().map(call).collect())
}

fn allowed(parallel: bool) -> AllowedTools {
    let properties = json!({"s": {"type": "string"}, "n": {"type": "integer"}});
    let tool = |name: &str| Tool { name: name.into(), parameters: json!({"properties": properties}) };
    AllowedTools { tools: vec![tool("get"), tool("set")], choice: ToolChoice::Auto, parallel }
}

fn read(channels: Channels, begun: &str, pieces: &[&str], parallel: bool) -> Answer {
    let mut parser = ChannelParser::new(channels, Some(&allowed(parallel)));
    parser.continue_from(begun);
    let mut whole = AnswerDelta::default();
    pieces.iter().for_each(|piece| whole.extend(parser.push(piece)));
    whole.extend(parser.finish());
    let calls: Vec<_> = whole.calls.into_iter().map(|call| (call.name.unwrap(), call.arguments)).collect();
    assert_eq!(calls.len(), parser.calls());
    (whole.reasoning, whole.content, calls)
}

const HARMONY_CALLS: &str = "<|channel|>analysis<|message|>I < need <| it.<|end|><|start|>assistant<|channel|>commentary<|message|>Wait.<|end|>\
    <|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"n\": \"<|\"}<|call|>\
    <|start|>assistant to=functions.set<|channel|>commentary json<|message|><|call|>";
const MUSE_CALLS: &str = " to=self<|message|>I < need <|eom|> it.<|eom|><|start|>assistant to=get<|message|><atem:function_calls>\n\
    <atem:invoke name=\"get\">\n<atem:parameter name=\"s\">a \"</b>\"\n</atem:parameter>\n<atem:parameter name=\"n\">7</atem:parameter>\n\
    </atem:invoke>\n</atem:function_calls><|eom|><|start|>assistant to=set<|message|><atem:function_calls>\n\
    <atem:invoke name=\"set\">\n</atem:invoke>\n</atem:function_calls><|eot|>";
const KIMI_CALLS: &str = "I < need <|close|> it.<|close|>think<|sep|><|open|>response<|sep|>Wait.<|close|>response<|sep|><|open|>tools<|sep|>\
    <|open|>call tool=\"get\" index=\"1\"<|sep|><|open|>argument key=\"s\" type=\"string\"<|sep|>a \"</b>\"\n<|close|>argument<|sep|>\
    <|open|>argument key=\"&quot;&amp;quot;\" type=\"object\"<|sep|>{\"k\": [\"<|close|>\", 1e+20]}<|close|>argument<|sep|><|close|>call<|sep|>\
    <|open|>call tool=\"set\" index=\"2\"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>";
const FUNCTIONARY_CALLS: &str = "all\nWait.\n>>> set\n>>>>get\n{\"s\": \">>>set\\n\"}>>>set\n{\"n\": 1}";

/// A format, the part of the prompt that belongs to the answer, an answer and what is read from it.
fn cases() -> Vec<(Channels, &'static str, &'static str, Answer)> {
    let think = "<|open|>think<|sep|>";
    let other = "<|open|>tools<|sep|><|open|>call tool=\"other\" index=\"1\"<|sep|><|close|>call<|sep|>";
    vec![
        (
            HARMONY,
            "",
            "<|channel|>analysis<|message|>One.<|end|><|start|>assistant<|channel|>analysis<|message|>Two.<|end|>\
             <|start|>assistant<|channel|>final<|message|>Hello <b>.<|return|>",
            answer("One.\nTwo.", "Hello <b>.", &[]),
        ),
        (
            HARMONY,
            "",
            HARMONY_CALLS,
            answer("I < need <| it.", "Wait.", &[("get", "{\"n\": \"<|\"}"), ("set", "{}")]),
        ),
        (
            MUSE,
            "",
            MUSE_CALLS,
            answer("I < need ", "", &[("get", "{\"s\": \"a \\\"</b>\\\"\\n\", \"n\": 7}"), ("set", "{}")]),
        ),
        (
            MUSE,
            "",
            " to=self<|message|>One.<|eom|><|start|>assistant to=user<|message|>a <atem:function_calls><|eot|>",
            answer("One.", "a <atem:function_calls>", &[]),
        ),
        (MUSE, "", "<|message|>Hello", answer("", "Hello", &[])),
        (
            KIMI_K3,
            think,
            KIMI_CALLS,
            answer(
                "I < need <|close|> it.",
                "Wait.",
                &[
                    (
                        "get",
                        "{\"s\": \"a \\\"</b>\\\"\\n\", \"\\\"&quot;\": {\"k\": [\"<|close|>\", 1e+20]}}",
                    ),
                    ("set", "{}"),
                ],
            ),
        ),
        (
            KIMI_K3,
            "<|open|>response<|sep|>",
            "Hello.<|close|>response<|sep|><|close|>message<|sep|>",
            answer("", "Hello.", &[]),
        ),
        // The reasoning is not closed before a call, and the arguments are one object.
        (
            KIMI_K3,
            think,
            "One.<|open|>tools<|sep|><|open|>call tool=\"get\" index=\"1\"<|sep|><|open|>json type=\"object\"<|sep|>{\"n\": 1}\
             <|close|>json<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
            answer("One.", "", &[("get", "{\"n\": 1}")]),
        ),
        (KIMI_K3, "<|open|>response<|sep|>", other, answer("", other, &[])),
        (
            FUNCTIONARY,
            "",
            FUNCTIONARY_CALLS,
            answer("", "Wait.\n>>> set\n>", &[("get", "{\"s\": \">>>set\\n\"}"), ("set", "{\"n\": 1}")]),
        ),
        (FUNCTIONARY, "", "get\n{}", answer("", "", &[("get", "{}")])),
        (FUNCTIONARY, "", "set\n", answer("", "", &[("set", "{}")])),
        (FUNCTIONARY, "", "other\n{}", answer("", "other\n{}", &[])),
        (FUNCTIONARY, "", "all\na>>>other\n{}>>>all\nb>>", answer("", "a>>>other\n{}\nb>>", &[])),
        (FUNCTIONARY, "all\nIt", " is.", answer("", " is.", &[])),
    ]
}

#[test]
fn messages_are_divided_by_their_headers() {
    for (channels, begun, text, expected) in cases() {
        assert_eq!(read(channels, begun, &[text], true), expected, "{text}");
        if expected.2.len() > 1 {
            let first = expected.2[..1].to_vec();
            assert_eq!(read(channels, begun, &[text], false).2, first, "{text}");
        }
        for (at, _) in text.char_indices() {
            assert_eq!(read(channels, begun, &[&text[..at], &text[at..]], true), expected, "{text} at {at}");
        }
    }
}

#[test]
fn malformed_answers_are_text() {
    for (channels, text, reasoning, content) in [
        (HARMONY, "Hello.", "", "Hello."),
        (HARMONY, "<b> <|", "", "<b> <|"),
        (HARMONY, "", "", ""),
        (HARMONY, "<|channel|>analysis<|message|>cut o", "cut o", ""),
        (HARMONY, "<|channel|>ana", "", ""),
        (HARMONY, "<|channel|>final<|message|>a<|en", "", "a<|en"),
        (HARMONY, "<|channel|>analysis to=python<|message|>1+1<|call|>", "1+1", ""),
        (
            HARMONY,
            "<|channel|>commentary to=functions.other<|message|>{}<|call|>",
            "",
            "<|channel|>commentary to=functions.other<|message|>{}",
        ),
        (MUSE, "Hello.", "", "Hello."),
        (MUSE, " to=get<|message|>no call<|eom|>", "", "no call"),
        (MUSE, " to=self<|message|>cut <|eo", "cut <|eo", ""),
        (KIMI_K3, "Hello <|open|>.", "", "Hello <|open|>."),
        (KIMI_K3, "<|open|>think<|sep|>cut <|close|>thi", "cut <|close|>thi", ""),
        (KIMI_K3, "<|open|>other<|sep|>a", "", "<|open|>other<|sep|>a"),
        (FUNCTIONARY, "Hello.", "", "Hello."),
        (FUNCTIONARY, "all\n>>>ge", "", ">>>ge"),
    ] {
        assert_eq!(read(channels, "", &[text], true), answer(reasoning, content, &[]), "{text}");
    }
    for (channels, begin) in [(HARMONY, "<|channel|>"), (MUSE, " to="), (KIMI_K3, "<|open|>")] {
        let endless = format!("{begin}{}", "x".repeat(10_000));
        assert_eq!(read(channels, "", &[&endless], true).1, endless);
    }
}

#[test]
fn the_prompt_has_the_beginning_of_the_answer() {
    for (channels, prompt, begun, more) in [
        (
            HARMONY,
            "<|end|><|start|>assistant<|channel|>final<|message|>It is",
            "<|channel|>final<|message|>It is",
            " x",
        ),
        (HARMONY, "<|start|>assistant", "", "<|channel|>final<|message|> x"),
        (MUSE, "<|start|>assistant", "", " to=user<|message|> x"),
        (
            KIMI_K3,
            "<|open|>message role=\"assistant\"<|sep|><|open|>response<|sep|>It is",
            "<|open|>response<|sep|>It is",
            " x",
        ),
        (FUNCTIONARY, "<|start_header_id|>assistant<|end_header_id|>\n\n>>>all\nIt is", "all\nIt is", " x"),
        (FUNCTIONARY, "<|start_header_id|>assistant<|end_header_id|>\n\n>>>", "", "all\n x"),
    ] {
        assert_eq!(channels.begun_answer(prompt), begun);
        assert_eq!(read(channels, begun, &[more], true), answer("", " x", &[]), "{prompt}");
    }
    let mut parser = ChannelParser::new(KIMI_K3, None);
    parser.continue_from("<|open|>think<|sep|>");
    assert!(parser.is_reasoning());
}

/// Headers and ends that are repeated without a message, and headers without an end.
#[test]
fn repeated_pieces_are_read_to_their_end() {
    for piece in [
        "<|start|>",
        "<|end|><|start|>x",
        "<|open|>",
        "<|open|>tools<|sep|>",
        "<|close|>",
        ">>>",
        ">>>get\n",
        "to=",
    ] {
        let text = piece.repeat(20_000 / piece.len());
        for channels in [HARMONY, MUSE, KIMI_K3, FUNCTIONARY] {
            let whole = read(channels, "", &[&text], true);
            let (first, last) = text.split_at(text.len() / 2);
            assert_eq!(read(channels, "", &[first, last], true), whole, "{piece}");
            let read: usize = whole.0.len() + whole.1.len();
            assert!(read <= text.len() + whole.2.len(), "{piece}");
        }
    }
    let endless = format!("<|start|>{}", "x".repeat(1_000));
    assert_eq!(read(HARMONY, "", &[&endless], true).1, endless);
}

/// Pieces of answers in all formats.
fn pieces() -> impl Strategy<Value = Vec<&'static str>> {
    let piece = prop::sample::select(vec![
        "<|start|>",
        "assistant",
        "<|channel|>",
        "analysis",
        "final",
        "commentary",
        " to=functions.get",
        "<|message|>",
        "<|end|>",
        "<|call|>",
        "<",
        "<|",
        "{\"a\": 1}",
        " ",
        "\n",
        "ü",
        "<|constrain|>json",
        " to=self",
        " to=get",
        " to=user",
        "<|eom|>",
        "<|eot|>",
        "<atem:function_calls>",
        "<atem:invoke name=\"get\">",
        "</atem:invoke>",
        "<atem:parameter name=\"s\">",
        "</atem:parameter>",
        "</atem:function_calls>",
        "<|open|>",
        "<|close|>",
        "<|sep|>",
        "think",
        "response",
        "tools",
        "message",
        "call tool=\"get\" index=\"1\"",
        "call",
        "argument",
        "argument key=\"s\" type=\"string\"",
        "<|open|>tools<|sep|>",
        "<|open|>response<|sep|>",
        ">",
        ">>>",
        "all",
        "get\n",
        "json type=\"object\"",
        "json",
    ]);
    prop::collection::vec(piece, 0..24)
}

proptest! {
    #[test]
    fn divisions_do_not_change_the_result(parts in pieces(), parallel: bool, begins: bool) {
        let text = parts.concat();
        for channels in [HARMONY, MUSE, KIMI_K3, FUNCTIONARY] {
            let begun = if begins { "<|open|>think<|sep|>" } else { "" };
            let whole = read(channels, begun, &[&text], parallel);
            let characters: Vec<String> = text.chars().map(String::from).collect();
            let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
            prop_assert_eq!(read(channels, begun, &characters, parallel), whole);
        }
    }
}

/// Calls of gpt-oss follow any messages in the channels for reasoning and remarks.
#[tokio::test(start_paused = true)]
async fn calls_of_harmony_follow_the_reasoning() {
    let format = ToolFormat::Harmony;
    for tokenizer in tokenizers() {
        let before = "<|channel|>analysis<|message|>Which {?<|end|><|start|>assistant";
        let call = "<|channel|>commentary to=functions.get <|constrain|>json<|message|>{\"n\": 1";
        let last = "<|channel|>final<|message|>Hello";
        for (choice, must) in [(ToolChoice::Required, true), (ToolChoice::Auto, false)] {
            let tools = tools(choice, true);
            let grammar = call_grammar(&tools, format, (&tokenizer).into(), None).unwrap();
            // The recipient may also follow the role.
            let role = " to=functions.get<|channel|>commentary json<|message|>{\"n\": 1";
            let constrained = " to=functions.get<|channel|>commentary <|constrain|>json<|message|>{\"n\": 1";
            for text in [call, role, constrained]
                .into_iter()
                .flat_map(|call| [call.to_owned(), format!("{before}{call}")])
            {
                let (text, ended) = random(&tokenizer, &grammar, 1, &text).await.unwrap();
                assert_eq!(check(&text, format, &tools, ended), 1, "{text}");
                assert_eq!(!parse(&text, format, &tools).reasoning.is_empty(), text.contains("analysis"));
            }
            let final_answer = random(&tokenizer, &grammar, 1, &format!("{before}{last}")).await;
            assert_eq!(final_answer.is_none(), must);
            for wrong in ["<|channel|>commentary to=functions.other", " to=functions.other"] {
                assert!(random(&tokenizer, &grammar, 1, wrong).await.is_none());
            }
            // An answer may end within its reasoning.
            let thought = "<|channel|>analysis<|message|>Which";
            let (text, ended) = random(&tokenizer, &grammar, 1, thought).await.unwrap();
            assert_eq!((text.as_str(), ended), (thought, true));
        }
        let answer = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
                            "additionalProperties": false});
        let tools = tools(ToolChoice::Auto, true);
        let grammar = call_grammar(&tools, format, (&tokenizer).into(), Some(&answer)).unwrap();
        assert!(random(&tokenizer, &grammar, 1, "<|channel|>final<|message|>{\"sum\": 7").await.is_some());
        assert!(random(&tokenizer, &grammar, 1, last).await.is_none());
    }
}

/// The formats, each with the beginning of a call, of a text and of JSON.
const BEGINNINGS: [(ToolFormat, &str, &str, &str, &str); 3] = [
    (
        ToolFormat::Muse,
        " to=get<|message|><atem:function_calls>\n<atem:invoke name=\"get\">\n<atem:parameter name=\"n\">",
        " to=user<|message|>Hello",
        " to=user<|message|>{\"sum\": 7",
        " to=get<|message|><atem:function_calls>\n<atem:invoke name=\"set\">",
    ),
    (
        ToolFormat::KimiK3,
        "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"get\" index=\"1\"<|sep|>\
         <|open|>argument key=\"n\" type=\"number\"<|sep|>",
        "Hello",
        "{\"sum\": 7",
        "<|close|>response<|sep|><|open|>tools<|sep|><|open|>call tool=\"other\"",
    ),
    (ToolFormat::Functionary, "get\n{\"n\": ", "all\nHello", "all\n{\"sum\": 7", "other\n"),
];

fn grammar(tokenizer: &Tokenizer, format: ToolFormat, choice: ToolChoice, schema: Option<&Value>) -> Grammar {
    call_grammar(&tools(choice, true), format, tokenizer.into(), schema).unwrap()
}

/// Returns what is read of an answer whose response the prompt has opened.
fn calls_of(text: &str, format: ToolFormat, ended: bool) -> usize {
    let allowed = tools(ToolChoice::Auto, true);
    match format {
        ToolFormat::KimiK3 => check(&format!("<|open|>response<|sep|>{text}"), format, &allowed, ended),
        _ => check(text, format, &allowed, ended),
    }
}

#[tokio::test(start_paused = true)]
async fn calls_in_channels_follow_their_schemas() {
    let schema = json!({"type": "object", "properties": {"sum": {"type": "integer"}}, "required": ["sum"],
                        "additionalProperties": false});
    for tokenizer in tokenizers() {
        for (format, call, text, json, wrong) in BEGINNINGS {
            for choice in [ToolChoice::Auto, ToolChoice::Required, ToolChoice::Named("get".into())] {
                let may_answer = choice == ToolChoice::Auto;
                let grammar = |schema| grammar(&tokenizer, format, choice.clone(), schema);
                let free = grammar(None);
                let (said, ended) = random(&tokenizer, &free, 1, &format!("{call}4")).await.unwrap();
                assert!(calls_of(&said, format, ended) >= 1, "{format}: {said}");
                assert!(random(&tokenizer, &free, 1, &format!("{call}\"x")).await.is_none(), "{format}");
                assert!(random(&tokenizer, &free, 1, wrong).await.is_none(), "{format}: {wrong}");
                assert_eq!(random(&tokenizer, &free, 1, text).await.is_some(), may_answer, "{format}");
                let bound = grammar(Some(&schema));
                assert_eq!(random(&tokenizer, &bound, 1, json).await.is_some(), may_answer, "{format}");
                assert!(random(&tokenizer, &bound, 1, text).await.is_none(), "{format}");
                assert!(random(&tokenizer, &bound, 1, call).await.is_some(), "{format}");
            }
            for seed in 0..4 {
                let required = grammar(&tokenizer, format, ToolChoice::Required, None);
                let (said, ended) = random(&tokenizer, &required, seed, "").await.unwrap();
                assert!(!ended || calls_of(&said, format, ended) >= 1, "{format}: {said}");
            }
        }
    }
}

#[tokio::test(start_paused = true)]
async fn text_in_channels_comes_before_calls() {
    for tokenizer in tokenizers() {
        for (format, said) in [
            (
                ToolFormat::KimiK3,
                format!(
                    "a < {}4<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
                    BEGINNINGS[1].1
                ),
            ),
            (ToolFormat::Functionary, "all\na >>> b>>>get\n{\"n\": 4}>>>set\n{\"to\": \"here\"}".to_owned()),
        ] {
            let grammar = grammar(&tokenizer, format, ToolChoice::Auto, None);
            let (text, ended) =
                random(&tokenizer, &grammar, 1, &said).await.unwrap_or_else(|| panic!("{said}"));
            assert_eq!((text.as_str(), ended), (said.as_str(), true), "{:?}", grammar);
            assert!(calls_of(&said, format, true) >= 1);
            assert!(parse(&said, format, &tools(ToolChoice::Auto, true)).content.starts_with("a "));
        }
    }
}

/// An answer whose form another grammar determines is in the channel of the answer.
#[tokio::test(start_paused = true)]
async fn other_grammars_apply_within_the_channel_of_the_answer() {
    let number = Grammar::Regex("[0-9]+".into());
    let kimi = "Why {<|close|>think<|sep|><|open|>response<|sep|>";
    for tokenizer in tokenizers() {
        for (channels, start, before, after) in [
            (MUSE, ReasoningStart::Possible, " to=user<|message|>", ""),
            (
                MUSE,
                ReasoningStart::Possible,
                " to=self<|message|>Why<|eom|><|start|>assistant to=user<|message|>",
                "",
            ),
            (KIMI_K3, ReasoningStart::Inside, kimi, "<|close|>response<|sep|><|close|>message<|sep|>"),
            (KIMI_K3, ReasoningStart::Possible, "", "<|close|>response<|sep|>"),
            (FUNCTIONARY, ReasoningStart::Inside, "all\n", ""),
            (FUNCTIONARY, ReasoningStart::Possible, "", ""),
        ] {
            let grammar = channels.around(number.clone(), start, (&tokenizer).into());
            let text = format!("{before}12{after}");
            let (said, ended) =
                random(&tokenizer, &grammar, 1, &text).await.unwrap_or_else(|| panic!("{text}"));
            assert!(ended && said.starts_with(&text), "{said}");
            assert!(random(&tokenizer, &grammar, 1, &format!("{before}a")).await.is_none(), "{text}");
        }
    }
}
