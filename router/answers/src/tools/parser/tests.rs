//! Tests recorded answers of each format, in one piece and in all other divisions.

use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::tools::{Tool, ToolChoice};
use millrace_text::thread_time;

fn tools(parallel: bool) -> AllowedTools {
    let properties = json!({"s": {"type": "string"}, "e": {"enum": ["a", "1"]}, "n": {"type": "integer"}, "m": {"type": ["string", "null"]}});
    let tool = |name: &str| Tool { name: name.into(), parameters: json!({"properties": properties}) };
    AllowedTools { tools: vec![tool("get"), tool("set")], choice: ToolChoice::Auto, parallel }
}

/// The formats that this parser reads.
fn formats() -> impl Iterator<Item = ToolFormat> {
    ToolFormat::all().filter(|format| format.channels().is_none())
}

/// Parses an answer that arrives in these pieces. Returns its content and its calls.
fn read(format: ToolFormat, parallel: bool, pieces: &[&str]) -> (String, Vec<(String, String)>) {
    let mut parser = ToolCallParser::new(format, &tools(parallel));
    let (mut content, mut calls) = (String::new(), Vec::<(String, String)>::new());
    let deltas: Vec<AnswerDelta> = pieces.iter().map(|piece| parser.push(piece)).collect();
    for delta in deltas.into_iter().chain([parser.finish()]) {
        content += &delta.content;
        let indices: Vec<usize> = delta.calls.iter().map(|call| call.index).collect();
        assert!(indices.is_sorted_by(|a, b| a < b), "one part of each call: {indices:?}");
        for CallDelta { index, name, arguments } in delta.calls {
            match name {
                Some(name) => {
                    assert_eq!(index, calls.len(), "a name comes once and first");
                    calls.push((name, arguments));
                }
                None => {
                    assert_eq!(index + 1, calls.len());
                    calls[index].1 += &arguments;
                }
            }
        }
    }
    (content, calls)
}

/// A format, whether several calls are allowed, an answer, and its expected content and calls.
type Case = (ToolFormat, bool, &'static str, &'static str, &'static [(&'static str, &'static str)]);

const CASES: &[Case] = &[
    (
        ToolFormat::Hermes,
        true,
        "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"a\": \"}{\\\"]\", \"b\": [1, {}]}}\n</tool_call>",
        "",
        &[("get", "{\"a\": \"}{\\\"]\", \"b\": [1, {}]}")],
    ),
    (
        ToolFormat::Hermes,
        true,
        "I look.\n\n<tool_call>{\"name\":\"get\",\"arguments\":{}}</tool_call>\n<tool_call>\n{\"arguments\": {\"é\": \"ü😀\"}, \
         \"name\": \"set\"}\n</tool_call>\n",
        "I look.",
        &[("get", "{}"), ("set", "{\"é\": \"ü😀\"}")],
    ),
    (
        ToolFormat::Hermes,
        false,
        "<tool_call>{\"name\":\"get\",\"arguments\":{}}</tool_call><tool_call>{\"name\":\"set\",\"arguments\":{}}</tool_call>",
        "",
        &[("get", "{}")],
    ),
    (ToolFormat::Hermes, true, "a < b <tool_cal> \n", "a < b <tool_cal> \n", &[]),
    (
        ToolFormat::Hermes,
        true,
        "  {\"name\": \"get\", \"arguments\": {}}",
        "  {\"name\": \"get\", \"arguments\": {}}",
        &[],
    ),
    (
        ToolFormat::Hermes,
        true,
        "x <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
        "x <tool_call>{\"name\": \"other\", \"arguments\": {}}</tool_call>",
        &[],
    ),
    (ToolFormat::Hermes, true, "<tool_call>nonsense", "<tool_call>nonsense", &[]),
    (ToolFormat::Hermes, true, "<tool_call>{\"name\": \"g", "<tool_call>{\"name\": \"g", &[]),
    // An answer that ends at the token limit.
    (
        ToolFormat::Hermes,
        true,
        "<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": [1, \"x",
        "",
        &[("get", "{\"a\": [1, \"x")],
    ),
    (ToolFormat::Hermes, true, "", "", &[]),
    (ToolFormat::Hermes, true, " \n", " \n", &[]),
    (
        ToolFormat::Mistral,
        true,
        "Sure. [TOOL_CALLS] [{\"name\": \"get\", \"arguments\": {\"a\": [\"]\"]}}, {\"name\": \"set\", \"arguments\": {}}]",
        "Sure.",
        &[("get", "{\"a\": [\"]\"]}"), ("set", "{}")],
    ),
    (ToolFormat::Mistral, true, "[TOOL_CALLS] none", "[TOOL_CALLS] none", &[]),
    (ToolFormat::Mistral, true, "[1, 2]", "[1, 2]", &[]),
    (
        ToolFormat::Llama3Json,
        true,
        "{\"name\": \"get\", \"parameters\": {\"a\": 1}}",
        "",
        &[("get", "{\"a\": 1}")],
    ),
    (
        ToolFormat::Llama3Json,
        true,
        "<|python_tag|>{\"name\": \"get\", \"parameters\": {}}; {\"name\": \"set\", \"parameters\": {\"b\": null}}",
        "",
        &[("get", "{}"), ("set", "{\"b\": null}")],
    ),
    (ToolFormat::Llama3Json, true, "{\"answer\": 42}", "{\"answer\": 42}", &[]),
    (ToolFormat::Llama3Json, true, "It is {\"name\": \"get\"}", "It is {\"name\": \"get\"}", &[]),
    (
        ToolFormat::Json,
        true,
        "\n{\"name\": \"set\", \"arguments\": {\"x\": 1.5e3}}",
        "",
        &[("set", "{\"x\": 1.5e3}")],
    ),
    (
        ToolFormat::Json,
        true,
        "[{\"name\": \"set\", \"arguments\": {}}, {\"name\": \"get\", \"arguments\": {}}]",
        "",
        &[("set", "{}"), ("get", "{}")],
    ),
    (ToolFormat::Json, true, "[1, 2, 3]", "[1, 2, 3]", &[]),
    (ToolFormat::Json, true, "Just text.", "Just text.", &[]),
    // Another order of fields, other fields, and a name with an escape.
    (
        ToolFormat::Json,
        true,
        "{\"id\": 7, \"arguments\": {\"k\": true}, \"x\": [\"name\"], \"name\": \"g\\u0065t\"}",
        "",
        &[("get", "{\"k\": true}")],
    ),
    // A name alone is a call without arguments. Other JSON with the name of a tool is text.
    (ToolFormat::Json, true, "{\"name\": \"get\"}", "", &[("get", "{}")]),
    (ToolFormat::Hermes, true, "<tool_call>{\"name\": \"get\"}</tool_call>", "", &[("get", "{}")]),
    (ToolFormat::Llama3Json, true, "{\"type\": \"function\", \"name\": \"get\"}", "", &[("get", "{}")]),
    (
        ToolFormat::Llama3Json,
        true,
        "{\"name\": \"Ada\", \"age\": 36}",
        "{\"name\": \"Ada\", \"age\": 36}",
        &[],
    ),
    (
        ToolFormat::Llama3Json,
        true,
        "{\"name\": \"get\", \"age\": 36}",
        "{\"name\": \"get\", \"age\": 36}",
        &[],
    ),
    (
        ToolFormat::Llama3Json,
        true,
        "{\"age\": 36, \"name\": \"get\"} ",
        "{\"age\": 36, \"name\": \"get\"} ",
        &[],
    ),
    (
        ToolFormat::Llama3Json,
        true,
        "{\"name\": \"get\", \"parameters\": [1]}",
        "{\"name\": \"get\", \"parameters\": [1]}",
        &[],
    ),
    (ToolFormat::Llama3Json, true, "{\"a\": {\"name\": \"get\"}} ok", "{\"a\": {\"name\": \"get\"}} ok", &[]),
    (
        ToolFormat::MistralV11,
        true,
        "Sure. [TOOL_CALLS]get[ARGS]{\"a\": [\"}\", {}]}[TOOL_CALLS]set[CALL_ID]abcdef123[ARGS]{}",
        "Sure.",
        &[("get", "{\"a\": [\"}\", {}]}"), ("set", "{}")],
    ),
    (ToolFormat::MistralV11, false, "[TOOL_CALLS]get[ARGS]{}[TOOL_CALLS]set[ARGS]{}", "", &[("get", "{}")]),
    // Answers without the marker before the arguments, and answers that are cut off.
    (ToolFormat::MistralV11, true, "[TOOL_CALLS] get {\"a\": 1", "", &[("get", "{\"a\": 1")]),
    (ToolFormat::MistralV11, true, "[TOOL_CALLS]other[ARGS]{} b", "[TOOL_CALLS]other[ARGS]{} b", &[]),
    (ToolFormat::MistralV11, true, "[TOOL_CALLS]get", "[TOOL_CALLS]get", &[]),
    (ToolFormat::MistralV11, true, "[TOOL_CALLS]get[ARGS]{} Done.", "Done.", &[("get", "{}")]),
    (
        ToolFormat::Qwen3Coder,
        true,
        "Well.\n<tool_call>\n<function=get>\n<parameter=s>\na \"q\"\n</parameter</para\n\n</parameter>\n<parameter=n>\n 7 \n</parameter>\n\
         </function>\n</tool_call>\n<tool_call><function=set></function></tool_call>",
        "Well.",
        &[("get", "{\"s\": \"a \\\"q\\\"\\n</parameter</para\\n\", \"n\": 7}"), ("set", "{}")],
    ),
    // Strings that look like other values, values of a wrong type, and arguments that are not in
    // the schema.
    (
        ToolFormat::Qwen3Coder,
        true,
        "<tool_call><function=get><parameter=s>1</parameter><parameter=e>1</parameter><parameter=m>1</parameter>\
         <parameter=n>x</parameter><parameter=ü>[1, {}]</parameter><parameter=y>True</parameter></function></tool_call>",
        "",
        &[("get", "{\"s\": \"1\", \"e\": \"1\", \"m\": \"1\", \"n\": \"x\", \"ü\": [1, {}], \"y\": true}")],
    ),
    (
        ToolFormat::Qwen3Coder,
        true,
        "<tool_call><function=get><parameter=m>null</parameter><parameter=s>\nab\n</par",
        "",
        &[("get", "{\"m\": null, \"s\": \"ab")],
    ),
    (ToolFormat::Qwen3Coder, true, "<tool_call><function=other>", "<tool_call><function=other>", &[]),
    (ToolFormat::Qwen3Coder, true, "<tool_call>{\"name\": \"get\"}", "<tool_call>{\"name\": \"get\"}", &[]),
    (ToolFormat::Qwen3Coder, true, "<tool_call><function=get><b>", "", &[("get", "")]),
    (
        ToolFormat::LlamaFunction,
        true,
        "I look. <function=get>{\"a\": [\"}\"]}</function>\n<function=set>{}</function> Done.",
        "I look. Done.",
        &[("get", "{\"a\": [\"}\"]}"), ("set", "{}")],
    ),
    (ToolFormat::LlamaFunction, true, "<function=other>{}</function>", "<function=other>{}</function>", &[]),
    (
        ToolFormat::Pythonic,
        true,
        "[get(s='it\\'s \"q\" \\n', n=-1.5e3, b=True), set(o={'k': [None, False, \"]\"]}, u=\"\\u00fc)\"), get()]",
        "",
        &[
            ("get", "{\"s\": \"it's \\\"q\\\" \\n\", \"n\": -1.5e3, \"b\": true}"),
            ("set", "{\"o\": {\"k\": [null, false, \"]\"]}, \"u\": \"\\u00fc)\"}"),
            ("get", "{}"),
        ],
    ),
    (ToolFormat::Pythonic, true, "[get(s=1) Done.", "Done.", &[("get", "{\"s\": 1}")]),
    (ToolFormat::Pythonic, true, "[get(s=f(1))]", "[get(s=f(1))]", &[]),
    (ToolFormat::Pythonic, true, "[get(s=[1, ])]", "[get(s=[1, ])]", &[]),
    (ToolFormat::Pythonic, true, "[other(s=1)]", "[other(s=1)]", &[]),
    (ToolFormat::Pythonic, true, "[get(s='cut", "[get(s='cut", &[]),
    (ToolFormat::Pythonic, true, "See [1].", "See [1].", &[]),
    (ToolFormat::Pythonic, true, "<|python_start|>[get(n = 1)]<|python_end|>", "", &[("get", "{\"n\": 1}")]),
    (
        ToolFormat::Lfm2,
        true,
        "Wait. <|tool_call_start|>[get(n=1), set()]<|tool_call_end|>Done.",
        "Wait.Done.",
        &[("get", "{\"n\": 1}"), ("set", "{}")],
    ),
    (
        ToolFormat::DeepSeekV3,
        true,
        "Wait.<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>get\n```json\n{\"n\": 1}\n```<｜tool▁call▁end｜>\n\
         <｜tool▁call▁begin｜>function<｜tool▁sep｜>set\n```json\n{}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>",
        "Wait.",
        &[("get", "{\"n\": 1}"), ("set", "{}")],
    ),
    (
        ToolFormat::DeepSeekV31,
        true,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{\"n\": 1}<｜tool▁call▁end｜>\
         <｜tool▁call▁begin｜>set<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁calls▁end｜>Done <｜.",
        "Done <｜.",
        &[("get", "{\"n\": 1}"), ("set", "{}")],
    ),
    (
        ToolFormat::DeepSeekV31,
        false,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>get<｜tool▁sep｜>{}<｜tool▁call▁end｜><｜tool▁call▁begin｜>set<｜tool▁sep｜>{}",
        "",
        &[("get", "{}")],
    ),
    (
        ToolFormat::DeepSeekV31,
        true,
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>{}",
        "<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>other<｜tool▁sep｜>{}",
        &[],
    ),
    (
        ToolFormat::DeepSeekV32,
        true,
        "Wait.\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"get\">\n<｜DSML｜parameter name=\"s\" string=\"true\">a </b></｜DSML｜parameter>\n\
         <｜DSML｜parameter name=\"n\" string=\"false\">7</｜DSML｜parameter>\n<｜DSML｜parameter name=\"x\" string=\"true\">7</｜DSML｜parameter>\n\
         </｜DSML｜invoke>\n<｜DSML｜invoke name=\"set\">\n</｜DSML｜invoke>\n</｜DSML｜function_calls>",
        "Wait.",
        &[("get", "{\"s\": \"a </b>\", \"n\": 7, \"x\": \"7\"}"), ("set", "{}")],
    ),
    (
        ToolFormat::DeepSeekV4,
        true,
        "<｜DSML｜tool_calls><｜DSML｜invoke name=\"set\"></｜DSML｜invoke></｜DSML｜tool_calls>Done.",
        "Done.",
        &[("set", "{}")],
    ),
    (
        ToolFormat::Apertus,
        true,
        "Wait. <|tools_prefix|>[{\"get\": {\"n\": 1, \"x\": {}}}, {\"set\": {}}]<|tools_suffix|>",
        "Wait.",
        &[("get", "{\"n\": 1, \"x\": {}}"), ("set", "{}")],
    ),
    (
        ToolFormat::Apertus,
        true,
        "<|tools_prefix|>[{\"other\": {}}]",
        "<|tools_prefix|>[{\"other\": {}}]",
        &[],
    ),
    (
        ToolFormat::Hy3,
        true,
        "Wait.<tool_calls:opensource>\n<tool_call:opensource>get<tool_sep:opensource>\n<arg_key:opensource>s</arg_key:opensource>\n\
         <arg_value:opensource>a <b></arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n\
         <arg_value:opensource>7</arg_value:opensource>\n</tool_call:opensource>\n\
         <tool_call:opensource>set<tool_sep:opensource></tool_call:opensource></tool_calls:opensource>",
        "Wait.",
        &[("get", "{\"s\": \"a <b>\", \"n\": 7}"), ("set", "{}")],
    ),
    (
        ToolFormat::MiniCpm5,
        true,
        "Wait.\n<function name=\"get\"><param name=\"s\"><![CDATA[a </param> <b>]]></param><param name=\"n\">7</param>\
         <param name=\"x\">{'z': ['y', True, []]}</param></function>\n<function name=\"set\"><param name=\"s\"><![CDAT</param></function>",
        "Wait.",
        &[
            ("get", "{\"s\": \"a </param> <b>\", \"n\": 7, \"x\": {\"z\": [\"y\", true, []]}}"),
            ("set", "{\"s\": \"<![CDAT\"}"),
        ],
    ),
    (ToolFormat::MiniCpm5, true, "A <function> and <function name", "A <function> and <function name", &[]),
    (ToolFormat::MiniCpm5, true, "<function name=\"other\">", "<function name=\"other\">", &[]),
    (
        ToolFormat::Gemma4,
        true,
        "Wait.<|tool_call>call:get{n:-1.5e3,o:{k:[<|\"|>a<|b\"\n<|\"|>,true,[],{}],z:None},s:<|\"|><|\"|>}<tool_call|>\
         <|tool_call>call:set{}<tool_call|>",
        "Wait.",
        &[
            (
                "get",
                "{\"n\": -1.5e3, \"o\": {\"k\": [\"a<|b\\\"\\n\", true, [], {}], \"z\": null}, \"s\": \"\"}",
            ),
            ("set", "{}"),
        ],
    ),
    (ToolFormat::Gemma4, true, "<|tool_call>call:get{s:<|\"|>cut o", "", &[("get", "{\"s\": \"cut o")]),
    (ToolFormat::Gemma4, true, "<|tool_call>call:other{}", "<|tool_call>call:other{}", &[]),
    (ToolFormat::Gemma4, true, "<|tool_call>{\"name\"", "<|tool_call>{\"name\"", &[]),
    (ToolFormat::Glm4, true, "get\n{\"n\": 1}", "", &[("get", "{\"n\": 1}")]),
    (ToolFormat::Glm4, true, "get {\"n\": 1}", "get {\"n\": 1}", &[]),
    (ToolFormat::Glm4, true, " getting there", " getting there", &[]),
    (ToolFormat::Glm4, true, "\nset", "\nset", &[]),
    (
        ToolFormat::Glm45,
        true,
        "Wait.\n<tool_call>get\n<arg_key>s</arg_key>\n<arg_value>a\n</arg_val></arg_value>\n<arg_key>n</arg_key>\n<arg_value>7</arg_value>\n\
         </tool_call>\n<tool_call>set</tool_call><tool_call>get<arg_key>m</arg_key><arg_value>null</arg_value></tool_call>",
        "Wait.",
        &[("get", "{\"s\": \"a\\n</arg_val>\", \"n\": 7}"), ("set", "{}"), ("get", "{\"m\": null}")],
    ),
    (ToolFormat::Glm45, true, "<tool_call>other\n", "<tool_call>other\n", &[]),
    (
        ToolFormat::KimiK2,
        true,
        "Wait.<|tool_calls_section_begin|><|tool_call_begin|>functions.get:0<|tool_call_argument_begin|>{\"n\": 1}<|tool_call_end|>\
         <|tool_call_begin|>functions.set:1<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>",
        "Wait.",
        &[("get", "{\"n\": 1}"), ("set", "{}")],
    ),
    (
        ToolFormat::KimiK2,
        true,
        "<|tool_calls_section_begin|><|tool_call_begin|>get{",
        "<|tool_calls_section_begin|><|tool_call_begin|>get{",
        &[],
    ),
    (
        ToolFormat::MiniMaxM2,
        true,
        "Wait.\n<minimax:tool_call>\n<invoke name=\"get\">\n<parameter name=\"s\">\na\n</parameter>\n<parameter name=\"n\">7</parameter>\n\
         </invoke>\n<invoke name=\"set\">\n</invoke>\n</minimax:tool_call>\nDone.",
        "Wait.Done.",
        &[("get", "{\"s\": \"\\na\\n\", \"n\": 7}"), ("set", "{}")],
    ),
    (
        ToolFormat::SeedOss,
        true,
        "Wait.\n<seed:tool_call>\n<function=get>\n<parameter=s>a b</parameter>\n<parameter=n>7</parameter>\n</function>\n\
         </seed:tool_call>\n<seed:tool_call>\n<function=set>\n</function>\n</seed:tool_call>",
        "Wait.",
        &[("get", "{\"s\": \"a b\", \"n\": 7}"), ("set", "{}")],
    ),
    (
        ToolFormat::Phi4Mini,
        true,
        "<|tool_call|>[{\"name\": \"get\", \"arguments\": {}}, {\"name\": \"set\", \"arguments\": {}}]<|/tool_call|>Done.",
        "Done.",
        &[("get", "{}"), ("set", "{}")],
    ),
    (
        ToolFormat::Cohere,
        true,
        "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"get\", \"parameters\": {\"n\": 1}}\n]<|END_ACTION|>",
        "",
        &[("get", "{\"n\": 1}")],
    ),
    (
        ToolFormat::Nemotron,
        true,
        "<TOOLCALL>[{\"name\": \"get\", \"arguments\": {}}]</TOOLCALL>",
        "",
        &[("get", "{}")],
    ),
    (
        ToolFormat::GigaChat,
        true,
        "<|function_call|>{\"name\": \"get\", \"arguments\": {\"n\": 1}}",
        "",
        &[("get", "{\"n\": 1}")],
    ),
];

#[test]
fn each_answer_has_the_expected_content_and_calls() {
    for &(format, parallel, answer, content, calls) in CASES {
        let calls: Vec<_> = calls.iter().map(|(name, args)| (name.to_string(), args.to_string())).collect();
        assert_eq!(read(format, parallel, &[answer]), (content.to_owned(), calls), "{answer}");
    }
}

#[test]
fn divisions_do_not_change_the_result() {
    for &(format, parallel, answer, ..) in CASES {
        let whole = read(format, parallel, &[answer]);
        for at in (0..=answer.len()).filter(|&at| answer.is_char_boundary(at)) {
            assert_eq!(read(format, parallel, &[&answer[..at], &answer[at..]]), whole, "{answer} at {at}");
        }
        let characters: Vec<String> = answer.chars().map(String::from).collect();
        let characters: Vec<&str> = characters.iter().map(String::as_str).collect();
        assert_eq!(read(format, parallel, &characters), whole);
    }
}

proptest! {
    /// Parses arbitrary text. Its division into pieces does not change the result.
    #[test]
    fn random_divisions_do_not_change_the_result(
        parts in prop::collection::vec(prop_oneof![
            Just("<tool_call>"), Just("</tool_call>"), Just("[TOOL_CALLS]"), Just("<|python_tag|>"), Just("{"), Just("}"),
            Just("\"name\""), Just(": "), Just("\"get\""), Just("\"arguments\""), Just("[ARGS]"), Just("get"), Just("[CALL_ID]"), Just("<function=get>"),
            Just("<parameter=s>"), Just("<parameter=n>"), Just("</parameter>"), Just("\n</param"), Just("</function>"), Just("<"), Just("\"parameters\""), Just(", "), Just("["),
            Just("]"), Just("\\\""), Just(";"), Just("\n"), Just(" "), Just("ü"), Just("<tool"), Just("{\"name\": \"get\", \"arguments\": {"),
            Just("<｜tool▁calls▁begin｜>"), Just("<｜tool▁call▁begin｜>"), Just("<｜tool▁sep｜>"), Just("<｜tool▁call▁end｜>"), Just("```"), Just("<arg_key>"),
            Just("</arg_key>"), Just("<arg_value>"), Just("</arg_value>"), Just("<minimax:tool_call>"), Just("<invoke name=\"get\">"), Just("</invoke>"),
            Just("<|tool_calls_section_begin|>"), Just("functions.get:0<|tool_call_argument_begin|>"), Just("[get("), Just("s='"), Just("'"), Just(")"),
            Just("<|tool_call|>"), Just("<|START_ACTION|>"), Just("<function=get>{}"), Just("set\n{}"),
        ], 0..20),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6),
        parallel: bool,
    ) {
        let answer = parts.concat();
        let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(answer.len() + 1)).filter(|&at| answer.is_char_boundary(at)).collect();
        at.extend([0, answer.len()]);
        at.sort_unstable();
        let pieces: Vec<&str> = at.windows(2).map(|cut| &answer[cut[0]..cut[1]]).collect();
        for format in formats() {
            prop_assert_eq!(read(format, parallel, &pieces), read(format, parallel, &[&answer]));
        }
    }
}

/// Texts of about this length that a parser holds back or examines repeatedly, each with the prefix
/// that begins it.
fn long_answers(bytes: usize) -> Vec<(&'static str, String)> {
    let of = |prefix: &str, part: &str| format!("{prefix}{}", part.repeat(bytes / part.len()));
    vec![
        ("white space", of("", " ")),
        ("white space after text", of("a", " \n")),
        ("wide white space", of("a", "\u{2003}")),
        ("less-than signs", of("", "<")),
        ("beginnings of Hermes' mark", of("", "<tool_call")),
        ("beginnings of Mistral's mark", of("", " [TOOL_CALLS")),
        ("beginnings of Llama's mark", of("", "<|python_tag|")),
        ("marks", of("", "<tool_call>")),
        ("marks without calls", of("", "<tool_call>x ")),
        ("white space after Hermes' mark", of("<tool_call>", " ")),
        ("white space after Mistral's mark", of("[TOOL_CALLS]get[ARGS]", " ")),
        ("white space after a call", of("<tool_call>{\"name\": \"get\", \"arguments\": {}}", " ")),
        ("a string without an end", of("<tool_call>{\"name\": \"get\", \"arguments\": {\"a\": \"", "\\\\ x")),
        ("a name without an end", of("<tool_call>{\"name\": \"", "get")),
        ("objects without an end", of("{\"name\": \"get\", \"arguments\": {\"a\": ", "{\"a\": [")),
        ("keys without a name", of("<tool_call>{", "\"a\": 1, ")),
        ("a bare list", of("[", "[1, ")),
        ("a text in tags", of("<tool_call><function=get><parameter=s>", "</parameter ")),
        ("a number in tags", of("<tool_call><function=get><parameter=n>", "1</parameter")),
        ("tags of arguments", of("<tool_call><function=get>", "<parameter=s>a</parameter> ")),
        ("a tag without an end", of("<tool_call><function=", "get")),
        ("a list in Python", of("[get(s=[", "1, ")),
        ("a string in Python", of("[get(s='", "\\u00fc")),
        ("calls in Python", of("[", "get(s=1), ")),
        ("a value of GLM", of("<tool_call>get<arg_key>s</arg_key><arg_value>", "</arg_value ")),
        ("sections of DeepSeek", of("", "<｜tool▁calls▁begin｜>")),
        ("calls of DeepSeek", of("<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>get<｜tool▁sep｜>{}")),
        ("names of tools", of("", "get\n")),
    ]
}

#[test]
fn the_time_is_linear_in_the_text() {
    // A quadratic parser takes 2 * 10^10 steps for 200 000 characters of white space, which is more
    // than ten seconds on any machine. A linear one takes some milliseconds.
    for format in formats() {
        for (name, answer) in long_answers(200_000) {
            let since = thread_time();
            let (content, _) = read(format, true, &[&answer]);
            assert!(content.len() <= answer.len());
            let seconds = (thread_time() - since).as_secs_f64();
            assert!(seconds < 2.0, "{format}, {name}: {seconds} s");
        }
    }
}

#[test]
fn an_argument_is_read_in_linear_time_whatever_its_schema() {
    let values: Vec<_> = (0..20_000).map(|i| i.to_string()).collect();
    let parameters = json!({"properties": {"e": {"enum": values}}});
    let tool = Tool { name: "get".into(), parameters };
    let tools = AllowedTools { tools: vec![tool], choice: ToolChoice::Auto, parallel: true };
    let mut parser = ToolCallParser::new(ToolFormat::Qwen3Coder, &tools);
    let since = thread_time();
    let answer = format!("<tool_call><function=get><parameter=e>{}", "1".repeat(50_000));
    assert_eq!(parser.push(&answer).calls[0].arguments.len(), "{\"e\": \"".len() + 50_000);
    let took = thread_time() - since;
    assert!(took.as_secs_f64() < 2.0, "{took:?}");
}
