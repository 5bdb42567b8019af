//! The list of targets, and the unit of work of each.

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderName, HeaderValue};
use millrace_answers::grammar::{self, Grammar, GrammarCompiler};
use millrace_answers::tools::{AllowedTools, ChannelParser, Tool, ToolCallParser, ToolChoice, ToolFormat};
use millrace_text::assets::TextAssets;
use millrace_text::{ChatTemplate, Conversation, SpecialTokens, StopMatcher, StopText, Tokenizer};
use serde_json::{Value, json};

use super::alphabets::{self, Alphabet, InputFrame};
use super::target::{CostLimits, CostTarget, Work};
use crate::assets::Assets;
use crate::engine::EngineState;
use crate::fuzz;
use crate::http::{ApiKeys, HttpConfig, router};
use crate::service::{ModelInfo, RequestLimits, Service};
use crate::test_support::{self, EOS, FakeEngine, Script};

const fn frame(
    before: &'static str,
    between: &'static str,
    after: &'static str,
    alphabet: &'static Alphabet,
) -> InputFrame {
    InputFrame { before, between, after, alphabet }
}

/// Returns a frame without fixed text.
const fn bare(alphabet: &'static Alphabet) -> InputFrame {
    frame("", "", "", alphabet)
}

const CHAT: &str = r#"{"messages":[{"role":"user","content":"a"}],"#;

/// The growing parts in the bodies of requests, by route.
const BODIES: &[(&str, &[InputFrame])] = &[
    (
        "/generate",
        &[
            bare(&alphabets::JSON),
            frame(r#"{"inputs":"#, "", "}", &alphabets::JSON),
            frame(r#"{"inputs":""#, "", r#""}"#, &alphabets::STRING),
            frame(r#"{"inputs":"a","#, ",", "}", &alphabets::FIELDS),
            frame(r#"{"inputs":"a","parameters":{"#, ",", "}}", &alphabets::FIELDS),
            frame(r#"{"inputs":"a","parameters":{"stop":["#, ",", "]}}", &alphabets::TEXTS),
        ],
    ),
    (
        "/v1/completions",
        &[
            bare(&alphabets::JSON),
            frame(r#"{"prompt":["#, ",", "]}", &alphabets::VALUES),
            frame(r#"{"prompt":["#, ",", "]}", &alphabets::TEXTS),
            frame(r#"{"prompt":"a","#, ",", "}", &alphabets::FIELDS),
            frame(r#"{"prompt":"a","stop":["#, ",", "]}", &alphabets::TEXTS),
            frame(r#"{"prompt":"a","logit_bias":{"#, ",", "}}", &alphabets::FIELDS),
            frame(r#"{"prompt":"a","x":"#, "", "}", &alphabets::JSON),
        ],
    ),
    (
        "/v1/load_lora_adapter",
        &[bare(&alphabets::JSON), frame(r#"{"lora_name":""#, "", r#""}"#, &alphabets::STRING)],
    ),
    ("/v1/unload_lora_adapter", &[bare(&alphabets::JSON)]),
    ("/v1/restart_groups", &[bare(&alphabets::JSON)]),
    (
        "/v1/chat/completions",
        &[
            bare(&alphabets::JSON),
            frame(r#"{"messages":["#, ",", "]}", &alphabets::MESSAGES),
            frame(r#"{"messages":[{"role":"user","content":["#, ",", "]}]}", &alphabets::PARTS),
            frame(r#"{"messages":[{"role":"user","content":""#, "", r#""}]}"#, &alphabets::STRING),
            frame(r#"{"messages":[{"role":"assistant","content":""#, "", r#""}]}"#, &alphabets::STRING),
            frame(r#"{"messages":[{"role":"user","content":"a"}],"tools":["#, ",", "]}", &alphabets::TOOLS),
            frame(r#"{"messages":[{"role":"user","content":"a"}],"x":"#, "", "}", &alphabets::JSON),
            frame(r#"{"messages":[{"role":"user","content":"a","x":"#, "", "}]}", &alphabets::JSON),
            frame(r#"{"messages":[{"role":"user","content":"a"}],"documents":["#, "", "]}", &alphabets::JSON),
            frame(
                r#"{"messages":[{"role":"user","content":"a"}],"chat_template_kwargs":{"#,
                ",",
                "}}",
                &alphabets::FIELDS,
            ),
            frame(
                r#"{"messages":[{"role":"user","content":"a"}],"response_format":{"type":"json_object","schema":"#,
                "",
                "}}",
                &alphabets::JSON,
            ),
        ],
    ),
    (
        "/v1/responses",
        &[
            frame(r#"{"input":["#, ",", "]}", &alphabets::ITEMS),
            frame(r#"{"input":"a","tools":["#, ",", "]}", &alphabets::BARE_TOOLS),
            frame(r#"{"input":"a","include":["#, ",", "]}", &alphabets::TEXTS),
        ],
    ),
    (
        "/predict",
        &[
            frame(r#"{"inputs":[["#, ",", "]]}", &alphabets::TEXTS),
            frame(r#"{"inputs":["a",""#, "", r#""]}"#, &alphabets::STRING),
        ],
    ),
    (
        "/similarity",
        &[frame(r#"{"inputs":{"source_sentence":"a","sentences":["#, ",", "]}}", &alphabets::TEXTS)],
    ),
    (
        "/rerank",
        &[
            frame(r#"{"query":"a","texts":["#, ",", "]}", &alphabets::TEXTS),
            frame(r#"{"texts":["a"],"query":""#, "", r#""}"#, &alphabets::STRING),
        ],
    ),
    ("/v1/rerank", &[frame(r#"{"query":"a","documents":["#, ",", "]}", &alphabets::VALUES)]),
    ("/v2/rerank", &[frame(r#"{"query":"a","documents":["#, ",", "]}", &alphabets::TEXTS)]),
    ("/embed", &[frame(r#"{"inputs":["#, ",", "]}", &alphabets::VALUES)]),
    ("/v1/embeddings", &[frame(r#"{"input":["#, ",", "]}", &alphabets::VALUES)]),
    (
        "/v1/messages",
        &[
            frame(r#"{"max_tokens":9,"messages":["#, ",", "]}", &alphabets::TURNS),
            frame(
                r#"{"max_tokens":9,"messages":[{"role":"user","content":"a"}],"system":["#,
                ",",
                "]}",
                &alphabets::PARTS,
            ),
            frame(
                r#"{"max_tokens":9,"messages":[{"role":"user","content":"a"}],"tools":["#,
                ",",
                "]}",
                &alphabets::BARE_TOOLS,
            ),
        ],
    ),
    ("/v1/messages/count_tokens", &[frame(r#"{"messages":["#, ",", "]}", &alphabets::TURNS)]),
    (
        "/tokenize",
        &[
            frame(r#"{"inputs":""#, "", r#""}"#, &alphabets::STRING),
            frame(r#"{"prompt":""#, "", r#""}"#, &alphabets::STRING),
            frame(r#"{"messages":["#, ",", "]}", &alphabets::MESSAGES),
        ],
    ),
    ("/detokenize", &[frame(r#"{"tokens":["#, ",", "]}", &alphabets::VALUES)]),
    ("/chat_tokenize", &[frame(r#"{"messages":["#, ",", "]}", &alphabets::MESSAGES)]),
    ("/invocations", &[frame(r#"{"inputs":"a","#, ",", "}", &alphabets::FIELDS), bare(&alphabets::JSON)]),
    ("/vertex", &[frame(r#"{"instances":["#, ",", "]}", &alphabets::INSTANCES)]),
    (
        "/v2/models/tgi/infer",
        &[
            frame(r#"{"inputs":["#, ",", "]}", &alphabets::TENSORS),
            frame(r#"{"inputs":[{"name":"i","data":["#, ",", "]}]}", &alphabets::VALUES),
        ],
    ),
];

/// Typical chat templates: plain, with tools, and with several loops over the messages.
const TEMPLATES: &[(&str, &str)] = &[
    ("chatml", include_str!("../../../../integration-tests/oracle/templates/chatml.jinja")),
    ("llama31_tools", include_str!("../../../../integration-tests/oracle/templates/llama31_tools.jinja")),
    ("mistral_tools", include_str!("../../../../integration-tests/oracle/templates/mistral_tools.jinja")),
    ("qwen3_coder", include_str!("../../../../integration-tests/oracle/templates/qwen3_coder.jinja")),
    ("qwen_thinking", include_str!("../../../../integration-tests/oracle/templates/qwen_thinking.jinja")),
];

/// Conversations of many small items, by route.
const CONVERSATIONS: &[(&str, &[InputFrame])] = &[
    (
        "/v1/chat/completions",
        &[
            frame(
                r#"{"messages":[{"role":"user","content":"a"},{"role":"assistant","content":"a","tool_calls":["#,
                ",",
                "]}]}",
                &alphabets::CHAT_CALLS,
            ),
            frame(r#"{"messages":["#, ",", "]}", &alphabets::SMALL_MESSAGES),
        ],
    ),
    (
        "/v1/responses",
        &[frame(r#"{"input":[{"role":"user","content":"a"},"#, ",", "]}", &alphabets::CALL_ITEMS)],
    ),
    (
        "/v1/messages",
        &[
            frame(
                r#"{"max_tokens":9,"messages":[{"role":"user","content":"a"},{"role":"assistant","content":["#,
                ",",
                "]}]}",
                &alphabets::CALL_BLOCKS,
            ),
            frame(r#"{"max_tokens":9,"messages":["#, ",", "]}", &alphabets::SMALL_MESSAGES),
        ],
    ),
    ("/tokenize", &[frame(r#"{"messages":["#, ",", "]}", &alphabets::SMALL_MESSAGES)]),
];

/// Chat templates with and without a place for tool calls. The second one drops late system
/// messages.
const CALL_TEMPLATES: [(&str, &str); 2] = [
    (
        "calls in the template",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.reasoning_content }}{{ m.tool_calls }}{% endfor %}",
    ),
    (
        "calls as text",
        "{{ messages[0].content }}{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{{ m.reasoning_content }}{% endif %}{% endfor %}",
    ),
];

/// The names of the tool call formats on the command line.
const FORMATS: &[(&str, &Alphabet)] = &[
    ("hermes", &alphabets::CALLS),
    ("qwen3_coder", &alphabets::CALLS),
    ("llama3_json", &alphabets::CALLS),
    ("mistral", &alphabets::CALLS),
    ("mistral_v11", &alphabets::CALLS),
    ("json", &alphabets::CALLS),
    ("harmony", &alphabets::CHANNELS),
    ("kimi_k3", &alphabets::CHANNELS),
    ("muse", &alphabets::CHANNELS),
    ("functionary", &alphabets::CHANNELS),
];

/// Returns all targets.
pub fn targets() -> Vec<CostTarget> {
    let mut all = Vec::new();
    for &(path, frames) in BODIES {
        all.push(target(format!("body of {path}"), 3_000, frames, move |input| body(path, input)));
    }
    all.extend(conversations());
    all.push(target("headers".into(), 5_000, &[bare(&alphabets::HEADER)], headers));
    all.extend(tokenizers());
    all.extend(templates());
    for &(format, alphabet) in FORMATS {
        let read = move |input: &str| calls(format, input);
        all.push(target(format!("tool calls, {format}"), 2_000, &[bare(alphabet)], read));
    }
    all.push(target("stop strings".into(), 1_000, &[bare(&alphabets::TEXT), bare(&alphabets::CALLS)], stops));
    all.push(target("detokenizer".into(), 1_000, &[bare(&alphabets::TEXT)], detokenizer));
    for (path, request) in answers_to() {
        let is_stream = path.ends_with("_stream") || request["stream"] == true;
        let name = format!("{} of {path}", if is_stream { "stream" } else { "answer" });
        all.push(target(name, 50_000, &[bare(&alphabets::ANSWER)], move |said| answer(path, &request, said)));
    }
    all.extend(grammars());
    all
}

fn target(
    name: String,
    budget: u64,
    frames: &[InputFrame],
    prepare: impl Fn(&str) -> Work + 'static,
) -> CostTarget {
    let limits = CostLimits { budget, allowance: 0 };
    CostTarget { name, limits, frames: frames.to_vec(), prepare: Box::new(prepare) }
}

/// Sends a request with this body and reads the whole response.
fn body(path: &'static str, input: &str) -> Work {
    let request = fuzz::post(path, input.to_owned());
    Box::new(move || fuzz::assert_no_server_error(fuzz::app(), request))
}

/// Returns targets for whole conversations, with templates of both kinds.
fn conversations() -> Vec<CostTarget> {
    let mut all = Vec::new();
    for (kind, template) in CALL_TEMPLATES {
        let app = fuzz::runtime().block_on(async {
            let engine = FakeEngine::new(Script::Say("x".into()), 8).engine;
            let assets = test_support::assets_with_template(template);
            router(service(&assets, engine, RequestLimits::default()), HttpConfig::default())
        });
        for &(path, frames) in CONVERSATIONS {
            let app = app.clone();
            let send = move |input: &str| -> Work {
                let (app, request) = (app.clone(), fuzz::post(path, input.to_owned()));
                Box::new(move || fuzz::assert_no_server_error(&app, request))
            };
            all.push(target(format!("conversation of {path}, {kind}"), 3_000, frames, send));
        }
    }
    all
}

/// Sends a request with headers of this length to a server with API keys.
fn headers(input: &str) -> Work {
    let keys = ["one", "two priority=high"].map(|key| key.parse().unwrap());
    let config = HttpConfig { api_keys: ApiKeys::new(&keys, None), ..HttpConfig::default() };
    let app = fuzz::runtime().block_on(async {
        let engine = FakeEngine::new(Script::Say("x".into()), 8).engine;
        router(service(&test_support::assets(), engine, RequestLimits::default()), config)
    });
    let mut request = fuzz::post("/generate", r#"{"inputs":"a"}"#.to_owned());
    for name in
        ["authorization", "x-api-key", "x-request-id", "traceparent", "tracestate", "origin", "content-type"]
    {
        let value = HeaderValue::from_str(input).unwrap();
        request.headers_mut().append(HeaderName::from_static(name), value);
    }
    Box::new(move || fuzz::assert_no_server_error(&app, request))
}

fn service(assets: &Assets, engine: crate::engine::Engine, limits: RequestLimits) -> Service {
    let model = ModelInfo { id: "org/model".into(), ..ModelInfo::default() };
    Service::new(assets, engine, limits, model).unwrap()
}

/// Returns targets for the available tokenizers: single bytes, the demo model's, and a
/// SentencePiece tokenizer if the test data exists.
fn tokenizers() -> Vec<CostTarget> {
    let demo = include_bytes!("../../../../models/demo/tokenizer.json").to_vec();
    let demo = Tokenizer::new(&TextAssets { tokenizer: demo.into(), ..TextAssets::default() }).unwrap();
    let mut known = vec![("bytes", test_support::tokenizer()), ("demo", demo)];
    if std::env::var_os("MILLRACE_TEST_DATA").is_some() {
        known.push(("stories260k", test_support::published_tokenizer()));
    }
    let targets = known.into_iter().map(|(name, tokenizer)| {
        target(format!("tokenizer, {name}"), 20_000, &[bare(&alphabets::TEXT)], move |input| {
            let (tokenizer, input) = (tokenizer.clone(), input.to_owned());
            Box::new(move || drop(tokenizer.encode_now(&input, SpecialTokens::Add).unwrap()))
        })
    });
    targets.collect()
}

/// Returns targets for the template parser and for conversations in templates of several families.
fn templates() -> Vec<CostTarget> {
    let parser = |input: &str| -> Work {
        let source = input.to_owned();
        // The template may be refused.
        Box::new(move || drop(ChatTemplate::new(&source, None, None, None, 1)))
    };
    let mut all = vec![target("template parser".into(), 20_000, &[bare(&alphabets::TEMPLATE)], parser)];
    const CONVERSATIONS: &[InputFrame] = &[
        frame(r#"{"messages":["#, ",", "]}", &alphabets::MESSAGES),
        frame(r#"{"messages":[{"role":"user","content":""#, "", r#""}]}"#, &alphabets::STRING),
        frame(r#"{"messages":[{"role":"user","content":"a"}],"tools":["#, ",", "]}", &alphabets::TOOLS),
    ];
    for &(name, source) in TEMPLATES {
        let template = ChatTemplate::new(source, None, Some("<s>".into()), Some("</s>".into()), 1).unwrap();
        let render = move |input: &str| -> Work {
            let template = template.clone();
            let asked: Value = serde_json::from_str(input).unwrap_or_default();
            let list = |field: &str| asked[field].as_array().cloned();
            let conversation = Conversation {
                messages: list("messages").unwrap_or_default(),
                tools: list("tools"),
                add_generation_prompt: true,
                ..Conversation::default()
            };
            Box::new(move || drop(template.render_now(&conversation)))
        };
        all.push(target(format!("template, {name}"), 20_000, CONVERSATIONS, render));
    }
    all
}

fn tools() -> AllowedTools {
    let parameters =
        json!({"type": "object", "properties": {"s": {"type": "string"}, "n": {"type": "integer"}}});
    let tools = vec![Tool { name: "get".into(), parameters }];
    AllowedTools { tools, choice: ToolChoice::Auto, parallel: true }
}

/// Parses an answer in one piece and character by character.
fn calls(format: &str, input: &str) -> Work {
    let (format, tools): (ToolFormat, _) = (format.parse().unwrap(), tools());
    let input = input.to_owned();
    let characters = |input: &str, push: &mut dyn FnMut(&str)| {
        let mut buffer = [0; 4];
        input.chars().for_each(|c| push(c.encode_utf8(&mut buffer)));
    };
    let Some(channels) = format.channels() else {
        return Box::new(move || {
            let (mut whole, mut parts) =
                (ToolCallParser::new(format, &tools), ToolCallParser::new(format, &tools));
            whole.push(&input);
            whole.finish();
            characters(&input, &mut |piece| drop(parts.push(piece)));
            parts.finish();
        });
    };
    Box::new(move || {
        let (mut whole, mut parts) =
            (ChannelParser::new(channels, Some(&tools)), ChannelParser::new(channels, Some(&tools)));
        whole.push(&input);
        whole.finish();
        characters(&input, &mut |piece| drop(parts.push(piece)));
        parts.finish();
    })
}

/// Searches for stop strings in a text that nearly contains each of them repeatedly, character by
/// character.
fn stops(input: &str) -> Work {
    let part = |share: usize| {
        let end = (0..=input.len() / share).rev().find(|&end| input.is_char_boundary(end)).unwrap_or(0);
        format!("{}\u{1}", &input[..end])
    };
    let strings = [part(2), part(4), part(64), "END".to_owned()];
    let input = input.to_owned();
    Box::new(move || {
        for mode in [StopText::Keep, StopText::Remove] {
            let mut matcher = StopMatcher::new(strings.clone(), mode);
            let mut buffer = [0; 4];
            for c in input.chars() {
                matcher.push(c.encode_utf8(&mut buffer));
            }
            matcher.finish();
        }
    })
}

/// Decodes tokens of single bytes in reverse order, which includes invalid characters.
fn detokenizer(input: &str) -> Work {
    let ids: Vec<u32> = input.bytes().rev().map(u32::from).collect();
    let mut detokenizer = test_support::tokenizer().detokenizer(true, false);
    Box::new(move || {
        for id in ids {
            detokenizer.push(id);
        }
        detokenizer.finish();
    })
}

/// Returns requests for streamed and whole answers, with and without tools.
fn answers_to() -> Vec<(&'static str, Value)> {
    let tool = json!({"name": "get", "parameters": {"type": "object"}, "input_schema": {"type": "object"}});
    let function = json!({"type": "function", "function": tool.clone(), "name": "get", "parameters": {"type": "object"}});
    let mut chat: Value = serde_json::from_str(&format!("{CHAT}\"stream\":true}}")).unwrap();
    chat["tools"] = json!([function]);
    let mut whole = chat.clone();
    whole["stream"] = json!(false);
    let mut messages = chat.clone();
    messages["tools"] = json!([tool]);
    messages["max_tokens"] = json!(LONGEST_ANSWER);
    vec![
        ("/generate_stream", json!({"inputs": "a", "parameters": {"stop": ["\u{1}", "</tool_call>\u{1}"]}})),
        ("/v1/completions", json!({"prompt": "a", "stream": true, "stop": ["<tool_call>\u{1}"]})),
        ("/v1/chat/completions", chat),
        ("/v1/chat/completions", whole),
        ("/v1/responses", json!({"input": "a", "stream": true, "tools": [function]})),
        ("/v1/messages", messages),
    ]
}

/// The maximum number of tokens of an answer. The limit for a sequence leaves room for the prompt.
const LONGEST_ANSWER: u32 = 1 << 20;

/// Sends a request to which the scripted engine answers with this text, one byte per token.
fn answer(path: &'static str, request: &Value, said: &str) -> Work {
    let app: Router = fuzz::runtime().block_on(async {
        let fake = FakeEngine::new(Script::Say(said.to_owned()), 8);
        let ready = match &*fake.state.borrow() {
            EngineState::Ready(ready) => millrace_proto::Ready {
                max_sequence_tokens: 2 * LONGEST_ANSWER,
                num_blocks: LONGEST_ANSWER,
                ..(**ready).clone()
            },
            other => panic!("the stand-in is ready, not {other:?}"),
        };
        fake.state.send_replace(EngineState::Ready(Arc::new(ready)));
        // Without grammars nothing is compiled, which would dominate the measurement.
        let limits = RequestLimits {
            grammar_support: false,
            tool_format: Some(ToolFormat::Hermes),
            ..RequestLimits::default()
        };
        router(service(&test_support::assets(), fake.engine, limits), HttpConfig::default())
    });
    let request = fuzz::post(path, request.to_string());
    Box::new(move || fuzz::assert_no_server_error(&app, request))
}

/// The CPU time in nanoseconds that the compiler may take for any grammar. Its own limits end its
/// work. For example, the lexer of `a?a?a?…` has a quadratic number of states, up to such a limit.
const COMPILER_ALLOWANCE: u64 = 300_000_000;

/// Returns targets for the bounds of grammars, and for compiling grammars up to the first mask,
/// each with a new compiler.
fn grammars() -> Vec<CostTarget> {
    const SCHEMAS: &[InputFrame] = &[
        frame(r#"{"type":"object","properties":{"#, ",", "}}", &alphabets::SCHEMA),
        frame(r#"{"type":"object","required":["#, ",", "]}", &alphabets::TEXTS),
        frame(r#"{"enum":["#, ",", "]}", &alphabets::MEMBERS),
        frame(r#"{"anyOf":["#, ",", "]}", &alphabets::SCHEMAS),
        frame(r#"{"oneOf":["#, ",", "]}", &alphabets::SCHEMAS),
        frame(r#"{"allOf":["#, ",", "]}", &alphabets::SCHEMAS),
        frame(r#"{"prefixItems":["#, ",", "]}", &alphabets::SCHEMAS),
        frame(r#"{"$defs":{"#, ",", "}}", &alphabets::SCHEMA),
        frame(r#"{"patternProperties":{"#, ",", "}}", &alphabets::SCHEMA),
    ];
    let schema = |input: &str| match serde_json::from_str(input) {
        Ok(schema) => Grammar::Json(schema),
        Err(_) => Grammar::Json(Value::Bool(true)),
    };
    const LARK: &[InputFrame] = &[
        frame("start: ", "", "\na: \"a\"\nA: /a/\n", &alphabets::LARK),
        frame("start: \"a\"\n", "", "", &alphabets::LARK),
        frame("start: A\nA: /", "", "/\n", &alphabets::REGEX),
    ];
    const GBNF: &[InputFrame] = &[
        frame("root ::= ", "", "\na ::= \"a\"\n", &alphabets::GBNF),
        frame("root ::= a\n", "", "\na ::= root", &alphabets::GBNF),
    ];
    const REFERENCES: &[InputFrame] = &[
        frame(r#"{"$defs":{"#, ",", "}}", &alphabets::REFERENCES),
        frame(r#"{"$id":"https://a.example/","properties":{"#, ",", "}}", &alphabets::REFERENCES),
    ];
    type Read = fn(&str) -> Grammar;
    let kinds: [(&str, &[InputFrame], Read); 3] = [
        ("JSON schema", SCHEMAS, schema),
        ("regex", &[bare(&alphabets::REGEX)], |input| Grammar::Regex(input.to_owned())),
        ("Lark grammar", LARK, |input| Grammar::Lark(input.to_owned())),
    ];
    let mut all = vec![
        target("translation of GBNF".into(), 3_000, GBNF, |input| {
            let input = input.to_owned();
            Box::new(move || drop(std::hint::black_box(grammar::to_lark(&input))))
        }),
        target("references of a JSON schema".into(), 3_000, REFERENCES, |input| {
            let schema: Value = serde_json::from_str(input).unwrap_or_default();
            Box::new(move || drop(std::hint::black_box(grammar::with_plain_references(schema))))
        }),
    ];
    for (name, frames, read) in kinds {
        all.push(target(format!("bounds of a {name}"), 2_000, frames, move |input| {
            within_bounds(read(input))
        }));
        let mut compiler =
            target(format!("compiler of a {name}"), 500_000, frames, move |input| compile(read(input)));
        compiler.limits.allowance = COMPILER_ALLOWANCE;
        all.push(compiler);
    }
    all
}

/// Checks a grammar against the bounds.
fn within_bounds(grammar: Grammar) -> Work {
    Box::new(move || {
        std::hint::black_box(grammar::is_within_bounds(&grammar));
    })
}

fn compile(grammar: Grammar) -> Work {
    let compiler = GrammarCompiler::new(test_support::tokenizer(), Arc::new([EOS]));
    // The work that is done once for each model is not measured.
    let first = Grammar::Regex("a".into());
    fuzz::runtime().block_on(compiler.compile(&first, EOS + 1)).unwrap();
    // The grammar may be refused.
    Box::new(move || drop(fuzz::runtime().block_on(compiler.compile(&grammar, EOS + 1))))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::BODIES;
    use crate::fuzz;

    #[test]
    fn every_route_that_takes_a_body_is_a_target() {
        let targets: BTreeSet<&str> = BODIES.iter().map(|(path, _)| *path).collect();
        let served: BTreeSet<&str> = fuzz::post_paths().iter().map(String::as_str).collect();
        // `/` reads the body that `/invocations` reads, and `/generate_stream` the one of
        // `/generate`.
        let others = BTreeSet::from(["/", "/generate_stream"]);
        assert_eq!(targets, &served - &others, "BODIES has an entry for each of these routes");
    }
}
