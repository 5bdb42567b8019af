//! Requests without sampling parameters.

use millrace_text::test_support::assets_with;
use serde_json::{Value, json};

use super::{HttpConfig, Reply, RequestLimits, Script, Server};
use crate::assets::{Assets, SamplingDefaults};
use crate::test_support;

const DEFAULTS: SamplingDefaults = SamplingDefaults {
    temperature: Some(0.5),
    top_p: Some(0.75),
    top_k: Some(20),
    min_p: Some(0.125),
    repetition_penalty: Some(1.5),
};

const CHAT: &str = "/v1/chat/completions";

fn server(model_sampling: bool) -> Server {
    let assets = Assets { sampling: DEFAULTS, ..test_support::assets() };
    let limits = RequestLimits { model_sampling, ..RequestLimits::default() };
    Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default())
}

fn with(mut body: Value, more: &Value) -> Value {
    if let (Some(body), Some(more)) = (body.as_object_mut(), more.as_object()) {
        body.extend(more.clone());
    }
    body
}

/// Returns the sampling that the engine gets: whether it samples, temperature, top_p, top_k, min_p
/// and repetition penalty.
async fn sampling_of(server: &mut Server, path: &str, body: Value) -> (bool, [f32; 5]) {
    let reply: Reply = server.post(path, body.clone()).await;
    assert!(reply.status.is_success(), "{path} {body}: {}", reply.body);
    let sampling = server.engine.requests.recv().await.unwrap().sampling;
    let top_k = sampling.top_k as f32;
    let numbers = [sampling.temperature, sampling.top_p, top_k, sampling.min_p, sampling.repetition_penalty];
    (sampling.do_sample, numbers)
}

fn routes() -> [(&'static str, Value); 4] {
    let messages = json!([{"role": "user", "content": "a"}]);
    [
        (CHAT, json!({"messages": messages})),
        ("/v1/completions", json!({"prompt": "a"})),
        ("/v1/responses", json!({"input": "a"})),
        ("/v1/messages", json!({"messages": messages, "max_tokens": 5})),
    ]
}

#[tokio::test]
async fn a_request_without_sampling_parameters_uses_those_of_the_model() {
    let mut server = server(true);
    for (path, body) in routes() {
        let asked = sampling_of(&mut server, path, body.clone()).await;
        assert_eq!(asked, (true, [0.5, 0.75, 20.0, 0.125, 1.5]), "{path}");
        let some = with(body.clone(), &json!({"temperature": 0.25, "top_p": 1.0}));
        let asked = sampling_of(&mut server, path, some).await;
        assert_eq!(asked, (true, [0.25, 1.0, 20.0, 0.125, 1.5]), "{path}");
        let greedy = sampling_of(&mut server, path, with(body, &json!({"temperature": 0}))).await;
        assert_eq!(greedy, (false, [1.0, 1.0, 0.0, 0.0, 1.5]), "{path}");
    }
    assert_eq!(server.get("/info").await.json()["sampling_defaults"]["top_k"], 20);
    let response = server.post("/v1/responses", json!({"input": "a", "top_p": 0.5})).await.json();
    assert_eq!((&response["temperature"], &response["top_p"]), (&json!(0.5), &json!(0.5)));
}

#[tokio::test]
async fn a_request_can_override_each_default() {
    let mut server = server(true);
    let (path, body) = &routes()[0];
    for top_k in [0, -1] {
        let off = json!({"temperature": 1, "top_p": 1, "top_k": top_k, "min_p": 0, "repetition_penalty": 1});
        let asked = sampling_of(&mut server, path, with(body.clone(), &off)).await;
        assert_eq!(asked, (true, [1.0, 1.0, 0.0, 0.0, 1.0]));
    }
}

#[tokio::test]
async fn neither_tgis_routes_nor_generation_config_none_use_these_defaults() {
    let mut plain = server(true);
    for parameters in [json!({}), json!({"do_sample": true})] {
        let (_, numbers) =
            sampling_of(&mut plain, "/generate", json!({"inputs": "a", "parameters": parameters})).await;
        assert_eq!(numbers, [1.0, 1.0, 0.0, 0.0, 1.0], "{parameters}");
    }
    let mut none = server(false);
    for (path, body) in routes() {
        assert_eq!(sampling_of(&mut none, path, body).await, (true, [1.0, 1.0, 0.0, 0.0, 1.0]), "{path}");
    }
    assert_eq!(none.get("/info").await.json()["sampling_defaults"], json!({}));
}

/// The configuration of a fine-tuned model may still have the end token of its base model.
#[tokio::test]
async fn the_templates_end_of_turn_ends_an_answer() {
    let template = "{% for m in messages %}{{ m.content }}{% if m.role == 'assistant' %}<|im_end|>{% endif %}{% endfor %}";
    let mut assets = Assets { text: assets_with(&["<|im_end|>"]), ..Assets::default() };
    assets.text.chat_template = Some(template.into());
    let mut server =
        Server::serving(&assets, Script::Say("x".into()), RequestLimits::default(), HttpConfig::default());
    let (path, body) = &routes()[0];
    let reply = server.post(path, body.clone()).await;
    assert!(reply.status.is_success(), "{}", reply.body);
    let stops = server.engine.requests.recv().await.unwrap().stop_tokens;
    assert_eq!(*stops, [test_support::EOS, test_support::EOS + 1]);
    assert_eq!(server.get("/info").await.json()["end_tokens"], json!(["</s>", "<|im_end|>"]));
}
