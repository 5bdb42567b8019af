//! Requests that do not fit into the model's context. Each API has the error text that its clients
//! recognize.

use serde_json::{Value, json};

use super::{HttpConfig, RequestLimits, Script, Server};
use crate::test_support::assets;

async fn error(server: &Server, path: &str, body: Value) -> (u16, Value) {
    let reply = server.post(path, body).await;
    let error = reply.json();
    (reply.status.as_u16(), if path.starts_with("/v1/") { error["error"].clone() } else { error })
}

#[tokio::test]
async fn errors_on_openais_routes_use_the_field_names_of_the_route() {
    let server = Server::saying("x");
    let (short, long) = ("a".repeat(100), "a".repeat(2000));
    let chat = |text: &str| json!([{"role": "user", "content": text}]);
    // The template adds 20 tokens to a message.
    let cases = [
        (
            "/v1/chat/completions",
            json!({"messages": chat(&short), "max_completion_tokens": 1000}),
            "messages",
            "you requested 1119 tokens (119 in the messages, 1000 in the completion). Please reduce `messages` or \
             `max_completion_tokens`.",
        ),
        (
            "/v1/chat/completions",
            json!({"messages": chat(&long), "max_tokens": 10}),
            "messages",
            "the messages resulted in 2019 tokens. Please reduce `messages`.",
        ),
        ("/v1/chat/completions", json!({"messages": chat(&long)}), "messages", "resulted in 2019 tokens."),
        (
            "/v1/completions",
            json!({"prompt": short, "max_tokens": 1000}),
            "prompt",
            "you requested 1101 tokens (101 in the prompt, 1000 in the completion). Please reduce `prompt` or `max_tokens`.",
        ),
        ("/v1/completions", json!({"prompt": long}), "prompt", "the prompt resulted in 2001 tokens."),
        // A text with more bytes than any prompt is refused before it is tokenized.
        (
            "/v1/completions",
            json!({"prompt": "a".repeat(100_000)}),
            "prompt",
            "the prompt resulted in at least 25000 tokens.",
        ),
        (
            "/v1/responses",
            json!({"input": short, "max_output_tokens": 1000}),
            "input",
            "(119 in the input, 1000 in the completion). Please reduce `input` or `max_output_tokens`.",
        ),
        ("/v1/embeddings", json!({"input": long}), "input", "the input resulted in 2001 tokens."),
    ];
    for (path, mut body, param, text) in cases {
        for stream in [false, true] {
            if path != "/v1/embeddings" {
                body["stream"] = json!(stream);
            }
            let (status, error) = error(&server, path, body.clone()).await;
            let message = error["message"].as_str().unwrap();
            assert!(
                message.starts_with("This model's maximum context length is 1024 tokens"),
                "{path}: {message}"
            );
            assert!(message.contains(text), "{path}: {message}");
            assert_eq!((status, &error["param"]), (400, &json!(param)), "{path}");
            let kind = (&error["code"], &error["type"]);
            assert_eq!(kind, (&json!("context_length_exceeded"), &json!("invalid_request_error")), "{path}");
        }
    }
}

#[tokio::test]
async fn the_error_on_anthropics_route_has_the_numbers_that_its_clients_read() {
    let server = Server::saying("x");
    let body = |length: usize, max_tokens: u32| json!({"messages": [{"role": "user", "content": "a".repeat(length)}], "max_tokens": max_tokens});
    let (status, told) = error(&server, "/v1/messages", body(2000, 5)).await;
    assert_eq!((status, &told["type"]), (400, &json!("invalid_request_error")));
    assert_eq!(told["message"], "prompt is too long: 2019 tokens > 1023 maximum");
    // An answer that does not fit behind the prompt is shorter.
    assert_eq!(server.post("/v1/messages", body(100, 1000)).await.status, 200);
}

#[tokio::test]
async fn errors_on_tgis_routes_are_worded_like_tgis() {
    let server = Server::saying("x");
    let long = "a".repeat(2000);
    let expected = "Input validation error: `inputs` must have less than 1023 tokens. Given: 2001";
    let (status, told) = error(&server, "/generate", json!({"inputs": long})).await;
    assert_eq!((status, &told), (422, &json!({"error": expected, "error_type": "validation"})));
    // The same holds for a conversation on Vertex AI's route.
    let instance = json!({"messages": [{"role": "user", "content": long}]});
    let (status, told) = error(&server, "/vertex", json!({"instances": [instance]})).await;
    assert_eq!((status, &told["error_type"]), (422, &json!("validation")));
    assert!(
        told["error"].as_str().unwrap().starts_with("Input validation error: `inputs` must have"),
        "{told}"
    );
}

#[tokio::test]
async fn the_error_names_a_limit_for_prompts() {
    let limits = RequestLimits { max_input_tokens: Some(50), ..RequestLimits::default() };
    let server = Server::serving(&assets(), Script::Say("x".into()), limits, HttpConfig::default());
    let (_, told) =
        error(&server, "/v1/completions", json!({"prompt": "a".repeat(60), "max_tokens": 5})).await;
    let expected = "This model's maximum context length is 1024 tokens, of which at most 50 may be the prompt's. However, \
                    the prompt resulted in 61 tokens. Please reduce `prompt`.";
    assert_eq!(told["message"], expected);
}
