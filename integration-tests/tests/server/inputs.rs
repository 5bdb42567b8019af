//! Tests histories, schemas and wrong fields in requests of all APIs with the real binary.

use std::collections::HashSet;
use std::io::Write;

use millrace_integration_tests::{JsonResponse, Server, post, post_with};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";
const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";

fn say(role: &str, text: &str) -> Value {
    json!({"role": role, "content": text})
}

/// Returns requests of three APIs whose history has a call with these arguments.
fn histories(arguments: &Value) -> [(&'static str, Value); 3] {
    let function = json!({"name": "get", "arguments": arguments});
    let call = json!({"id": "c", "type": "function", "function": function});
    let item = json!({"type": "function_call", "call_id": "c", "name": "get", "arguments": arguments});
    let block = json!({"type": "tool_use", "id": "c", "name": "get", "input": arguments});
    [
        (
            CHAT,
            json!({"max_tokens": 4, "messages": [say("user", "a"), {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": "c", "content": "b"}]}),
        ),
        (
            RESPONSES,
            json!({"max_output_tokens": 4, "input": [say("user", "a"), item, {"type": "function_call_output", "call_id": "c", "output": "b"}]}),
        ),
        (
            MESSAGES,
            json!({"max_tokens": 4, "messages": [say("user", "a"), {"role": "assistant", "content": [block]}, {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": "b"}]}]}),
        ),
    ]
}

#[test]
fn arguments_of_earlier_calls_are_objects() {
    let server = Server::start(&[]);
    for arguments in [json!(""), json!(null), json!("{}"), json!({"n": 1})] {
        for (path, body) in histories(&arguments) {
            let answer = post(&server.url(path), &body);
            assert_eq!(answer.status, 200, "{path} {arguments}: {}", answer.body);
        }
    }
    for arguments in [json!("{\"city\": \"Par"), json!("[1]"), json!(7)] {
        for ((path, body), name) in histories(&arguments).into_iter().zip([
            "messages[1].tool_calls[0].function.arguments",
            "input[1].arguments",
            "messages[1].content[0].input",
        ]) {
            let answer = post(&server.url(path), &body);
            assert_eq!(answer.status, 400, "{path} {arguments}: {}", answer.body);
            assert!(answer.body.to_string().contains(name), "{path}: {}", answer.body);
            if path != MESSAGES {
                assert_eq!(answer.body["error"]["param"], name, "{path}");
            }
        }
    }
}

#[test]
fn late_instructions_and_empty_conversations_are_treated_alike() {
    // A template that refuses late system messages.
    let template = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}\
                    <|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}<|im_start|>assistant\n";
    let mut config = tempfile::NamedTempFile::new().unwrap();
    config.write_all(json!({"chat_template": template}).to_string().as_bytes()).unwrap();
    let server = Server::start(&["--tokenizer-config-path", config.path().to_str().unwrap()]);
    for role in ["system", "developer"] {
        let history = [say("user", "a"), say(role, "Be brief."), say("assistant", "b"), say("user", "c")];
        let chat = post(&server.url(CHAT), &json!({"max_tokens": 4, "messages": history}));
        assert_eq!(chat.status, 200, "{}", chat.body);
        let response = post(&server.url(RESPONSES), &json!({"max_output_tokens": 4, "input": history}));
        assert_eq!(response.status, 200, "{}", response.body);
        let tokens = &chat.body["usage"]["prompt_tokens"];
        assert_eq!(&response.body["usage"]["input_tokens"], tokens, "the prompts are the same");
        if role == "system" {
            let message = post(&server.url(MESSAGES), &json!({"max_tokens": 4, "messages": history}));
            assert_eq!(message.status, 200, "{}", message.body);
            let path = format!("{MESSAGES}/count_tokens");
            let count = post(&server.url(&path), &json!({"messages": history}));
            assert_eq!(&count.body["input_tokens"], tokens);
        }
    }
    for (path, body) in [
        (CHAT, json!({"messages": []})),
        (RESPONSES, json!({"input": []})),
        (MESSAGES, json!({"messages": [], "max_tokens": 4})),
    ] {
        let answer = post(&server.url(path), &body);
        assert_eq!(answer.status, 400, "{path}: {}", answer.body);
        assert!(answer.body.to_string().contains("cannot be empty"), "{path}: {}", answer.body);
    }
}

#[test]
fn errors_of_types_name_the_field() {
    let server = Server::start(&[]);
    let messages = json!([say("user", "a")]);
    let answer = post(&server.url(CHAT), &json!({"messages": messages, "max_tokens": "x"}));
    assert_eq!(answer.status, 400);
    assert_eq!(answer.body["error"]["param"], "max_tokens");
    let message = "`max_tokens` must be a whole number of at least 0, not a string";
    assert_eq!(answer.body["error"]["message"], message);
    let headers = [("x-request-id", "my-request")];
    let answer =
        post_with(&server.url(MESSAGES), &headers, &json!({"messages": messages, "max_tokens": "x"}));
    assert_eq!(answer.status, 400);
    assert_eq!(answer.body["error"]["message"], message);
    assert_eq!(answer.body["request_id"], "my-request");
    assert_eq!(answer.header("request-id"), Some("my-request"));
    let answer = post(&server.url("/v1/completions"), &json!({"prompt": "a", "guided_regex": "a(?=b)"}));
    let message = answer.body["error"]["message"].as_str().unwrap();
    assert!(message.contains("a(?=b)\n     ^^^\nerror: look-around"), "{message}");
}

/// Asks for several random answers that follow a schema.
fn answers(server: &Server, schema: &Value) -> Vec<(JsonResponse, Value)> {
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    let ask = |seed: u32| {
        let body = json!({"messages": [say("user", "Fill it in.")], "response_format": format, "seed": seed, "temperature": 1.5, "max_tokens": 200});
        let answer = post(&server.url(CHAT), &body);
        assert_eq!(answer.status, 200, "{schema}: {}", answer.body);
        let text = answer.body["choices"][0]["message"]["content"].as_str().unwrap();
        let value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        (answer, value)
    };
    (0..8).map(ask).collect()
}

#[test]
fn answers_follow_schemas_in_all_their_forms() {
    let server = Server::start(&[]);
    let colors = json!({"enum": ["red", "green", "blue", "white"]});
    let list =
        json!({"type": "array", "items": {"$ref": "#/$defs/Color"}, "uniqueItems": true, "minItems": 3});
    let schema = json!({
        "type": "object", "required": ["colors", "time", "a", "b", "c"],
        "properties": {
            "colors": list, "time": {"type": "string", "format": "time"}, "a": {"$ref": "#/%24defs/x~1y"}, "b": {"$ref": "#z"},
            "c": {"$ref": "item.json"},
        },
        "$defs": {
            "Color": colors, "x/y": {"const": 1}, "Z": {"$anchor": "z", "const": 2}, "I": {"$id": "item.json", "const": 3},
        },
    });
    for (answer, value) in answers(&server, &schema) {
        assert!(answer.header("x-millrace-ignored").is_none());
        let colors: Vec<&str> =
            value["colors"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
        assert_eq!(colors.iter().collect::<HashSet<_>>().len(), colors.len(), "{value}");
        assert!(colors.len() >= 3, "{value}");
        let time = value["time"].as_str().unwrap();
        assert!(time[6..8].parse::<u32>().unwrap() < 60, "{time}");
        assert_eq!((&value["a"], &value["b"], &value["c"]), (&json!(1), &json!(2), &json!(3)));
    }
    let email =
        json!({"type": "string", "format": "email", "pattern": "^(?!\\.)[a-z]+@[a-z]+$", "maxLength": 20});
    let schema = json!({"type": "object", "properties": {"mail": email}, "required": ["mail"]});
    for (answer, value) in answers(&server, &schema) {
        assert_eq!(answer.header("x-millrace-ignored"), Some("response_format.pattern"));
        assert!(value["mail"].as_str().unwrap().contains('@'), "{value}");
    }
}

#[test]
fn keys_that_are_not_listed_do_not_repeat() {
    let server = Server::start(&[]);
    let number = json!({"type": "integer", "minimum": 0, "maximum": 9});
    let mut complete = 0;
    for schema in [
        json!({"type": "object", "additionalProperties": number, "minProperties": 3, "maxProperties": 3}),
        json!({"type": "object", "patternProperties": {"^[a-z]+$": number}, "additionalProperties": false, "minProperties": 3, "maxProperties": 3}),
    ] {
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        for seed in 0..10 {
            let body = json!({"messages": [say("user", "a a a")], "response_format": format, "seed": seed, "temperature": 0.7, "max_tokens": 200});
            let answer = post(&server.url(CHAT), &body).body;
            // An answer that was cut off is no object.
            if answer["choices"][0]["finish_reason"] == "stop" {
                let text = answer["choices"][0]["message"]["content"].as_str().unwrap();
                let value: Value = serde_json::from_str(text).unwrap();
                assert_eq!(value.as_object().map(|object| object.len()), Some(3), "{text}");
                complete += 1;
            }
        }
    }
    assert!(complete >= 5, "only {complete} answers are complete");
}

#[test]
fn a_broken_tool_is_left_out_and_named() {
    let server = Server::start(&[]);
    let tool = |name: &str, n: Value| {
        let parameters = json!({"type": "object", "properties": {"n": n}, "required": ["n"]});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let tools =
        [tool("broken", json!({"type": "string", "minLength": "x"})), tool("fine", json!({"enum": [7]}))];
    let mut body =
        json!({"messages": [say("user", "a")], "tools": tools, "tool_choice": "required", "max_tokens": 100});
    let answer = post(&server.url(CHAT), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    assert_eq!(answer.header("x-millrace-ignored"), Some("tools.broken.parameters"));
    body["tool_choice"] = json!({"type": "function", "function": {"name": "fine"}});
    let answer = post(&server.url(CHAT), &body);
    let call = &answer.body["choices"][0]["message"]["tool_calls"][0]["function"];
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert_eq!(arguments, json!({"n": 7}), "{}", answer.body);
}

#[test]
fn gbnf_constrains_answers_in_every_field() {
    let server = Server::start(&[]);
    let gbnf = "root ::= list\nlist ::= \"[\" (item (\",\" item){1,3})? \"]\"\nitem ::= list | [0-9]";
    for fields in [
        json!({"guided_grammar": gbnf}),
        json!({"structured_outputs": {"grammar": gbnf}}),
        json!({"grammar": gbnf}),
        json!({"grammar": gbnf, "guided_grammar": gbnf}),
    ] {
        let mut body = json!({"prompt": "A list: ", "max_tokens": 300, "temperature": 0});
        body.as_object_mut().unwrap().extend(fields.as_object().unwrap().clone());
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{fields}: {}", answer.body);
        let choice = &answer.body["choices"][0];
        let text = choice["text"].as_str().unwrap();
        assert!(text.starts_with('[') && text.chars().all(|c| "[],0123456789".contains(c)), "{text}");
        if choice["finish_reason"] == "stop" {
            serde_json::from_str::<Value>(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        }
    }
    let body =
        json!({"inputs": "a", "parameters": {"grammar": {"type": "gbnf", "value": "root ::= \"x\" other"}}});
    let answer = post(&server.url("/generate"), &body);
    assert_eq!(answer.status, 422, "{}", answer.body);
    assert!(
        answer.body["error"].as_str().unwrap().contains("the rule `other` is not defined"),
        "{}",
        answer.body
    );
}
