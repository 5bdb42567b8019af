//! `/v1/chat/completions`.

use axum::http::StatusCode;
use serde_json::{Value, json};

use super::{Script, Server};

const PATH: &str = "/v1/chat/completions";

fn request(more: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "hi"}]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn with(mut request: Value, more: Value) -> Value {
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

fn tools(name: &str) -> Value {
    let parameters = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    json!({"tools": [{"type": "function", "function": {"name": name, "parameters": parameters}}]})
}

#[tokio::test]
async fn a_conversation_is_answered() {
    let mut server = Server::saying("Hello ü");
    let reply = server.post(PATH, request(json!({"temperature": 0}))).await;
    let body = reply.json();
    assert_eq!(body["object"], "chat.completion");
    assert!(body["id"].as_str().unwrap().starts_with("chatcmpl-"));
    assert_eq!((&body["model"], body["created"].as_u64().unwrap() > 0), (&json!("org/model"), true));
    assert_eq!(body["system_fingerprint"], concat!(env!("CARGO_PKG_VERSION"), "-native"));
    assert_eq!(
        body["choices"],
        json!([{"index": 0, "message": {"role": "assistant", "content": "Hello ü"}, "logprobs": null,
                "finish_reason": "stop"}])
    );
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 21, "completion_tokens": 9, "total_tokens": 30, "prompt_tokens_details": {"cached_tokens": 3}})
    );
    let asked = server.engine.requests.recv().await.unwrap();
    let text: String = asked.prompt[1..].iter().map(|&id| char::from_u32(id).unwrap()).collect();
    assert_eq!((asked.prompt[0], text.as_str()), (crate::test_support::BOS, "user: hi\nassistant: "));
    assert!(!asked.sampling.do_sample && !asked.sampling.warped_logprobs);
    assert_eq!(asked.max_new_tokens, 1003);
}

#[tokio::test]
async fn parameters_have_openais_meaning() {
    let mut server = Server::saying("x");
    let more = json!({
        "model": "tgi", "max_tokens": 5, "max_completion_tokens": 7, "top_p": 0, "presence_penalty": 0.5, "seed": -1,
        "frequency_penalty": -1, "logit_bias": {"97": -100, "98": 1.5}, "min_p": 0.1, "stop": "z", "user": "u",
        "stream_options": null, "tools": [], "response_format": {"type": "text"}, "top_k": -1, "n": 2,
    });
    let reply = server.post(PATH, request(more)).await;
    assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
    assert_eq!(reply.json()["choices"].as_array().unwrap().len(), 2);
    let first = server.engine.requests.recv().await.unwrap();
    let second = server.engine.requests.recv().await.unwrap();
    let seeds = (first.sampling.seed, second.sampling.seed);
    assert_eq!(seeds, (u64::MAX, crate::service::variant_seed(u64::MAX, 1)));
    let sampling = first.sampling;
    assert_eq!((first.max_new_tokens, sampling.top_k, sampling.top_p), (7, 0, f32::MIN_POSITIVE));
    assert_eq!((sampling.presence_penalty, sampling.frequency_penalty, sampling.min_p), (0.5, -1.0, 0.1));
    assert!(sampling.do_sample && sampling.repetition_penalty == 1.0);
    let bias: Vec<_> = sampling.logit_bias.iter().map(|bias| (bias.token, bias.bias)).collect();
    assert_eq!(bias, [(97, -100.0), (98, 1.5)]);
}

#[tokio::test]
async fn placeholder_names_of_clients_are_accepted() {
    let server = Server::saying("x");
    let url = "https://api.example/v1/chat/completions";
    for model in [
        json!(null),
        json!(""),
        json!("tgi"),
        json!("dummy"),
        json!("org/model"),
        json!("gpt-4o"),
        json!(url),
    ] {
        let reply = server.post(PATH, request(json!({"model": model}))).await;
        assert_eq!(reply.json()["model"], "org/model", "{model}");
    }
}

#[tokio::test]
async fn a_stream_ends_with_done() {
    let server = Server::saying("Hi ü");
    let reply = server.post(PATH, request(json!({"stream": true}))).await;
    let chunks = reply.chunks();
    assert_eq!(chunks[0]["object"], "chat.completion.chunk");
    assert_eq!(
        chunks[0]["choices"],
        json!([{"index": 0, "delta": {"role": "assistant", "content": "H"}, "logprobs": null, "finish_reason": null}])
    );
    assert_eq!(chunks[0]["usage"], Value::Null);
    assert!(chunks.iter().all(|chunk| chunk["id"] == chunks[0]["id"]));
    assert!(chunks.iter().all(|chunk| chunk["choices"][0]["delta"]["role"] == "assistant"));
    let fingerprint = concat!(env!("CARGO_PKG_VERSION"), "-native");
    assert!(chunks.iter().all(|chunk| chunk["system_fingerprint"] == fingerprint));
    let text: String = chunks.iter().map(|c| c["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
    assert_eq!(text, "Hi ü");
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "stop");

    let more = json!({"stream": true, "n": 2, "stream_options": {"include_usage": true}});
    let chunks = server.post(PATH, request(more)).await.chunks();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(
        usage["usage"],
        json!({"prompt_tokens": 21, "completion_tokens": 12, "total_tokens": 33, "prompt_tokens_details": {"cached_tokens": 3}})
    );
    assert!(chunks.iter().all(|chunk| chunk["usage"].is_null()));
    let more =
        json!({"stream": true, "stream_options": {"include_usage": true, "continuous_usage_stats": true}});
    let told = server.post(PATH, request(more)).await.chunks();
    let counts: Vec<_> =
        told.iter().map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
    assert_eq!(counts, [1, 2, 3, 5, 6, 6], "a part of a character has no text");
    assert!(told.iter().all(|chunk| chunk["usage"]["prompt_tokens_details"]["cached_tokens"] == 3));
    for index in 0..2 {
        let own = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
        let text: String = own.map(|c| c["choices"][0]["delta"]["content"].as_str().unwrap()).collect();
        assert_eq!(text, "Hi ü");
    }
}

#[tokio::test]
async fn no_part_of_a_stop_string_is_sent() {
    let server = Server::saying("one EN END two");
    let more = json!({"stop": ["END"]});
    let body = server.post(PATH, request(more)).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "one EN ");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let chunks = server.post(PATH, request(json!({"stop": ["END"], "stream": true}))).await.chunks();
    let mut text = String::new();
    for chunk in &chunks {
        text += chunk["choices"][0]["delta"]["content"].as_str().unwrap();
        assert!("one EN ".starts_with(&text), "{text}");
    }
    assert_eq!(text, "one EN ");
    // Text that was held back is sent if the answer ends in another way.
    let body = server.post(PATH, request(json!({"stop": ["twofold"]}))).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "one EN END two");
}

#[tokio::test]
async fn logprobs_have_bytes() {
    let server = Server::saying("ü");
    let more = json!({"logprobs": true, "top_logprobs": 1});
    let body = server.post(PATH, request(more.clone())).await.json();
    let content = body["choices"][0]["logprobs"]["content"].as_array().unwrap().clone();
    // There is one entry for each counted token, including the one that ends the answer.
    assert_eq!(content.len(), 3);
    assert_eq!(body["usage"]["completion_tokens"], 3);
    assert_eq!(content[2]["token"], "</s>");
    assert_eq!(content[0]["bytes"], json!([0xC3]));
    assert_eq!(content[0]["token"], "\u{FFFD}");
    assert_eq!(content[0]["top_logprobs"][0]["logprob"], -0.25);
    let mut streamed = request(more);
    streamed["stream"] = json!(true);
    let chunks = server.post(PATH, streamed).await.chunks();
    let parts =
        chunks.iter().flat_map(|c| c["choices"][0]["logprobs"]["content"].as_array().unwrap().clone());
    let bytes: Vec<_> = parts.flat_map(|part| part["bytes"].as_array().unwrap().clone()).collect();
    assert_eq!(bytes, [0xC3, 0xBC, 60, 47, 115, 62].map(|byte| json!(byte)));
}

#[tokio::test]
async fn an_unfinished_answer_is_continued() {
    let mut server = Server::saying("x");
    let messages = json!([{"role": "user", "content": [{"type": "text", "text": "h"}, {"type": "text", "text": "i"}]},
                          {"role": "assistant", "content": "I am "}]);
    server.post(PATH, json!({"messages": messages})).await;
    let prompt = server.engine.requests.recv().await.unwrap().prompt;
    let text: String = prompt[1..].iter().map(|&id| char::from_u32(id).unwrap()).collect();
    assert_eq!(text, "user: hi\nassistant: I am");
    server.post(PATH, json!({"messages": messages, "continue_final_message": false})).await;
    let prompt = server.engine.requests.recv().await.unwrap().prompt;
    let text: String = prompt[1..].iter().map(|&id| char::from_u32(id).unwrap()).collect();
    assert_eq!(text, "user: hi\nassistant: I am \nassistant: ");
}

#[tokio::test]
async fn prompt_logprobs_have_vllms_form() {
    let server = Server::saying("ok");
    let body = server.post(PATH, request(json!({"prompt_logprobs": 1, "n": 2}))).await.json();
    let tokens = body["prompt_logprobs"].as_array().unwrap();
    assert_eq!(tokens.len() as u64, body["usage"]["prompt_tokens"].as_u64().unwrap());
    assert_eq!(tokens[0], Value::Null);
    let first = json!({"117": {"logprob": -2.0, "rank": 7, "decoded_token": "u"}});
    assert_eq!(tokens[1], first);
    assert_eq!(server.post(PATH, request(json!({}))).await.json().get("prompt_logprobs"), None);
    for (fields, param, text) in [
        (json!({"prompt_logprobs": 1, "stream": true}), "prompt_logprobs", "not supported when streaming"),
        (json!({"prompt_logprobs": 21}), "prompt_logprobs", "must be >= 0 and <= 20. Given: 21"),
        (json!({"max_tokens": 0, "prompt_logprobs": 1}), "max_tokens", "strictly positive"),
    ] {
        let reply = server.post(PATH, request(fields)).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status.as_u16(), &error["param"]), (400, &json!(param)), "{error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{error}");
    }
}

#[tokio::test]
async fn errors_have_the_form_of_openais_api() {
    let server = Server::saying("x");
    let cases = [
        (request(json!({"tools": [{"type": "function"}]})), 400, "tools[0]", "must have a `function`"),
        (request(json!({"tools": [{"type": "web"}]})), 400, "tools[0]", "must be a function"),
        (request(tools("a b")), 400, "tools[0]", "must have a name"),
        (request(json!({"tool_choice": "required"})), 400, "tool_choice", "needs `tools`"),
        (
            request(with(tools("get"), json!({"tool_choice": "set"}))),
            400,
            "tool_choice",
            "Tool with name set not found",
        ),
        (
            request(with(tools("get"), json!({"tool_choice": 5}))),
            400,
            "tool_choice",
            "must be auto, none, required",
        ),
        (
            request(with(tools("get"), json!({"response_format": {"type": "regex", "value": "a"}}))),
            400,
            "response_format",
            "must be JSON where tools may be called",
        ),
        (
            request(with(
                tools("get"),
                json!({"response_format": {"type": "json_object", "schema": {"type": "nonsense"}}}),
            )),
            400,
            "response_format",
            "`type` at the top must be among",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": [{}]}]}),
            400,
            "messages[0]",
            "a tool call without",
        ),
        (
            json!({"messages": [{"role": "assistant", "tool_calls": 1}]}),
            400,
            "messages[0]",
            "a list of tool calls",
        ),
        (
            request(json!({"continue_final_message": true, "add_generation_prompt": true})),
            400,
            "continue_final_message",
            "both",
        ),
        (
            request(
                json!({"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}),
            ),
            400,
            "response_format",
            "grammar is not valid: `type` at the top must be among null, boolean, number, integer, string, array, object",
        ),
        (
            request(json!({"response_format": {"type": "yaml"}})),
            400,
            "response_format",
            "must be text, json_object or",
        ),
        (
            request(json!({"min_tokens": 9, "max_tokens": 8})),
            400,
            "min_tokens",
            "`min_tokens` must be <= `max_tokens`",
        ),
        (
            request(json!({"ignore_eos": true, "response_format": {"type": "json_object"}})),
            400,
            "ignore_eos",
            "has no meaning",
        ),
        (request(json!({"n": 0})), 400, "n", "`n` must be > 0"),
        (request(json!({"n": 17})), 400, "n", "`n` must be > 0 and <= 16 (--max-best-of). Given: 17"),
        (request(json!({"top_logprobs": 2})), 400, "top_logprobs", "needs `logprobs`"),
        (
            request(json!({"logprobs": true, "top_logprobs": 21})),
            400,
            "top_logprobs",
            "`top_logprobs` must be >= 0 and <= 20",
        ),
        (request(json!({"temperature": 0, "top_p": 1.1})), 400, "top_p", "`top_p` must be >= 0.0 and <= 1.0"),
        (request(json!({"temperature": 0, "min_p": -0.5})), 400, "min_p", "`min_p` must be"),
        (request(json!({"temperature": 0, "top_k": -5})), 400, "top_k", "`top_k` must be"),
        (request(json!({"priority": 3})), 400, "priority", "the only number that is accepted is 0"),
        (request(json!({"max_tokens": 0})), 400, "max_tokens", "`max_tokens` must be strictly positive"),
        (
            request(json!({"max_tokens": 9999})),
            400,
            "messages",
            "This model's maximum context length is 1024 tokens. However, you requested 10020 tokens (21 in the messages, \
             9999 in the completion). Please reduce `messages` or `max_tokens`.",
        ),
        (request(json!({"temperature": -1})), 400, "temperature", "strictly positive"),
        (request(json!({"presence_penalty": 3})), 400, "presence_penalty", ">= -2.0 and <= 2.0"),
        (request(json!({"min_p": 1})), 400, "min_p", "`min_p` must be >= 0.0 and < 1.0"),
        (request(json!({"logit_bias": {"a": 1}})), 400, "logit_bias", "token ids"),
        (request(json!({"logit_bias": {"5000": 1}})), 400, "logit_bias", "vocabulary"),
        (request(json!({"logit_bias": {"5": 101}})), 400, "logit_bias", "<= 100"),
        (request(json!({"logit_bias": [1.0]})), 400, "logit_bias", "token ids"),
        (request(json!({"stop": ["", "a"]})), 400, "stop", "empty"),
        (json!({"messages": ["a"]}), 400, "messages[0]", "must be an object"),
        (json!({"messages": [{"content": "a"}]}), 400, "messages[0]", "must have a role"),
        (json!({"messages": [{"role": "user", "content": 1}]}), 400, "messages[0]", "text or a list"),
        (
            json!({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x"}}]}]}),
            400,
            "messages[0]",
            "`image_url`, which is not supported",
        ),
        (
            json!({"messages": [{"role": "bad", "content": "a"}]}),
            400,
            "messages",
            "Template error: Unknown role bad",
        ),
    ];
    for (mut body, status, param, text) in cases {
        for stream in [false, true] {
            body["stream"] = json!(stream);
            let reply = server.post(PATH, body.clone()).await;
            let error = reply.json()["error"].clone();
            assert_eq!((reply.status.as_u16(), &error["param"]), (status, &json!(param)), "{body}: {error}");
            assert_eq!(error["type"], "invalid_request_error");
            assert!(error["message"].as_str().unwrap().contains(text), "{body}: {error}");
            assert!(error.as_object().unwrap().contains_key("code"));
        }
    }
    for (body, status) in [("{", 400), ("{}", 400), (r#"{"messages": 1}"#, 400)] {
        let reply = server.post_text(PATH, body).await;
        assert_eq!(reply.status.as_u16(), status);
        assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    }
}

#[tokio::test]
async fn an_error_in_a_stream_is_an_event_before_done() {
    let server = Server::new(Script::Fail("ab".into()));
    let chunks = server.post(PATH, request(json!({"stream": true}))).await.chunks();
    assert_eq!(chunks.len(), 3);
    assert_eq!(chunks[2]["error"]["http_status_code"], 500);
    assert!(chunks[2]["error"]["message"].as_str().unwrap().contains("the shard has died"));
    let reply = server.post(PATH, request(json!({}))).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["type"]), (500, &json!("server_error")));
}
