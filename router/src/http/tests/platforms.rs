//! Routes of platforms: SageMaker, Vertex AI, KServe.

use axum::http::StatusCode;
use serde_json::json;

use super::{HttpConfig, Script, Server};
use crate::engine::EngineState;
use crate::http::PlatformRoutes;

#[tokio::test]
async fn invocations_are_distinguished_by_their_fields() {
    let server = Server::saying("x");
    let reply = server.post("/invocations", json!({"inputs": "abc", "parameters": {}})).await;
    assert_eq!(reply.json(), json!([{"generated_text": "abcx"}]));
    let events = server.post("/invocations", json!({"inputs": "abc", "stream": true})).await.json_events();
    assert_eq!(events.last().unwrap()["generated_text"], "abcx");
    let chat = json!({"messages": [{"role": "user", "content": "a"}]});
    let reply = server.post("/invocations", chat).await;
    assert_eq!(reply.json()["choices"][0]["message"]["content"], "x");
    let reply = server.post("/invocations", json!({"prompt": "a", "logit_bias": {"3": 1}, "seed": -1})).await;
    assert_eq!(reply.json()["choices"][0]["text"], "x");

    let reply = server.post("/invocations", json!({"inputs": 7})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reply.body.contains("invalid type: integer `7`, expected a string"), "{}", reply.body);
    let reply = server.post("/invocations", json!({"prompt": {}})).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_eq!(reply.json()["error"]["type"], "invalid_request_error");
    let reply = server.post("/invocations", json!({"text": "a"})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert!(reply.body.contains("`inputs`, `messages` and `prompt`"), "{}", reply.body);
    assert_eq!(server.post("/invocations", json!([])).await.status, StatusCode::UNPROCESSABLE_ENTITY);
}

#[tokio::test]
async fn vertex_answers_each_instance_in_order() {
    let mut server = Server::saying("x");
    let chat = json!({"messages": [{"role": "user", "content": "b"}], "max_tokens": 5, "temperature": 0});
    let instances =
        json!([{"inputs": "a", "parameters": {"max_new_tokens": 1, "seed": 3, "do_sample": true}}, chat]);
    let reply = server.post("/vertex", json!({"instances": instances})).await;
    assert_eq!(reply.json(), json!({"predictions": ["x", "x"]}));
    let mut asked =
        [server.engine.requests.recv().await.unwrap(), server.engine.requests.recv().await.unwrap()];
    asked.sort_by_key(|request| request.max_new_tokens);
    // TGI reads only these two parameters here. This server reads all of them, as on other routes.
    assert_eq!((asked[0].max_new_tokens, asked[0].sampling.seed), (1, 3));
    assert!(asked[0].sampling.do_sample);
    assert_eq!((asked[1].max_new_tokens, asked[1].sampling.do_sample), (5, false));

    let reply = server.post("/vertex", json!({"instances": []})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(
        reply.json(),
        json!({"error": "Input validation error", "error_type": "Input validation error"})
    );
    for (instance, text) in [
        (json!({"inputs": ""}), "Input validation error: `inputs` cannot be empty"),
        (json!({"inputs": 7}), "Input validation error: invalid type: integer `7`, expected a string"),
        (json!({"messages": [7]}), "Input validation error: `messages[0]` must be an object"),
        (json!({"messages": [{"role": "bad", "content": "a"}]}), "Template error: Unknown role bad"),
    ] {
        let reply = server.post("/vertex", json!({"instances": [instance]})).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{}", reply.body);
        let error = reply.json()["error"].as_str().unwrap().to_owned();
        assert!(error.starts_with(text), "{error}");
    }
    let many = vec![json!({"inputs": "a"}); 129];
    let reply = server.post("/vertex", json!({"instances": many})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);

    let server = Server::new(Script::Fail("a".into()));
    let reply = server.post("/vertex", json!({"instances": [{"inputs": "a"}]})).await;
    assert_eq!(reply.status, StatusCode::INTERNAL_SERVER_ERROR);
    assert_eq!(
        reply.json(),
        json!({"error": "Incomplete generation", "error_type": "incomplete_generation"})
    );
}

#[tokio::test]
async fn a_platform_may_choose_paths() {
    // The second one is a route of text-embeddings-inference, which gives way.
    for path in ["/v1/endpoints/1:predict", "/predict"] {
        let platform = PlatformRoutes::new(Some(path.into()), Some("/alive".into())).unwrap();
        let config = HttpConfig { platform, ..HttpConfig::default() };
        let server = Server::with(Script::Say("x".into()), 8, config);
        let reply = server.post(path, json!({"instances": [{"inputs": "a"}]})).await;
        assert_eq!(reply.json(), json!({"predictions": ["x"]}));
        assert_eq!(server.get("/alive").await.status, StatusCode::OK);
        server.engine.state.send(EngineState::Draining).unwrap();
        assert_eq!(server.get("/alive").await.status, StatusCode::SERVICE_UNAVAILABLE);
    }
}

#[tokio::test]
async fn kserve_routes_answer() {
    let server = Server::saying("hü");
    assert_eq!(server.get("/v2").await.json()["name"], "millrace");
    assert_eq!(server.get("/v2/health/live").await.json(), json!({"live": true}));
    assert_eq!(server.get("/v2/health/ready").await.json(), json!({"live": true, "ready": true}));
    for path in ["/v2/models/org%2Fmodel", "/v2/models/tgi/versions/1"] {
        let model = server.get(path).await.json();
        assert_eq!((&model["name"], &model["inputs"][0]["datatype"]), (&json!("org/model"), &json!("BYTES")));
        assert_eq!(server.get(&format!("{path}/ready")).await.status, StatusCode::OK);
        let infer = format!("{path}/infer");
        let bytes = json!({
            "id": "7", "parameters": {"max_new_tokens": 9},
            "inputs": [{"name": "input", "shape": [1], "datatype": "BYTES", "data": [97, 98]}],
            "outputs": [{"name": "output"}],
        });
        let output = json!({"name": "output", "shape": [1, 3], "datatype": "BYTES", "data": [104, 195, 188]});
        let expected = json!({"model_name": "org/model", "id": "7", "outputs": [output]});
        assert_eq!(server.post(&infer, bytes).await.json(), expected);
        let text = json!({"inputs": [{"name": "in", "shape": [1], "datatype": "BYTES", "data": ["ab"]}]});
        let output = json!({"name": "in", "shape": [1, 1], "datatype": "BYTES", "data": ["hü"]});
        assert_eq!(server.post(&infer, text).await.json()["outputs"], json!([output]));
    }
    let input = |data| json!({"name": "in", "shape": [1], "datatype": "BYTES", "data": data});
    for (body, text) in [
        (json!({"inputs": []}), "must have 1 to 128 tensors"),
        (json!({"inputs": [input(json!([0xff]))]}), "must be UTF-8"),
        (json!({"inputs": [input(json!(["a", "b"]))]}), "must have one element"),
        (json!({"inputs": [input(json!([""]))]}), "`inputs` cannot be empty"),
        (
            json!({"inputs": [input(json!(["a"]))], "outputs": [{"name": "a"}, {"name": "b"}]}),
            "length mismatch",
        ),
        (
            json!({"inputs": [{"name": "in", "datatype": "FP32", "data": [1]}]}),
            "must have the datatype BYTES",
        ),
        (
            json!({"inputs": [input(json!(["a"]))], "parameters": {"top_k": 0}}),
            "`top_k` must be strictly positive",
        ),
    ] {
        let reply = server.post("/v2/models/tgi/infer", body.clone()).await;
        assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY, "{body}");
        assert!(reply.json()["error"].as_str().unwrap().contains(text), "{body}: {}", reply.body);
    }
    // A model without configured names may be requested by any name.
    let reply = server.post("/v2/models/other/infer", json!({"inputs": [input(json!(["a"]))]})).await;
    assert_eq!((reply.status, &reply.json()["model_name"]), (StatusCode::OK, &json!("org/model")));

    server.engine.state.send(EngineState::Loading { phase: "weights".into(), done: 1, total: 2 }).unwrap();
    assert_eq!(server.get("/v2/health/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(server.get("/v2/models/tgi/ready").await.status, StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(server.get("/v2/health/live").await.status, StatusCode::OK);
    server.engine.state.send(EngineState::Failed("no memory".into())).unwrap();
    assert_eq!(server.get("/v2/health/live").await.status, StatusCode::SERVICE_UNAVAILABLE);
}

#[tokio::test]
async fn chat_tokenize_returns_text_and_tokens() {
    let server = Server::saying("x");
    let user = json!({"role": "user", "content": "a"});
    let reply = server.post("/chat_tokenize", json!({"messages": [user], "max_tokens": 7})).await.json();
    let text = "<s>user: a\nassistant: ";
    assert_eq!(reply["templated_text"], text);
    let tokens = reply["tokenize_response"].as_array().unwrap();
    assert_eq!((tokens.len(), &tokens[0]["id"]), (text.len() - 2, &json!(256)));
    assert_eq!(tokens[1], json!({"id": 117, "text": "u", "start": 3, "stop": 4}));
    let begun = json!({"role": "assistant", "content": "Well"});
    let reply = server.post("/chat_tokenize", json!({"messages": [user, begun]})).await.json();
    assert_eq!(reply["templated_text"], "<s>user: a\nassistant: Well");
    let reply = server.post("/chat_tokenize", json!({"messages": [{"role": "bad", "content": ""}]})).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(reply.json()["error_type"], "template_error");
}
