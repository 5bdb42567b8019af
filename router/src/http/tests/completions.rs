//! `/v1/completions` and `/v1/models`.

use serde_json::{Value, json};

use super::Server;
use crate::test_support::BOS;

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn one_prompt_is_continued() {
    let mut server = Server::saying("ok");
    let body = server.post(PATH, json!({"prompt": "abc", "max_tokens": 1})).await.json();
    assert_eq!(body["object"], "text_completion");
    assert!(body["id"].as_str().unwrap().starts_with("cmpl-"));
    assert_eq!(
        body["choices"],
        json!([{"index": 0, "text": "o", "logprobs": null, "finish_reason": "length"}])
    );
    assert_eq!(
        body["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 1, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}})
    );
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt, [BOS, 97, 98, 99]);
}

#[tokio::test]
async fn several_prompts_are_answered_in_order() {
    let mut server = Server::saying("ok");
    let body =
        server.post(PATH, json!({"prompt": ["a", "b"], "n": 2, "echo": true, "suffix": null})).await.json();
    let texts: Vec<_> =
        body["choices"].as_array().unwrap().iter().map(|c| (&c["index"], &c["text"])).collect();
    let expected = [json!("aok"), json!("aok"), json!("bok"), json!("bok")];
    assert_eq!(texts, [json!(0), json!(1), json!(2), json!(3)].iter().zip(&expected).collect::<Vec<_>>());
    for _ in 0..4 {
        server.engine.requests.recv().await.unwrap();
    }
    for (prompt, ids) in [(json!([97, 98]), vec![97, 98]), (json!([[99]]), vec![99])] {
        let body = server.post(PATH, json!({"prompt": prompt, "echo": true})).await.json();
        let echoed: String = ids.iter().map(|&id| char::from_u32(id).unwrap()).collect();
        assert_eq!(body["choices"][0]["text"], echoed + "ok");
        assert_eq!(server.engine.requests.recv().await.unwrap().prompt, ids);
    }
}

/// The log-probability that the fake engine reports for the tokens of an answer, which depends on
/// its seed.
fn logprob_of(seed: u64, answer: u64) -> f64 {
    -0.25 - (crate::service::variant_seed(seed, answer) % 7) as f64
}

#[tokio::test]
async fn the_best_of_several_answers_is_returned() {
    let server = Server::saying("ok");
    let best = (0..3).map(|index| logprob_of(5, index)).fold(f64::MIN, f64::max);
    assert!(best > logprob_of(5, 0), "the best answer is not the first one");
    let body = json!({"prompt": "a", "n": 1, "best_of": 3, "seed": 5, "logprobs": 1});
    let body = server.post(PATH, body).await.json();
    assert_eq!(body["choices"].as_array().unwrap().len(), 1);
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["token_logprobs"], json!([best, best, best]));
    let expected = (&json!(["o", "k", "</s>"]), &json!([0, 1, 2]));
    assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), expected);
    assert_eq!(logprobs["top_logprobs"].as_array().unwrap().len(), 3);
    assert_eq!(body["usage"]["completion_tokens"], 9);
}

/// Evaluation harnesses request the log-probabilities of a given text.
#[tokio::test]
async fn an_echo_has_log_probabilities() {
    let mut server = Server::saying("ok");
    // The fake engine's numbers depend on the seed, which differs between choices.
    let body = json!({"prompt": "abü", "echo": true, "logprobs": 2, "max_tokens": 1, "seed": 7});
    let reply = server.post(PATH, body.clone()).await.json();
    let request = server.engine.requests.recv().await.unwrap();
    assert_eq!((request.prompt.len(), request.prompt_logprobs), (5, Some(2)));
    let choice = &reply["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abüo"), &json!("length")));
    let expected = json!({
        "tokens": ["<s>", "a", "b", "�", "�", "o"],
        "token_logprobs": [null, -2.0, -3.0, -4.0, -5.0, -0.25],
        "top_logprobs": [null, {"a": -0.5, "`": -1.5}, {"b": -0.5, "c": -1.5}, {"�": -1.5}, {"�": -1.5},
                         {"o": -0.25, "n": -1.25}],
        "text_offset": [0, 0, 1, 2, 2, 3],
    });
    assert_eq!(choice["logprobs"], expected);
    assert_eq!(choice.get("prompt_logprobs"), None);

    // Only the prompt, without alternatives.
    let mut alone = body.clone();
    (alone["max_tokens"], alone["logprobs"]) = (json!(0), json!(0));
    let reply = server.post(PATH, alone).await.json();
    assert_eq!(server.engine.requests.recv().await.unwrap().max_new_tokens, 0);
    let choice = &reply["choices"][0];
    assert_eq!((&choice["text"], &choice["finish_reason"]), (&json!("abü"), &json!("length")));
    assert_eq!(choice["logprobs"]["token_logprobs"], json!([null, -2.0, -3.0, -4.0, -5.0]));
    assert_eq!(choice["logprobs"]["top_logprobs"], Value::Null);
    assert_eq!(reply["usage"]["completion_tokens"], 0);
    let bare = server.post(PATH, json!({"prompt": "ab", "echo": true, "max_tokens": 0})).await.json();
    assert_eq!((&bare["choices"][0]["text"], &bare["choices"][0]["logprobs"]), (&json!("ab"), &Value::Null));
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt_logprobs, None);

    // In a stream the first chunk has the prompt's entries, and all chunks together are equal.
    let mut streamed = body;
    streamed["stream"] = json!(true);
    streamed["n"] = json!(2);
    for choice in 0..2u64 {
        let chunks = server.post(PATH, streamed.clone()).await.chunks();
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|of| of["index"] == choice);
        let mut expected = expected.clone();
        expected["token_logprobs"][5] = json!(logprob_of(7, choice));
        for (name, expected) in expected.as_object().unwrap() {
            let parts = own.clone().flat_map(|of| of["logprobs"][name].as_array().unwrap().clone());
            assert_eq!(&parts.collect::<Value>(), expected, "{name} of {choice}");
        }
    }
}

#[tokio::test]
async fn prompt_logprobs_have_vllms_form() {
    let mut server = Server::saying("ok");
    let expected = json!([
        null,
        {"97": {"logprob": -2.0, "rank": 7, "decoded_token": "a"}, "96": {"logprob": -1.5, "rank": 2, "decoded_token": "`"}},
        {"98": {"logprob": -3.0, "rank": 7, "decoded_token": "b"}, "99": {"logprob": -1.5, "rank": 2, "decoded_token": "c"}},
    ]);
    let body = json!({"prompt": "ab", "prompt_logprobs": 2, "max_tokens": 0, "logprobs": 1});
    let reply = server.post(PATH, body).await.json();
    assert_eq!(reply["choices"][0]["prompt_logprobs"], expected);
    let empty = json!({"tokens": [], "token_logprobs": [], "top_logprobs": null, "text_offset": []});
    assert_eq!(reply["choices"][0]["logprobs"], empty);
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt_logprobs, Some(2));
    let body =
        json!({"prompt": [98, 97], "prompt_logprobs": 0, "echo": true, "logprobs": 3, "max_tokens": 1});
    let choice = server.post(PATH, body).await.json()["choices"][0].clone();
    let alone = json!({"97": {"logprob": -2.0, "rank": 7, "decoded_token": "a"}});
    assert_eq!(choice["prompt_logprobs"], json!([null, alone]));
    assert_eq!(choice["logprobs"]["top_logprobs"][1].as_object().unwrap().len(), 3);
}

#[tokio::test]
async fn a_stream_has_chunks_and_usage() {
    let server = Server::saying("ok");
    let chunks =
        server.post(PATH, json!({"prompt": ["a", "b"], "stream": true, "echo": true})).await.chunks();
    for (index, expected) in [(0, "aok"), (1, "bok")] {
        let own: Vec<&Value> = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index).collect();
        let text: String = own.iter().map(|chunk| chunk["choices"][0]["text"].as_str().unwrap()).collect();
        assert_eq!(text, expected);
        let (last, before) = own.split_last().unwrap();
        assert!(
            before.iter().all(|c| c["choices"][0]["finish_reason"].is_null() && c.get("usage").is_none())
        );
        assert_eq!(last["choices"][0]["finish_reason"], "stop");
        assert_eq!(
            last["usage"],
            json!({"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5, "prompt_tokens_details": {"cached_tokens": 3}})
        );
    }
    let options = json!({"include_usage": true});
    let chunks =
        server.post(PATH, json!({"prompt": "a", "stream": true, "stream_options": options})).await.chunks();
    let (usage, chunks) = chunks.split_last().unwrap();
    assert_eq!((&usage["choices"], &usage["usage"]["total_tokens"]), (&json!([]), &json!(5)));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()));
}

/// The first event of such a stream is written in a turn of its tenant.
#[tokio::test]
async fn a_stream_begins_with_the_scores_of_a_long_prompt() {
    let server = Server::saying("ok");
    let body = json!({"prompt": ["a".repeat(900), "b".repeat(1000)], "echo": true, "logprobs": 2, "seed": 7,
                      "return_token_ids": true});
    let whole = server.post(PATH, body.clone()).await.json();
    let mut streamed = body;
    streamed["stream"] = json!(true);
    let chunks = server.post(PATH, streamed).await.chunks();
    for (index, choice) in whole["choices"].as_array().unwrap().iter().enumerate() {
        let own = chunks.iter().map(|chunk| &chunk["choices"][0]).filter(|part| part["index"] == index);
        let own: Vec<&Value> = own.collect();
        let joined = |key: &str| -> Vec<Value> {
            own.iter().flat_map(|part| part["logprobs"][key].as_array().unwrap()).cloned().collect()
        };
        for key in ["tokens", "token_logprobs", "text_offset", "top_logprobs"] {
            assert_eq!(json!(joined(key)), choice["logprobs"][key], "{key} of {index}");
        }
        let text: String = own.iter().map(|part| part["text"].as_str().unwrap()).collect();
        assert_eq!(choice["text"], text);
        assert_eq!(own[0]["prompt_token_ids"], choice["prompt_token_ids"]);
    }
}

#[tokio::test]
async fn wrong_requests_are_refused() {
    let server = Server::saying("x");
    let cases = [
        (
            json!({"prompt": "a", "suffix": "b"}),
            "suffix",
            "Suffix is not supported and can be achieved by preprocessing the prompt.",
        ),
        (
            json!({"prompt": vec!["a"; 129]}),
            "prompt",
            "Number of prompts exceeds the maximum allowed batch size of 128 (--max-client-batch-size). Given: 129",
        ),
        (json!({"prompt": "a", "logprobs": 21}), "logprobs", "`logprobs` must be >= 0 and <= 20. Given: 21"),
        (json!({"prompt": []}), "prompt", "`prompt` cannot be empty"),
        (json!({"prompt": ""}), "prompt", "`prompt` cannot be empty"),
        (json!({"prompt": [70000]}), "prompt", "token id 70000 is outside of the vocabulary of 258"),
        (json!({"prompt": "a", "max_tokens": 0}), "max_tokens", "`max_tokens` must be strictly positive"),
        (
            json!({"prompt": "a", "max_tokens": 0, "echo": true, "stream": true}),
            "max_tokens",
            "`max_tokens` must be > 0 when streaming tokens",
        ),
        (
            json!({"prompt": "a", "prompt_logprobs": 1, "stream": true}),
            "prompt_logprobs",
            "`prompt_logprobs` is not supported when streaming tokens",
        ),
        (
            json!({"prompt": "a", "prompt_logprobs": 21}),
            "prompt_logprobs",
            "`prompt_logprobs` must be >= 0 and <= 20. Given: 21",
        ),
        (json!({"prompt": "a", "n": 2, "best_of": 1}), "best_of", "`best_of` must be >= `n` (2)"),
        (json!({"prompt": "a", "n": 17}), "n", "`n` must be > 0 and <= 16 (--max-best-of). Given: 17"),
        (json!({"prompt": "a", "best_of": 17}), "best_of", "`best_of` must be > 0 and <= 16 (--max-best-of)"),
        (json!({"prompt": "a", "best_of": 2, "stream": true}), "best_of", "not supported when streaming"),
        (
            json!({"prompt": "a", "stop_token_ids": [3]}),
            "stop_token_ids",
            "`stop_token_ids` is not supported",
        ),
        (json!({"prompt": "a", "tools": [{}]}), "tools", "`tools` is not supported"),
        (
            json!({"prompt": "a", "response_format": {"type": "json_schema", "schema": {"type": 5}}}),
            "response_format",
            "grammar is not valid",
        ),
    ];
    for (body, param, text) in cases {
        let reply = server.post(PATH, body.clone()).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status.as_u16(), &error["param"]), (400, &json!(param)), "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{body}: {error}");
    }
}

/// There are more prompts than are computed at the same time.
#[tokio::test]
async fn many_prompts_are_answered_in_order() {
    let server = Server::saying("ok");
    let prompts: Vec<String> = (0..128).map(|number| format!("{number}:")).collect();
    let reply = server.post(PATH, json!({"prompt": prompts, "echo": true, "max_tokens": 1})).await;
    let body = reply.json();
    assert_eq!(reply.status.as_u16(), 200, "{body}");
    let texts: Vec<_> =
        body["choices"].as_array().unwrap().iter().map(|choice| choice["text"].clone()).collect();
    let expected: Vec<_> = prompts.iter().map(|prompt| json!(format!("{prompt}o"))).collect();
    assert_eq!(texts, expected);
    assert_eq!(body["usage"]["completion_tokens"], 128);
}

#[tokio::test]
async fn special_tokens_around_the_prompt_can_be_left_out() {
    let mut server = Server::saying("ok");
    server.post(PATH, json!({"prompt": "ab", "add_special_tokens": false})).await;
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt, [97, 98]);
    server.post(PATH, json!({"prompt": "ab", "add_special_tokens": true})).await;
    assert_eq!(server.engine.requests.recv().await.unwrap().prompt, [BOS, 97, 98]);
}

#[tokio::test]
async fn each_chunk_can_have_the_usage_so_far() {
    let server = Server::saying("ok");
    let options = json!({"include_usage": true, "continuous_usage_stats": true});
    let body = json!({"prompt": ["a", "b"], "stream": true, "stream_options": options});
    let chunks = server.post(PATH, body).await.chunks();
    for index in 0..2 {
        let own = chunks.iter().filter(|chunk| chunk["choices"][0]["index"] == index);
        let counts: Vec<_> = own.map(|chunk| chunk["usage"]["completion_tokens"].as_u64().unwrap()).collect();
        assert_eq!(counts, [1, 2, 3]);
    }
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 6);
}
