//! TGI's routes.

use axum::body::Body;
use axum::http::{Request, StatusCode};
use serde_json::{Value, json};

use millrace_proto::Watermark;

use super::{HttpConfig, Script, Server};
use crate::service::RequestLimits;
use crate::test_support::{BOS, EOS, assets};

fn error(reply: &super::Reply, error_type: &str) -> String {
    let body = reply.json();
    assert_eq!(body["error_type"], error_type, "{body}");
    body["error"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn the_whole_answer_with_its_headers() {
    let mut server = Server::saying("Hi ü!");
    let reply =
        server.post("/generate", json!({"inputs": "abc", "parameters": {"max_new_tokens": 20}})).await;
    assert_eq!((reply.status, reply.json()), (StatusCode::OK, json!({"generated_text": "Hi ü!"})));
    assert_eq!(reply.header("x-compute-type"), "cpu");
    assert_eq!(reply.header("x-compute-characters"), "3");
    assert_eq!(reply.header("x-prompt-tokens"), "4");
    assert_eq!(reply.header("x-generated-tokens"), "7");
    assert_eq!(reply.header("x-queue-time"), "2");
    for name in ["x-total-time", "x-validation-time", "x-inference-time", "x-time-per-token"] {
        reply.header(name).parse::<u64>().unwrap();
    }
    reply.header("x-compute-time").parse::<f64>().unwrap();
    let request = server.engine.requests.recv().await.unwrap();
    assert_eq!(request.prompt, [BOS, 97, 98, 99]);
    assert_eq!((request.max_new_tokens, &*request.stop_tokens), (20, &[EOS][..]));
    assert!(!request.sampling.do_sample && request.sampling.warped_logprobs);
}

#[tokio::test]
async fn without_parameters_tgi_samples() {
    let mut server = Server::saying("x");
    server.post("/generate", json!({"inputs": "abc"})).await;
    let request = server.engine.requests.recv().await.unwrap();
    assert!(request.sampling.do_sample);
    assert_eq!(request.max_new_tokens, 1020);
    server.post("/generate", json!({"inputs": "abc", "parameters": {}})).await;
    assert!(!server.engine.requests.recv().await.unwrap().sampling.do_sample);
    for (parameters, samples) in [
        (json!({"temperature": 0.5}), true),
        (json!({"temperature": 1.0}), false),
        (json!({"top_k": 5}), true),
        (json!({"top_p": 0.9}), true),
        (json!({"top_p": 1.0}), false),
        (json!({"typical_p": 0.9}), true),
        (json!({"repetition_penalty": 1.5, "frequency_penalty": 2, "seed": 3}), false),
    ] {
        server.post("/generate", json!({"inputs": "abc", "parameters": parameters})).await;
        let asked = server.engine.requests.recv().await.unwrap().sampling;
        assert_eq!(asked.do_sample, samples, "{parameters}");
    }
}

#[tokio::test]
async fn details_have_tokens_and_alternatives() {
    let server = Server::saying("ok");
    let parameters = json!({"details": true, "seed": 7, "do_sample": true, "top_n_tokens": 2});
    let details = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await.json();
    let details = &details["details"];
    assert_eq!(details["finish_reason"], "eos_token");
    assert_eq!((&details["generated_tokens"], &details["seed"]), (&json!(3), &json!(7)));
    assert_eq!((&details["prefill"], details.get("best_of_sequences")), (&json!([]), None));
    assert_eq!(details["tokens"][0], json!({"id": 111, "text": "o", "logprob": -0.25, "special": false}));
    assert_eq!(details["tokens"][2], json!({"id": EOS, "text": "</s>", "logprob": -0.25, "special": true}));
    assert_eq!(details["top_tokens"][0][1]["id"], 110);

    let greedy =
        server.post("/generate", json!({"inputs": "a", "parameters": {"details": true}})).await.json();
    assert_eq!(greedy["details"]["seed"], Value::Null);
    assert!(greedy["details"].get("top_tokens").is_none());
}

#[tokio::test]
async fn details_can_have_the_tokens_of_the_prompt() {
    let mut server = Server::saying("ok");
    let parameters =
        json!({"decoder_input_details": true, "best_of": 2, "do_sample": true, "top_n_tokens": 2});
    let body = json!({"inputs": "aé", "parameters": parameters});
    let details = server.post("/generate", body).await.json()["details"].clone();
    let expected = json!([
        {"id": BOS, "text": "<s>", "logprob": null}, {"id": 97, "text": "a", "logprob": -2.0},
        {"id": 0xC3, "text": "�", "logprob": -3.0}, {"id": 0xA9, "text": "�", "logprob": -4.0},
    ]);
    assert_eq!((&details["prefill"], &details["tokens"][0]["text"]), (&expected, &json!("o")));
    assert_eq!(details["best_of_sequences"][0]["prefill"], expected);
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt_logprobs, Some(0));
}

#[tokio::test]
async fn a_watermark_has_the_parameters_of_the_server() {
    let watermark = Watermark { gamma: 0.25, delta: 3.0 };
    let limits = RequestLimits { watermark, ..RequestLimits::default() };
    let mut server = Server::serving(&assets(), Script::Say("x".into()), limits, HttpConfig::default());
    for (parameters, expected) in [
        (json!({"watermark": true}), Some(watermark)),
        (json!({"watermark": false}), None),
        (json!({}), None),
    ] {
        for path in ["/generate", "/generate_stream"] {
            server.post(path, json!({"inputs": "a", "parameters": parameters})).await;
            assert_eq!(server.engine.requests.recv().await.unwrap().sampling.watermark, expected);
        }
    }
}

#[tokio::test]
async fn best_of_returns_the_most_likely_first() {
    let server = Server::saying("ok");
    let parameters = json!({"best_of": 2, "do_sample": true, "details": true});
    let details = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await.json();
    let (best, other) = (&details["details"], &details["details"]["best_of_sequences"]);
    assert_eq!(other.as_array().unwrap().len(), 1);
    assert_eq!(other[0]["generated_text"], "ok");
    let logprob = |d: &Value| d["tokens"][0]["logprob"].as_f64().unwrap();
    // The fake engine's numbers depend on the seeds, which are random, so they may be equal.
    assert!(logprob(best) >= logprob(&other[0]));
}

#[tokio::test]
async fn a_stream_has_the_parts_of_the_answer() {
    let server = Server::saying("Hi ü!");
    let parameters = json!({"details": true, "max_new_tokens": 30});
    let reply = server.post("/generate_stream", json!({"inputs": "abc", "parameters": parameters})).await;
    assert_eq!((reply.header("x-compute-type"), reply.header("x-compute-characters")), ("cpu", "3"));
    let events = reply.json_events();
    assert_eq!(
        events[0],
        json!({"index": 1, "token": {"id": 72, "text": "H", "logprob": -0.25, "special": false},
               "generated_text": null, "details": null})
    );
    let (last, before) = events.split_last().unwrap();
    assert!(before.iter().all(|event| event["generated_text"].is_null() && event["details"].is_null()));
    let text: String = before.iter().map(|event| event["token"]["text"].as_str().unwrap()).collect();
    assert_eq!((text.as_str(), &last["generated_text"]), ("Hi ü!", &json!("Hi ü!")));
    assert_eq!(
        last["details"],
        json!({"finish_reason": "eos_token", "generated_tokens": 7, "seed": null, "input_length": 4})
    );
    let parameters = json!({"return_full_text": true, "top_n_tokens": 2});
    let body = json!({"inputs": "abc", "parameters": parameters});
    let events = server.post("/generate_stream", body.clone()).await.json_events();
    assert_eq!(
        (&events[0]["top_tokens"][0]["id"], &events[0]["top_tokens"][1]["id"]),
        (&json!(72), &json!(73))
    );
    assert_eq!(events.last().unwrap()["generated_text"], "abcHi ü!");
    assert_eq!(server.post("/generate", body).await.json()["generated_text"], "abcHi ü!");
}

#[tokio::test]
async fn the_compat_route_returns_a_list_or_a_stream() {
    let server = Server::saying("x");
    let reply = server.post("/", json!({"inputs": "abc", "parameters": {}})).await;
    assert_eq!(reply.json(), json!([{"generated_text": "abcx"}]));
    let parameters = json!({"return_full_text": false});
    let reply = server.post("/", json!({"inputs": "abc", "parameters": parameters})).await;
    assert_eq!(reply.json(), json!([{"generated_text": "x"}]));
    let events = server.post("/", json!({"inputs": "abc", "stream": true})).await.json_events();
    assert_eq!(events.last().unwrap()["generated_text"], "abcx");
}

#[tokio::test]
async fn stop_strings_stay_in_the_text() {
    let server = Server::saying("one END two");
    let parameters = json!({"stop": ["END"], "details": true});
    let body = json!({"inputs": "a", "parameters": parameters});
    let answer = server.post("/generate", body.clone()).await.json();
    assert_eq!(answer["generated_text"], "one END");
    assert_eq!(answer["details"]["finish_reason"], "stop_sequence");
    let events = server.post("/generate_stream", body).await.json_events();
    let text: String = events.iter().map(|event| event["token"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, "one END");

    let parameters = json!({"stop": ["ne"], "details": true, "max_new_tokens": 3});
    let answer = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await.json();
    assert_eq!(answer["details"]["finish_reason"], "length");
    let parameters = json!({"stop": ["</s>", "never"], "details": true});
    let answer = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await.json();
    assert_eq!(
        (&answer["generated_text"], &answer["details"]["finish_reason"]),
        (&json!("one END two"), &json!("eos_token"))
    );
}

#[tokio::test]
async fn truncate_keeps_the_end_of_the_prompt() {
    let mut server = Server::saying("x");
    server.post("/generate", json!({"inputs": "abcdef", "parameters": {"truncate": 2}})).await;
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt, [101, 102]);
}

#[tokio::test]
async fn errors_are_worded_like_tgis() {
    let server = Server::saying("x");
    let long = "a".repeat(1100);
    let cases = [
        ("a", json!({"best_of": 3, "do_sample": true}), "`best_of` must be > 0 and <= 2. Given: 3"),
        ("a", json!({"best_of": 2}), "you must use sampling when `best_of` is > 1"),
        (
            "a",
            json!({"best_of": 2, "do_sample": true, "seed": 1}),
            "`seed` must not be set when `best_of` > 1",
        ),
        ("a", json!({"temperature": 0.0}), "`temperature` must be strictly positive"),
        ("a", json!({"temperature": -1}), "`temperature` must be strictly positive"),
        ("a", json!({"temperature": 1e300}), "`temperature` is too large"),
        ("a", json!({"repetition_penalty": 0.0}), "`repetition_penalty` must be strictly positive"),
        ("a", json!({"frequency_penalty": 2.5}), "`frequency_penalty` must be >= -2.0 and <= 2.0"),
        ("a", json!({"top_p": 0.0}), "`top_p` must be > 0.0 and < 1.0"),
        ("a", json!({"top_p": 1.5}), "`top_p` must be > 0.0 and < 1.0"),
        ("a", json!({"typical_p": 1.0}), "`typical_p` must be > 0.0 and < 1.0"),
        ("a", json!({"top_k": 0}), "`top_k` must be strictly positive"),
        ("a", json!({"top_k": -2}), "`top_k` must be strictly positive"),
        ("a", json!({"max_new_tokens": 0}), "`max_new_tokens` must be strictly positive"),
        ("a", json!({"stop": ["a", "b", "c", "d", "e"]}), "`stop` supports up to 4 stop sequences. Given: 5"),
        ("a", json!({"stop": [""]}), "`stop` must not contain an empty text"),
        ("a", json!({"top_n_tokens": 6}), "`top_n_tokens` must be >= 0 and <= 5. Given: 6"),
        ("", json!({}), "`inputs` cannot be empty"),
        ("a", json!({"truncate": 0}), "`truncate` must be strictly positive and less than 1023. Given: 0"),
        (
            "a",
            json!({"truncate": 1024}),
            "`truncate` must be strictly positive and less than 1023. Given: 1024",
        ),
        (
            "a",
            json!({"max_new_tokens": 1023}),
            "`inputs` tokens + `max_new_tokens` must be <= 1024. Given: 2 `inputs` tokens and 1023 `max_new_tokens`",
        ),
        (
            "a",
            json!({"max_new_tokens": 5000}),
            "`inputs` tokens + `max_new_tokens` must be <= 1024. Given: 2 `inputs` tokens and 5000 `max_new_tokens`",
        ),
        (
            long.as_str(),
            json!({"max_new_tokens": 1}),
            "`inputs` tokens + `max_new_tokens` must be <= 1024. Given: 1101 `inputs` tokens and 1 `max_new_tokens`",
        ),
        ("a", json!({"grammar": {"type": "json", "value": 5}}), "grammar is not supported"),
        (
            "a",
            json!({"grammar": {"type": "json", "value": "["}}),
            "grammar is not valid: EOF while parsing a list at line 1 column 1",
        ),
        (
            "a",
            json!({"grammar": {"type": "json", "value": {"type": "nonsense"}}}),
            "grammar is not valid: `type` at the top must be among null, boolean, number, integer, string, array, object",
        ),
        ("a", json!({"adapter_id": "x"}), "`adapter_id` x is not known: the server has no adapters"),
    ];
    for (inputs, parameters, detail) in cases {
        let body = json!({"inputs": inputs, "parameters": parameters});
        for path in ["/generate", "/generate_stream", "/"] {
            let reply = server.post(path, body.clone()).await;
            if path == "/generate_stream" && body["parameters"].get("best_of").is_some() {
                continue;
            }
            assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{body} at {path}: {}", reply.body);
            assert_eq!(
                error(&reply, "validation"),
                format!("Input validation error: {detail}"),
                "{body} at {path}"
            );
        }
    }
    for (parameters, detail) in [
        (json!({"best_of": 2, "do_sample": true}), "`best_of` != 1 is not supported when streaming tokens"),
        (
            json!({"decoder_input_details": true}),
            "`decoder_input_details` == true is not supported when streaming tokens",
        ),
    ] {
        let reply = server.post("/generate_stream", json!({"inputs": "a", "parameters": parameters})).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
        assert_eq!(error(&reply, "validation"), format!("Input validation error: {detail}"));
    }
    for parameters in [
        json!({"top_p": 1.0}),
        json!({"best_of": 0}),
        json!({"truncate": 1023, "max_new_tokens": 1}),
        json!({"grammar": null}),
        json!({"frequency_penalty": -2.0, "stop": ["a", "b", "c", "d"], "top_n_tokens": 5, "top_k": 1}),
        json!({"frequency_penalty": 2.0, "best_of": 2, "do_sample": true, "max_new_tokens": 1022}),
        json!({"grammar": {"type": "json", "value": "{\"type\": \"object\"}"}}),
        json!({"grammar": {"type": "regex", "value": "[xy]+"}}),
        json!({"grammar": {"type": "json", "value": {"type": "array"}}}),
        json!({"grammar": {"type": "json_schema", "value": {"name": "n", "schema": {"type": "object"}}}}),
    ] {
        let reply = server.post("/generate", json!({"inputs": "a", "parameters": parameters})).await;
        assert_eq!(reply.status, StatusCode::OK, "{parameters}: {}", reply.body);
    }
}

#[tokio::test]
async fn malformed_bodies_are_refused() {
    let server = Server::saying("x");
    let plain = "text/plain; charset=utf-8";
    let reply = server.post_text("/generate", "{inputs}").await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::BAD_REQUEST, plain));
    assert_eq!(
        reply.body,
        "Failed to parse the request body as JSON: key must be a string at line 1 column 2"
    );
    let reply = server.post_text("/generate", r#"{"inputs":"a","parameters":{"top_k":"x"}}"#).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::UNPROCESSABLE_ENTITY, plain));
    assert_eq!(
        reply.body,
        "Failed to deserialize the JSON body into the target type: parameters.top_k: invalid type: string \"x\", \
         expected i32 at line 1 column 39"
    );
    let reply = server.send(Request::post("/generate").body(Body::from("{}")).unwrap()).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::UNSUPPORTED_MEDIA_TYPE, plain));
    assert_eq!(reply.body, "Expected request with `Content-Type: application/json`");
    let reply = server.post("/generate", json!({"inputs": "a".repeat(2_000_000)})).await;
    assert_eq!((reply.status, reply.header("content-type")), (StatusCode::PAYLOAD_TOO_LARGE, plain));
    assert_eq!(
        reply.body,
        "Failed to buffer the request body: length limit exceeded. The body has more than 2000000 bytes and \
         may have at most 2000000 bytes, before and after it is unpacked (--payload-limit)"
    );
    // Texts far longer than any prompt are refused before they are tokenized.
    let reply = server.post("/generate", json!({"inputs": "a".repeat(1_000_000)})).await;
    assert_eq!(
        error(&reply, "validation"),
        "Input validation error: `inputs` must have less than 1023 tokens. Given: 250000"
    );
    for hostile in [r#"{"inputs": "\ud800"}"#.to_owned(), "[".repeat(100_000)] {
        assert!(server.post_text("/generate", hostile).await.status.is_client_error());
    }
}

#[tokio::test]
async fn failures_of_the_engine_are_reported() {
    let server = Server::new(Script::Fail("ab".into()));
    let reply = server.post("/generate", json!({"inputs": "a"})).await;
    assert_eq!(reply.status, StatusCode::FAILED_DEPENDENCY);
    let text = "Request failed during generation: Server error: the shard has died";
    assert_eq!(error(&reply, "generation"), text);
    let events = server.post("/generate_stream", json!({"inputs": "a"})).await.json_events();
    assert_eq!(events.len(), 3);
    assert_eq!(events[2], json!({"error": text, "error_type": "generation"}));

    let server = Server::new(Script::Vanish(String::new()));
    for path in ["/generate", "/generate_stream"] {
        let reply = server.post(path, json!({"inputs": "a"})).await;
        assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
        assert_eq!(error(&reply, "incomplete_generation"), "Incomplete generation");
    }
    let server = Server::new(Script::Vanish("ab".into()));
    let events = server.post("/generate_stream", json!({"inputs": "a"})).await.json_events();
    let expected =
        json!({"error": "Incomplete generation stream", "error_type": "incomplete_generation_stream"});
    assert_eq!((events.len(), &events[2]), (3, &expected));
}

#[tokio::test]
async fn tokenize_returns_tokens_with_their_ranges() {
    let server = Server::saying("x");
    let reply = server.post("/tokenize", json!({"inputs": "aé"})).await;
    let tokens = reply.json();
    assert_eq!(tokens[0], json!({"id": BOS, "text": "", "start": 0, "stop": 0}));
    assert_eq!(tokens[1], json!({"id": 97, "text": "a", "start": 0, "stop": 1}));
    // Both tokens of a character cover it.
    let place = |token: &Value| [&token["id"], &token["start"], &token["stop"]].map(|n| n.as_u64().unwrap());
    assert_eq!([place(&tokens[2]), place(&tokens[3])], [[0xC3, 1, 3], [0xA9, 1, 3]]);
    let reply = server.post("/tokenize", json!({"inputs": ""})).await;
    assert_eq!(error(&reply, "validation"), "Input validation error: `inputs` cannot be empty");
}

#[tokio::test]
async fn info_has_the_model_and_the_limits() {
    let info = Server::saying("x").get("/info").await.json();
    let expected = json!({
        "model_id": "org/model", "model_sha": null, "model_dtype": "float32", "quantize": null,
        "model_device_type": "cpu",
        "model_pipeline_tag": null, "max_concurrent_requests": 128, "max_best_of": 2, "max_stop_sequences": 4,
        "max_input_tokens": 1023, "max_total_tokens": 1024, "validation_workers": 2, "max_client_batch_size": 128,
        "router": "text-generation-router", "version": "3.3.7", "millrace_version": env!("CARGO_PKG_VERSION"), "sha": null, "docker_label": null,
        "end_tokens": ["</s>"], "sampling_defaults": {}, "thinking": null,
        "embeddings": {
            "pooling": ["lasttoken"], "pooling_source": "default", "modules": [], "features": 4,
            "max_input_tokens": 1023, "max_input_tokens_source": "max_input_tokens", "prompts": [],
            "default_prompt": null,
        },
        "model_type": {"reranker": {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}},
        "max_input_length": 1023, "max_batch_tokens": 64, "max_batch_requests": 8, "auto_truncate": false,
        "tokenization_workers": 2,
    });
    assert_eq!(info, expected);
}
