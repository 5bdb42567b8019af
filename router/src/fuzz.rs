//! What strangers' bytes reach, one function for each kind of them: none may panic, hang, or answer with an error of the
//! server's. `cargo xtask fuzz` gives them to libFuzzer; the inputs that are kept in `fuzz/seeds` are tests like any other.
#![allow(clippy::unwrap_used, missing_docs, reason = "a panic is what is looked for")]

pub mod cost;

use std::sync::{Arc, OnceLock};

use axum::Router;
use axum::body::Body;
use axum::http::{Request, header};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower_service::Service as _;

use crate::assets::Assets;
use crate::grammar::{Compiler, Grammar, GrammarError};
use crate::http::{HttpConfig, router};
use crate::service::{Limits, ModelInfo, Service};
use crate::test_support::{self, EOS, FakeEngine, Script};
use crate::text::{ChatTemplate, Conversation, Specials, Tokenizer};

/// The routes that take a body; an input's first byte chooses.
const PATHS: &[&str] = &[
    "/",
    "/generate",
    "/generate_stream",
    "/tokenize",
    "/chat_tokenize",
    "/invocations",
    "/vertex",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/embeddings",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/v2/models/tgi/infer",
    // Last, so that the seeds keep their routes.
    "/detokenize",
];

const TEMPLATE: &str = "{% for m in messages %}{{ m.role }}: {{ m.content }}{{ m.tool_calls }}{% endfor %}{{ tools }}{{ documents }}";

fn runtime() -> &'static Runtime {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    RUNTIME.get_or_init(|| tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap())
}

/// All routes before a stand-in for an engine.
fn app() -> &'static Router {
    static APP: OnceLock<Router> = OnceLock::new();
    APP.get_or_init(|| {
        let _runtime = runtime().enter();
        let engine = FakeEngine::new(Script::Say("{\"a\": 1}".into()), 8).engine;
        let model = ModelInfo { id: "org/model".into(), sha: None, pipeline_tag: None };
        let assets = Assets { chat_template: Some(TEMPLATE.into()), ..test_support::assets() };
        router(Service::new(&assets, engine, Limits::default(), model).unwrap(), HttpConfig::default())
    })
}

fn post(path: &str, body: impl Into<Body>) -> Request<Body> {
    let request = Request::post(path).header(header::CONTENT_TYPE, "application/json");
    request.body(body.into()).unwrap()
}

/// Sends a request and reads its response to the end, which must be no error of the server's.
fn answered(app: &Router, request: Request<Body>) {
    let path = request.uri().path().to_owned();
    runtime().block_on(async {
        let response = app.clone().call(request).await.unwrap();
        let status = response.status();
        let body = axum::body::to_bytes(response.into_body(), usize::MAX).await.unwrap();
        assert!(!status.is_server_error(), "{path}: {status}: {}", String::from_utf8_lossy(&body));
    });
}

/// A request's body, to the end of the response.
pub fn bodies(data: &[u8]) {
    let Some((&route, body)) = data.split_first() else { return };
    let path = PATHS[usize::from(route) % PATHS.len()];
    answered(app(), post(path, body.to_vec()));
}

/// A grammar of a kind that the first byte chooses, as far as the tokens that may come first.
pub fn grammars(data: &[u8]) {
    static COMPILER: OnceLock<Compiler> = OnceLock::new();
    let Some((&kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let grammar = match kind % 3 {
        0 => match serde_json::from_str::<Value>(text) {
            Ok(schema) => Grammar::Json(schema),
            Err(_) => return,
        },
        1 => Grammar::Regex(text.into()),
        _ => Grammar::Lark(text.into()),
    };
    let compiler = COMPILER.get_or_init(|| Compiler::new(test_support::tokenizer(), Arc::new([EOS])));
    match runtime().block_on(compiler.compile(&grammar, EOS + 1)) {
        Ok(compiled) => assert!(compiled.first().iter().any(|&word| word != 0), "{grammar:?}"),
        Err(GrammarError::Busy) => panic!("nobody else compiles: {grammar:?}"),
        Err(_) => {}
    }
}

/// A chat template, and after a NUL what the user says to it.
pub fn templates(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let (source, said) = text.split_once('\0').unwrap_or((&text, "hello"));
    let Ok(template) = ChatTemplate::new(source, None, Some("<s>".into()), Some("</s>".into()), 1) else {
        return;
    };
    let call =
        json!({"id": "1", "type": "function", "function": {"name": "f", "arguments": {"a": [1, null]}}});
    let messages = vec![
        json!({"role": "system", "content": said}),
        json!({"role": "user", "content": said}),
        json!({"role": "assistant", "content": null, "tool_calls": [call]}),
        json!({"role": "tool", "content": said, "tool_call_id": "1"}),
    ];
    let tools = Some(vec![json!({"type": "function", "function": {"name": said, "parameters": {}}})]);
    // It may refuse.
    let _ = template.render_now(&Conversation {
        messages,
        tools,
        add_generation_prompt: true,
        ..Conversation::default()
    });
}

/// A text, to tokens and back.
pub fn tokenizers(data: &[u8]) {
    static TOKENIZERS: OnceLock<[Tokenizer; 2]> = OnceLock::new();
    let tokenizers = TOKENIZERS.get_or_init(|| {
        let demo = include_bytes!("../../models/demo/tokenizer.json").to_vec();
        let demo = Assets { tokenizer: demo, ..Assets::default() };
        [test_support::tokenizer(), Tokenizer::new(&demo, 1).unwrap()]
    });
    let text = String::from_utf8_lossy(data);
    for tokenizer in tokenizers {
        let encoded = tokenizer.encode_now(&text, Specials::Omit).unwrap();
        let mut detokenizer = tokenizer.detokenizer(false, false);
        let mut back: String = encoded.ids.iter().map(|&id| detokenizer.push(id)).collect();
        back += &detokenizer.finish();
        assert_eq!(back, text, "{:?}", encoded.ids);
        assert!(encoded.offsets.iter().all(|&(from, to)| from <= to && to as usize <= text.len()));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Runs a target on its kept inputs; there must be some.
    fn replay(target: &str, run: fn(&[u8])) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/seeds").join(target);
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            eprintln!("{}", path.display());
            run(&std::fs::read(path).unwrap());
            count += 1;
        }
        assert!(count > 0, "no inputs in {}", folder.display());
    }

    #[test]
    fn kept_bodies() {
        replay("bodies", super::bodies);
    }

    #[test]
    fn kept_grammars() {
        replay("grammars", super::grammars);
    }

    #[test]
    fn kept_templates() {
        replay("templates", super::templates);
    }

    #[test]
    fn kept_texts() {
        replay("tokenizers", super::tokenizers);
    }
}
