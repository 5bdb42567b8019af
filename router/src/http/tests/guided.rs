//! vLLM's fields for structured output.

use serde_json::{Value, json};

use super::Server;

fn requests(fields: &Value) -> [(&'static str, Value); 2] {
    let with = |mut body: Value| {
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        body
    };
    let messages = json!([{"role": "user", "content": "a"}]);
    [
        ("/v1/chat/completions", with(json!({"messages": messages, "max_tokens": 20}))),
        ("/v1/completions", with(json!({"prompt": "a", "max_tokens": 20}))),
    ]
}

/// Returns whether the first token of an answer may be this byte.
async fn allows(server: &mut Server, path: &str, body: &Value, byte: u8) -> bool {
    let reply = server.post(path, body.clone()).await;
    assert_eq!(reply.status.as_u16(), 200, "{body}: {}", reply.body);
    let mask = server.engine.requests.recv().await.unwrap().mask.expect("a grammar");
    mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 1
}

#[tokio::test]
async fn vllms_fields_constrain_the_answer() {
    let mut server = Server::saying("x");
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    for (fields, first, other) in [
        (json!({"guided_json": schema}), b'{', b'x'),
        (json!({"guided_json": schema.to_string()}), b'{', b'x'),
        (json!({"guided_regex": "[0-9]+x"}), b'7', b'x'),
        (json!({"guided_choice": ["a.b", "(c"]}), b'(', b'x'),
        (json!({"guided_choice": ["a.b", "(c"]}), b'a', b'c'),
        (json!({"guided_grammar": "start: \"yes\" | \"no\""}), b'n', b'x'),
        (json!({"structured_outputs": {"json": schema}}), b'{', b'x'),
        (json!({"structured_outputs": {"regex": "[0-9]+", "disable_fallback": true}}), b'7', b'x'),
        (json!({"structured_outputs": {"choice": ["yes", "no"], "json": null}}), b'y', b'x'),
        (json!({"structured_outputs": {"grammar": "start: \"yes\""}}), b'y', b'x'),
        (json!({"structured_outputs": {"json_object": true}}), b'{', b'x'),
        (json!({"guided_grammar": "root ::= \"yes\" | \"no\""}), b'n', b'x'),
        (json!({"structured_outputs": {"grammar": "root ::= a\na ::= \"(\" a \")\" | [0-9]"}}), b'(', b'x'),
        (json!({"grammar": "root ::= [0-9]+"}), b'7', b'x'),
        (json!({"grammar": "start: \"yes\""}), b'y', b'x'),
        (json!({"grammar": {"type": "gbnf", "value": "root ::= [0-9]+"}}), b'7', b'x'),
        (json!({"response_format": {"type": "gbnf", "value": "root ::= [0-9]+"}}), b'7', b'x'),
        // One constraint in the fields of several servers.
        (json!({"guided_regex": "[0-9]+", "structured_outputs": {"regex": "[0-9]+"}}), b'7', b'x'),
        (json!({"grammar": "root ::= [0-9]+", "guided_grammar": "root ::= [0-9]+"}), b'7', b'x'),
    ] {
        for (path, body) in requests(&fields) {
            assert!(allows(&mut server, path, &body, first).await, "{path} {fields}");
            assert!(!allows(&mut server, path, &body, other).await, "{path} {fields}");
        }
    }
}

#[tokio::test]
async fn errors_name_the_field() {
    let server = Server::saying("x");
    for (fields, param, text) in [
        (json!({"guided_json": 5}), "guided_json", "must be a JSON schema"),
        (json!({"guided_json": "{"}), "guided_json", "EOF while parsing"),
        (json!({"guided_json": {"type": "nonsense"}}), "guided_json", "must be among null, boolean"),
        (json!({"guided_regex": "("}), "guided_regex", "grammar is not valid"),
        (json!({"guided_regex": "a(?=b)"}), "guided_regex", "a(?=b)\n     ^^^\nerror: look-around"),
        (json!({"guided_choice": []}), "guided_choice", "must have 1 to 1000 texts. Given: 0"),
        (json!({"guided_grammar": "root ::= other"}), "guided_grammar", "the rule `other` is not defined"),
        (json!({"grammar": "root ::= \"a"}), "grammar", "line 1: a text is not closed"),
        (
            json!({"structured_outputs": {"grammar": "root ::= <think>"}}),
            "structured_outputs.grammar",
            "tokens by their names or ids are not supported",
        ),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice", "both constrain"),
        (
            json!({"guided_regex": "a", "response_format": {"type": "json_object"}}),
            "guided_regex",
            "both constrain",
        ),
        (
            json!({"structured_outputs": {"regex": "a", "choice": ["a"]}}),
            "structured_outputs",
            "must have one of",
        ),
        (
            json!({"structured_outputs": {"regex": 5}}),
            "structured_outputs",
            "`structured_outputs.regex` must be a text",
        ),
        (json!({"structured_outputs": {"choice": [5]}}), "structured_outputs", "must be a list of texts"),
        (
            json!({"structured_outputs": {"structural_tag": "a"}}),
            "structured_outputs.structural_tag",
            "is not supported",
        ),
    ] {
        for (path, body) in requests(&fields) {
            let reply = server.post(path, body).await;
            let error = reply.json()["error"].clone();
            assert_eq!(
                (reply.status.as_u16(), &error["param"]),
                (400, &json!(param)),
                "{path} {fields}: {error}"
            );
            assert!(error["message"].as_str().unwrap().contains(text), "{path} {fields}: {error}");
        }
    }
    // A neutral value does not constrain the answer.
    for (path, body) in requests(&json!({"structured_outputs": {"json_object": false}})) {
        assert_eq!(server.post(path, body).await.status, 200, "{path}");
    }
}
