//! Writes the tables of `docs/compatibility.md`: the effect of each field of each API, found by
//! sending it.

use std::collections::BTreeSet;
use std::fmt::Write;

use millrace_answers::tools::ToolFormat;
use serde_json::{Map, Value};

use super::docs::{fields, openapi, resolve};
use super::rows::posts;
use super::{HttpConfig, RequestLimits, Script, Server};
use crate::assets::Assets;
use crate::service::{AdapterInfo, ModelInfo};
use crate::test_support;

/// The fields of the original APIs and of this server, each with a value that shows its effect, the
/// fields that it needs `with` it, and a note. The sources are the documentation of TGI 3.3, vLLM
/// 0.11 and llama.cpp's server, and the types of the clients that `integration-tests/clients` pins.
const FIELDS: &str = include_str!("fields.json");

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/compatibility.md");

const INTRODUCTION: &str = "# Compatibility

This page is for people who move a client to Millrace. It says what the server does with each field
of a request:

- **Supported**: the field changes the answer as its API says.
- **Refused**: an error 4xx names the field, because the answer would not be what was asked for.
- **Ignored**: the field has no effect, for the reason given.

Unknown fields are ignored, too. A field with the value null counts as absent. The header
`x-millrace-ignored` of an answer of OpenAI's and Anthropic's APIs names the fields that were sent
and ignored.

Where TGI's `/v1` routes answer 422 (`suffix`, an empty list of prompts, too many prompts), Millrace
answers 400 in OpenAI's shape, as for every mistake on these routes. `/tokenize` takes vLLM's
requests (`prompt` or `messages`) beside TGI's (`inputs`).

A test writes this page: it sends every field to the server and compares what comes back. The
command is `cargo xtask compatibility`.
";

const CLOSING: &str = "
## Clients

These run unchanged against the server, in the versions that `integration-tests/clients` pins.

| Client | API | What is run | By |
|---|---|---|---|
| OpenAI's libraries for Python and JavaScript | `/v1/chat/completions`, `/v1/completions`, `/v1/responses`, `/v1/embeddings` | chats, streams, tools, structured output, errors | `cargo xtask clients` |
| Anthropic's library for Python | `/v1/messages` | the same | `cargo xtask clients` |
| `text-generation`, `huggingface_hub` | TGI's routes and `/v1` | the same | `cargo xtask clients` |
| Claude Code | `/v1/messages` | a chat, a stream, `Read` and `Bash` turns, a session that goes on | `cargo xtask agents` |
| Codex | `/v1/responses` | a chat, a shell turn, a patch, a tool in a namespace, an output schema | `cargo xtask agents` |
| opencode | `/v1/chat/completions` | a chat, a turn with its tool that reads files | `cargo xtask agents` |
| aider | `/v1/chat/completions` | a chat, an edit of a file | `cargo xtask agents` |
| `@huggingface/inference` | `/v1` | a chat, a stream, a tool turn, text generation | `cargo xtask agents` |
| Vercel's AI SDK (`openai`, `openai-compatible`, `anthropic`) | `/v1/chat/completions`, `/v1/responses`, `/v1/messages` | a chat, a stream, a tool turn, an object | `cargo xtask agents` |
| LangChain (`langchain-openai`) | `/v1/chat/completions`, `/v1/responses` | a chat, a stream, a tool turn, an object, a prompt that is too long | `cargo xtask agents` |
| litellm (`openai`, `hosted_vllm`, `anthropic`) | `/v1/chat/completions`, `/v1/messages` | a chat, a stream, a tool turn, a prompt that is too long | `cargo xtask agents` |
| lm-evaluation-harness | `/v1/completions`, `/v1/chat/completions`, `/tokenizer_info`, `/tokenize` | multiple choice by log-probabilities, generation | `cargo xtask agents` |

Cline and Continue run inside an editor; `cargo xtask agents` sends requests of their shape.

## Chat templates

36 published chat templates were rendered with 20 conversations each, beside transformers 5.23: all
672 texts that transformers makes are the same here. Of the 48 conversations that transformers
refuses, 30 are refused here too, and 18 are rendered. The templates are test data outside of the
repository, in the folder `chat-templates` of `MILLRACE_TEST_DATA`:
`cargo test -p millrace-text --lib published_templates_are_rendered -- --ignored --nocapture`.
";

/// Routes that take the same requests as another route.
const SAME: &[&str] = &["/generate_stream", "/tokenize", "/invocations"];

/// An answer that shows every effect: it has reasoning, text, a stop string, and two calls.
const ANSWER: &str = "<think>a</think>one END two <tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>\
<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>";

/// A template without tools, so that the prompt shows how tools are described to the model. Its
/// comment shows the format of the reasoning.
const TEMPLATE: &str = "{# <think></think> #}{% if documents %}{{ documents | tojson }}{% endif %}\
{% if thinking %}think{% endif %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}\
{% if add_generation_prompt %}<|assistant|>{% endif %}";

#[tokio::test]
async fn the_page_describes_the_effect_of_each_field() {
    // Prompts and a limit for vectors, so that the fields for them have an effect.
    let file = |name: &str| match name {
        "config_sentence_transformers.json" => Some(&br#"{"prompts": {"query": "q"}}"#[..]),
        "sentence_bert_config.json" => Some(&br#"{"max_seq_length": 12}"#[..]),
        _ => None,
    };
    let embedding =
        crate::embedding::read(None, &|name| Ok(file(name).map(Into::into)), &Value::Null, &Value::Null);
    let assets = Assets { embedding, ..test_support::assets_with_template(TEMPLATE) };
    let limits = RequestLimits { tool_format: Some(ToolFormat::Hermes), ..RequestLimits::default() };
    let serving = |adapters: Vec<AdapterInfo>| {
        let model = ModelInfo { id: "org/model".into(), adapters: adapters.into(), ..ModelInfo::default() };
        Server::of_model(model, &assets, Script::Say(ANSWER.into()), limits.clone(), HttpConfig::default())
    };
    // A server with adapters does not accept every name of a model.
    let adapter = AdapterInfo { name: "a".into(), root: "a".into(), parent: None };
    let (mut server, mut adapted) = (serving(Vec::new()), serving(vec![adapter]));
    let docs = openapi(&server).await;
    let apis: Vec<Value> = serde_json::from_str(FIELDS).unwrap();
    let (mut page, mut problems) = (INTRODUCTION.to_owned(), Vec::new());
    for api in &apis {
        let path = api["path"].as_str().unwrap();
        write!(page, "\n## {}\n\n", api["api"].as_str().unwrap()).unwrap();
        let described = described(&docs, path, api["within"].as_str());
        let asked = api["fields"].as_object().unwrap();
        let missing = described.iter().filter(|field| !asked.contains_key(**field));
        problems
            .extend(missing.map(|field| format!("{path} takes {field}, which fields.json does not have")));
        page += "| Field | | |\n|---|---|---|\n";
        for (field, about) in asked {
            let server = if field == "adapter_id" { &mut adapted } else { &mut server };
            let outcome = outcome(server, api, field, about).await.unwrap_or_else(|problem| {
                problems.push(format!("{path}: {field}: {problem}"));
                ""
            });
            let note = about["note"].as_str().unwrap_or_default();
            if outcome == "ignored" && note.is_empty() {
                problems.push(format!("{path}: {field} is ignored; fields.json must say why"));
            }
            writeln!(page, "| `{field}` | {outcome} | {note} |").unwrap();
        }
    }
    for (path, _) in posts() {
        let listed = apis.iter().any(|api| api["path"] == path);
        if !listed && !SAME.contains(&path) {
            problems.push(format!("{path} is not in fields.json"));
        }
    }
    assert!(problems.is_empty(), "{problems:#?}");
    page += CLOSING;
    if std::env::var_os("MILLRACE_WRITE_COMPATIBILITY").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let written = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert_eq!(
        written, page,
        "docs/compatibility.md is not up to date; `cargo xtask compatibility` writes it"
    );
}

/// Returns the fields that the OpenAPI description has for a request, or for the object `within`
/// it.
fn described<'a>(docs: &'a Value, path: &str, within: Option<&str>) -> BTreeSet<&'a str> {
    let operation = &docs["paths"][path.replace("/tgi", "/{model}")]["post"];
    let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
    let mut known = Vec::new();
    fields(docs, resolve(docs, schema), &mut known);
    let Some(within) = within else { return known.into_iter().map(|(name, _)| name).collect() };
    let inner = known.into_iter().find(|(name, _)| *name == within).unwrap().1;
    let mut known = Vec::new();
    fields(docs, inner, &mut known);
    known.into_iter().map(|(name, _)| name).collect()
}

/// Returns the effect of a field.
async fn outcome(
    server: &mut Server,
    api: &Value,
    field: &str,
    about: &Value,
) -> Result<&'static str, String> {
    let path = api["path"].as_str().unwrap();
    let mut without = api["request"].clone();
    let place = inner(&mut without, api);
    place.extend(about["with"].as_object().cloned().unwrap_or_default());
    let mut with = without.clone();
    inner(&mut with, api).insert(field.to_owned(), about["value"].clone());
    let without = observe(server, path, &without, field).await;
    let with = observe(server, path, &with, field).await;
    match (without.status, with.status) {
        (200, 200) if with == without => Ok("ignored"),
        // The field lets a request pass that is refused without it.
        (400 | 422, 200) => Ok("supported"),
        // An unknown model is not found, so the field was read.
        (200, 200 | 404) => Ok("supported"),
        (200, 400 | 422) if with.body.contains(field) => Ok("refused"),
        _ => Err(format!("{} {}, without it {} {}", with.status, with.body, without.status, without.body)),
    }
}

/// Returns the object to which the fields are added.
fn inner<'a>(body: &'a mut Value, api: &Value) -> &'a mut Map<String, Value> {
    let object = match api["within"].as_str() {
        Some(within) => &mut body[within],
        None => body,
    };
    object.as_object_mut().unwrap()
}

/// The observable effects of a request.
#[derive(Debug, PartialEq, Eq)]
struct Observation {
    status: u16,
    /// The response, without its random parts.
    body: String,
    /// The requests that the engine got.
    asked: Vec<String>,
}

async fn observe(server: &mut Server, path: &str, body: &Value, field: &str) -> Observation {
    let reply = server.post(path, body.clone()).await;
    let mut asked = Vec::new();
    while let Ok(mut request) = server.engine.requests.try_recv() {
        if field != "seed" {
            request.sampling.seed = 0;
        }
        asked.push(format!("{request:?}"));
    }
    Observation { status: reply.status.as_u16(), body: without_random_parts(&reply.body), asked }
}

/// Removes ids and times, which are long hexadecimal numbers.
fn without_random_parts(text: &str) -> String {
    let parts = text.split_inclusive(|c: char| !c.is_ascii_hexdigit());
    parts.map(|part| if part.len() > 9 { &part[part.len() - 1..] } else { part }).collect()
}
