//! `/v1/embeddings`.

use millrace_scheduler::Pooling;
use serde_json::{Value, json};

use super::{HttpConfig, Script, Server};
use crate::embedding::PoolingMode;
use crate::service::RequestLimits;
use crate::test_support::{self, BOS};

const PATH: &str = "/v1/embeddings";

fn is_close(got: &Value, expected: &[f64]) -> bool {
    let got: Vec<f64> = got.as_array().unwrap().iter().map(|value| value.as_f64().unwrap()).collect();
    got.len() == expected.len() && got.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-6)
}

#[tokio::test]
async fn inputs_of_any_kind_become_unit_vectors_in_their_order() {
    let mut server = Server::saying("x");
    for (input, ids, tokens) in [
        (json!("ab"), vec![vec![BOS, 97, 98]], 3),
        (json!(["a", "bc"]), vec![vec![BOS, 97], vec![BOS, 98, 99]], 5),
        (json!([5, 6]), vec![vec![5, 6]], 2),
        (json!([[7], [8, 9]]), vec![vec![7], vec![8, 9]], 3),
    ] {
        let body = server.post(PATH, json!({"input": input, "model": "org/model"})).await.json();
        assert_eq!((&body["object"], &body["model"]), (&json!("list"), &json!("org/model")));
        assert_eq!(body["usage"], json!({"prompt_tokens": tokens, "total_tokens": tokens}));
        let data = body["data"].as_array().unwrap();
        assert_eq!(data.len(), ids.len());
        for (index, (of, ids)) in data.iter().zip(&ids).enumerate() {
            assert_eq!((&of["object"], &of["index"]), (&json!("embedding"), &json!(index)));
            assert!(is_close(&of["embedding"], &[0.6, 0.0, -0.8, 0.0]), "{of}");
            let request = server.engine.requests.recv().await.unwrap();
            assert_eq!((&request.prompt, request.max_new_tokens), (ids, 0));
            assert_eq!(request.pooling, Some(Pooling::Last));
        }
    }
}

#[tokio::test]
async fn a_request_may_have_more_inputs_than_are_computed_at_once() {
    let server = Server::with(Script::Say("x".into()), 4, HttpConfig::default());
    let inputs: Vec<String> = (0..200).map(|index| "a".repeat(1 + index % 9)).collect();
    let body = server.post(PATH, json!({"input": inputs})).await.json();
    let indices: Vec<_> =
        body["data"].as_array().unwrap().iter().map(|of| of["index"].as_u64().unwrap()).collect();
    assert!(indices.into_iter().eq(0..200));
    assert_eq!(server.engine.engine.in_flight(), 0);
}

#[tokio::test]
async fn fewer_dimensions_and_base64() {
    let server = Server::saying("x");
    let body = server.post(PATH, json!({"input": "a", "dimensions": 1})).await.json();
    assert!(is_close(&body["data"][0]["embedding"], &[1.0]));
    let format = json!({"input": "a", "dimensions": 3, "encoding_format": "base64", "user": "u"});
    let body = server.post(PATH, format).await.json();
    // 0.6, 0 and -0.8.
    assert_eq!(body["data"][0]["embedding"], "mpkZPwAAAADNzEy/");
}

#[tokio::test]
async fn the_pooling_comes_from_the_operator_or_the_model() {
    let serving = |pooling: Value, limits| {
        let read = |file: &str| {
            Ok((file == "1_Pooling/config.json").then(|| pooling.to_string().into_bytes().into()))
        };
        let embedding = crate::embedding::read(None, &read, &Value::Null, &Value::Null);
        let assets = crate::assets::Assets { embedding, ..test_support::assets() };
        Server::serving(&assets, Script::Vanish(String::new()), limits, HttpConfig::default())
    };
    let mean = json!({"pooling_mode_mean_tokens": true});
    for (config, asked, expected) in [
        (mean.clone(), None, Pooling::Mean),
        (mean, Some(PoolingMode::Last), Pooling::Last),
        (json!({"pooling_mode_max_tokens": true}), None, Pooling::Max),
        (json!({"pooling_mode_other": true}), Some(PoolingMode::WeightedMean), Pooling::WeightedMean),
    ] {
        let mut server = serving(config, RequestLimits { pooling: asked, ..RequestLimits::default() });
        server.post(PATH, json!({"input": "a"})).await;
        assert_eq!(server.engine.requests.recv().await.unwrap().pooling, Some(expected));
    }
}

/// A model with a head is of use without vectors.
#[tokio::test]
async fn vectors_by_an_unknown_module_are_refused_by_its_name() {
    let list = json!([{"path": "", "type": "custom.Encoder"}]).to_string();
    let read = |file: &str| Ok((file == "modules.json").then(|| list.clone().into_bytes().into()));
    let embedding = crate::embedding::read(None, &read, &Value::Null, &Value::Null);
    let assets = crate::assets::Assets { embedding, has_head: true, ..test_support::assets() };
    let limits = RequestLimits::default();
    let server = Server::serving(&assets, Script::Say("x".into()), limits, HttpConfig::default());
    let reply = server.post(PATH, json!({"input": "a"})).await;
    assert_eq!((reply.status.as_u16(), &reply.json()["error"]["param"]), (400, &json!("model")));
    assert!(reply.body.contains("custom.Encoder is not supported"), "{}", reply.body);
    assert_eq!(server.post("/generate", json!({"inputs": "a"})).await.status.as_u16(), 200);
}

#[tokio::test]
async fn wrong_requests_are_refused() {
    let server = Server::saying("x");
    let many = vec!["a"; 2049];
    let cases = [
        (json!({"input": []}), 400, "input", "`input` must have 1 to 2048 texts. Given: 0"),
        (json!({"input": many}), 400, "input", "Given: 2049"),
        (json!({"input": ""}), 400, "input", "`input` cannot be empty"),
        (json!({"input": ["a", ""]}), 400, "input", "the input at index 1: `input` cannot be empty"),
        (
            json!({"input": ["a", "b", "a".repeat(1100)]}),
            400,
            "input",
            "Please reduce `input`. It is the one at index 2.",
        ),
        (
            json!({"input": "a", "prompt_name": "query"}),
            400,
            "prompt_name",
            "the model's folder has no prompts",
        ),
        (json!({"input": [[]]}), 400, "input", "`input` cannot be empty"),
        (json!({"input": [70000]}), 400, "input", "token id 70000 is outside of the vocabulary of 258"),
        (
            json!({"input": "a".repeat(1100)}),
            400,
            "input",
            "the input resulted in 1101 tokens. Please reduce `input`.",
        ),
        (
            json!({"input": "a".repeat(1023)}),
            400,
            "input",
            "the input resulted in 1024 tokens. Please reduce `input`.",
        ),
        (
            json!({"input": "a", "dimensions": 0}),
            400,
            "dimensions",
            "`dimensions` must be > 0 and <= 4. Given: 0",
        ),
        (json!({"input": "a", "dimensions": 5}), 400, "dimensions", "Given: 5"),
        (
            json!({"input": "a", "encoding_format": "int8"}),
            400,
            "encoding_format",
            "must be `float` or `base64`",
        ),
        (
            json!({"input": "a", "truncate_prompt_tokens": 5}),
            400,
            "truncate_prompt_tokens",
            "is not supported",
        ),
    ];
    for (body, status, param, text) in cases {
        let reply = server.post(PATH, body.clone()).await;
        let error = reply.json()["error"].clone();
        assert_eq!((reply.status.as_u16(), &error["param"]), (status, &json!(param)), "{body}: {error}");
        assert!(error["message"].as_str().unwrap().contains(text), "{body}: {error}");
    }
    let reply = Server::new(Script::Vanish(String::new())).post(PATH, json!({"input": {}})).await;
    assert_eq!(reply.status.as_u16(), 400);
}
