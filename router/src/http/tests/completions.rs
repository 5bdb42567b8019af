//! `/v1/completions` and `/v1/models`.

use serde_json::{Value, json};

use super::Server;
use crate::test_support::BOS;

const PATH: &str = "/v1/completions";

#[tokio::test]
async fn one_prompt() {
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
async fn several_prompts_of_any_kind_in_order() {
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

#[tokio::test]
async fn the_best_of_several_answers() {
    let server = Server::saying("ok");
    // Seeds 5, 6 and 7: the fake engine finds the answer to seed 7 the most likely.
    let body = json!({"prompt": "a", "n": 1, "best_of": 3, "seed": 5, "logprobs": 1});
    let body = server.post(PATH, body).await.json();
    assert_eq!(body["choices"].as_array().unwrap().len(), 1);
    let logprobs = &body["choices"][0]["logprobs"];
    assert_eq!(logprobs["token_logprobs"], json!([-0.25, -0.25]));
    assert_eq!((&logprobs["tokens"], &logprobs["text_offset"]), (&json!(["o", "k"]), &json!([0, 1])));
    assert_eq!(logprobs["top_logprobs"], json!([{"o": -0.25}, {"k": -0.25}]));
    assert_eq!(body["usage"]["completion_tokens"], 9);
}

#[tokio::test]
async fn a_stream() {
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

#[tokio::test]
async fn what_is_wrong() {
    let server = Server::saying("x");
    let cases = [
        (
            json!({"prompt": "a", "suffix": "b"}),
            "suffix",
            "Suffix is not supported and can be achieved by preprocessing the prompt.",
        ),
        (
            json!({"prompt": ["a", "b", "c", "d", "e"]}),
            "prompt",
            "Number of prompts exceeds the maximum allowed batch size of 4",
        ),
        (json!({"prompt": []}), "prompt", "`prompt` cannot be empty"),
        (json!({"prompt": ""}), "prompt", "`prompt` cannot be empty"),
        (json!({"prompt": [70000]}), "prompt", "token id 70000 is outside of the vocabulary of 258"),
        (
            json!({"prompt": "a", "echo": true, "logprobs": 1}),
            "logprobs",
            "`logprobs` together with `echo` is not supported",
        ),
        (json!({"prompt": "a", "n": 2, "best_of": 1}), "best_of", "`best_of` must be >= `n` (2)"),
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

#[tokio::test]
async fn models() {
    let server = Server::saying("x");
    let model = json!({"id": "org/model", "object": "model", "created": 0, "owned_by": "org/model"});
    assert_eq!(server.get("/v1/models").await.json(), json!({"object": "list", "data": [model]}));
    assert_eq!(server.get("/v1/models/org/model").await.json(), model);
    let reply = server.get("/v1/models/other").await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["code"]), (404, &json!("model_not_found")));
}
