//! Tests structured output and tools with the real binary.

use millrace_integration_tests::{Server, long_generation, post, shards_of, signal, stream};
use serde_json::{Value, json};

const CHAT: &str = "/v1/chat/completions";

fn text(answer: &Value) -> &str {
    answer["choices"][0]["message"]["content"].as_str().unwrap_or_else(|| panic!("{answer}"))
}

fn person() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "likes"],
        "properties": {
            "name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 1, "maximum": 99},
            "likes": {"type": "array", "items": {"enum": ["red", "blue"]}, "maxItems": 3},
        },
    })
}

fn is_person(text: &str) {
    let value: Value = serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    assert!(value["name"].is_string() && (1..=99).contains(&value["age"].as_i64().unwrap()), "{text}");
    assert!(value["likes"].as_array().unwrap().iter().all(|like| like == "red" || like == "blue"), "{text}");
}

fn ask(more: Value) -> Value {
    let mut body = json!({"messages": [{"role": "user", "content": "Who is there?"}], "max_tokens": 200, "temperature": 0});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

fn tools(more: Value) -> Value {
    let tool = |name: &str, parameters: Value| json!({"type": "function", "function": {"name": name, "parameters": parameters}});
    let place = json!({"type": "object", "properties": {"place": {"$ref": "#/$defs/place"}}, "required": ["place"],
                       "additionalProperties": false, "$defs": {"place": {"enum": ["Rome", "Oslo"]}}});
    let mut body = ask(json!({"tools": [tool("greet", person()), tool("go", place)]}));
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn an_answer_matches_its_grammar() {
    let server = Server::start(&[]);
    for (grammar, prefix) in [
        (json!({"type": "regex", "value": "^[0-9]{3}-[0-9]{4}$"}), None),
        (json!({"type": "json", "value": person()}), Some(())),
        (json!({"type": "json", "value": person().to_string()}), Some(())),
        (json!({"type": "json_schema", "value": {"name": "person", "schema": person()}}), Some(())),
    ] {
        let parameters = json!({"grammar": grammar, "max_new_tokens": 200, "details": true});
        let body = json!({"inputs": "Once upon a time", "parameters": parameters});
        let answer = post(&server.url("/generate"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let text = answer.body["generated_text"].as_str().unwrap();
        assert_eq!(answer.body["details"]["finish_reason"], "eos_token", "{}", answer.body);
        match prefix {
            Some(()) => is_person(text),
            None => assert!(text.len() == 8 && text.as_bytes()[3] == b'-', "{text}"),
        }
        let events: Vec<Value> = stream(&server.url("/generate_stream"), &body).collect();
        assert_eq!(events.last().unwrap()["generated_text"].as_str(), Some(text));
    }
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "p", "strict": true, "schema": person()}});
    let answer =
        post(&server.url(CHAT), &ask(json!({"response_format": schema, "n": 3, "temperature": 1.5}))).body;
    for choice in answer["choices"].as_array().unwrap() {
        assert_eq!(choice["finish_reason"], "stop");
        is_person(choice["message"]["content"].as_str().unwrap());
    }
    let body = json!({"prompt": "A person: ", "max_tokens": 200, "response_format": schema});
    let answer = post(&server.url("/v1/completions"), &body).body;
    is_person(answer["choices"][0]["text"].as_str().unwrap());
    let any =
        post(&server.url(CHAT), &ask(json!({"response_format": {"type": "json_object"}, "max_tokens": 20})))
            .body;
    assert!(text(&any).starts_with('{'), "{any}");
    // A truncated answer is reported as incomplete.
    let cut = post(&server.url(CHAT), &ask(json!({"response_format": schema, "max_tokens": 3}))).body;
    assert_eq!(
        (&cut["choices"][0]["finish_reason"], cut["usage"]["completion_tokens"].as_u64()),
        (&json!("length"), Some(3))
    );
}

#[test]
fn tools_are_called_when_they_must_be() {
    let server = Server::start(&[]);
    for (choice, names) in [
        (json!("required"), vec!["greet", "go"]),
        (json!("go"), vec!["go"]),
        (json!({"type": "function", "function": {"name": "greet"}}), vec!["greet"]),
    ] {
        let answer = post(&server.url(CHAT), &tools(json!({"tool_choice": choice}))).body;
        let whole = &answer["choices"][0];
        assert_eq!(whole["finish_reason"], "tool_calls", "{answer}");
        let calls = whole["message"]["tool_calls"].as_array().unwrap();
        assert_eq!((calls.len(), &whole["message"]["content"]), (1, &Value::Null));
        let function = &calls[0]["function"];
        assert!(names.contains(&function["name"].as_str().unwrap()), "{function}");
        let arguments = function["arguments"].as_str().unwrap();
        match function["name"].as_str() {
            Some("greet") => is_person(arguments),
            _ => assert!(
                ["Rome", "Oslo"]
                    .contains(&serde_json::from_str::<Value>(arguments).unwrap()["place"].as_str().unwrap())
            ),
        }

        let (mut name, mut streamed, mut reason) = (String::new(), String::new(), Value::Null);
        for event in stream(&server.url(CHAT), &tools(json!({"tool_choice": choice, "stream": true}))) {
            let choice = &event["choices"][0];
            for part in choice["delta"]["tool_calls"].as_array().into_iter().flatten() {
                assert!(
                    streamed.is_empty() || part["function"].get("name").is_none(),
                    "the name comes first"
                );
                name += part["function"]["name"].as_str().unwrap_or_default();
                streamed += part["function"]["arguments"].as_str().unwrap();
            }
            reason = choice["finish_reason"].clone();
        }
        assert_eq!(
            (&json!(name), streamed.as_str(), reason),
            (&function["name"], arguments, json!("tool_calls"))
        );
    }
    assert_eq!(post(&server.url(CHAT), &tools(json!({"tool_choice": "none"}))).status, 200);
    // The template does not support tools, so they are part of the message, and the model chooses
    // freely.
    let free = post(&server.url(CHAT), &tools(json!({})));
    assert_eq!(free.status, 200, "{}", free.body);
    let written = post(&server.url("/chat_tokenize"), &tools(json!({}))).body["templated_text"].clone();
    assert!(written.as_str().unwrap().contains("\"name\":\"greet\""), "{written}");
}

/// Compares the items of a response and the blocks of a message, without their random ids.
#[test]
fn an_answer_has_its_format_or_calls_a_tool() {
    let server = Server::start(&[]);
    let format = json!({"type": "json_schema", "json_schema": {"name": "person", "schema": person()}});
    for choice in ["auto", "none", "required"] {
        let body = tools(json!({"response_format": format, "tool_choice": choice}));
        let answer = post(&server.url(CHAT), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        let call = &answer.body["choices"][0]["message"]["tool_calls"][0]["function"];
        match (choice, call["name"].as_str()) {
            ("auto" | "required", Some("greet")) => is_person(call["arguments"].as_str().unwrap()),
            ("auto" | "required", Some(name)) => assert_eq!(name, "go"),
            ("auto" | "none", None) => is_person(text(&answer.body)),
            _ => panic!("{choice}: {}", answer.body),
        }
    }
    let mut message = ask(json!({"output_config": {"format": {"type": "json_schema", "schema": person()}}}));
    let answer = post(&server.url("/v1/messages"), &message);
    is_person(answer.body["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{}", answer.body)));
    for wrong in [
        json!({"format": {"type": "text"}}),
        json!({"effort": 3}),
        json!({"format": {"type": "json_schema"}}),
    ] {
        message["output_config"] = wrong;
        assert_eq!(post(&server.url("/v1/messages"), &message).status, 400, "{message}");
    }
}

fn without_ids(list: &Value) -> Vec<Value> {
    let mut list = list.as_array().unwrap().clone();
    for item in &mut list {
        item.as_object_mut().unwrap().retain(|key, _| key != "id" && key != "call_id");
    }
    list
}

#[test]
fn responses_and_messages_call_tools_and_accept_results() {
    let server = Server::start(&[]);
    let input = json!([{"role": "user", "content": "Where to?"}]);
    let place = json!({"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}}, "required": ["place"],
                       "additionalProperties": false});
    let mut response = json!({
        "input": input, "temperature": 0, "max_output_tokens": 100, "tool_choice": "required",
        "tools": [{"type": "function", "name": "go", "parameters": place}],
    });
    let mut message = json!({
        "messages": input, "temperature": 0, "max_tokens": 100, "tool_choice": {"type": "tool", "name": "go"},
        "tools": [{"name": "go", "input_schema": place}],
    });

    let answer = post(&server.url("/v1/responses"), &response);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let call = &answer.body["output"][0];
    assert_eq!(
        (&call["type"], &call["name"], &call["status"]),
        (&json!("function_call"), &json!("go"), &json!("completed"))
    );
    let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
    assert!(["Rome", "Oslo"].contains(&arguments["place"].as_str().unwrap()), "{call}");
    response["stream"] = json!(true);
    let events: Vec<Value> = stream(&server.url("/v1/responses"), &response).collect();
    assert_eq!(
        without_ids(&events.last().unwrap()["response"]["output"]),
        without_ids(&answer.body["output"])
    );
    let streamed: String = events.iter().filter_map(|event| event["delta"].as_str()).collect();
    assert_eq!(call["arguments"], streamed.as_str());
    response["input"] = json!([input[0], call, {"type": "function_call_output", "call_id": call["call_id"], "output": "There."}]);
    (response["stream"], response["tool_choice"]) = (json!(false), json!("none"));
    let answer = post(&server.url("/v1/responses"), &response);
    assert_eq!(
        (answer.status, &answer.body["output"][0]["type"]),
        (200, &json!("message")),
        "{}",
        answer.body
    );

    let answer = post(&server.url("/v1/messages"), &message);
    let used = &answer.body["content"][0];
    assert_eq!(
        (&answer.body["stop_reason"], &used["type"], &used["input"]),
        (&json!("tool_use"), &json!("tool_use"), &arguments)
    );
    message["stream"] = json!(true);
    let events: Vec<Value> = stream(&server.url("/v1/messages"), &message).collect();
    let streamed: String =
        events.iter().filter_map(|event| event["delta"]["partial_json"].as_str()).collect();
    assert_eq!(serde_json::from_str::<Value>(&streamed).unwrap(), arguments);
    let result = json!({"type": "tool_result", "tool_use_id": used["id"], "content": "There."});
    message["messages"] =
        json!([input[0], {"role": "assistant", "content": [used]}, {"role": "user", "content": [result]}]);
    (message["stream"], message["tool_choice"]) = (json!(false), json!({"type": "none"}));
    let answer = post(&server.url("/v1/messages"), &message);
    assert_eq!((answer.status, &answer.body["content"][0]["type"]), (200, &json!("text")), "{}", answer.body);

    let format = json!({"format": {"type": "json_schema", "name": "person", "schema": person()}});
    let body = json!({"input": "Who is there?", "text": format, "temperature": 0, "max_output_tokens": 200});
    let answer = post(&server.url("/v1/responses"), &body).body;
    is_person(answer["output"][0]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}")));
}

#[test]
fn a_grammar_continues_after_its_shard_was_killed() {
    let server = Server::start(&[]);
    let format = json!({"type": "regex", "value": "([1-9][0-9]{2} ){80}end"});
    let body = json!({"prompt": "Once", "max_tokens": 600, "temperature": 0, "response_format": format, "stream": true});
    let ask = |happens: &dyn Fn()| {
        let mut events = stream(&server.url("/v1/completions"), &body);
        let mut text = String::new();
        for (at, event) in events.by_ref().enumerate() {
            text +=
                event["choices"][0]["text"].as_str().unwrap_or_else(|| panic!("{event}\n{}", server.log()));
            if at == 20 {
                happens();
            }
        }
        text
    };
    let undisturbed = ask(&|| {});
    assert!(undisturbed.len() == 80 * 4 + 3 && undisturbed.ends_with("end"), "{undisturbed}");
    let shards = shards_of(server.pid());
    assert_eq!(ask(&|| signal(shards[0], "KILL")), undisturbed);
    server.wait_for_restarts(1);
    // The same holds for concurrent requests.
    std::thread::scope(|scope| {
        let others: Vec<_> = (0..4).map(|_| scope.spawn(|| long_generation(&server, || {}))).collect();
        assert_eq!(ask(&|| {}), undisturbed);
        let stories: Vec<String> = others.into_iter().map(|other| other.join().unwrap()).collect();
        assert!(stories.windows(2).all(|pair| pair[0] == pair[1]));
    });
}

#[test]
fn hostile_grammars_affect_only_their_sender() {
    let server = Server::start(&[]);
    let undisturbed = long_generation(&server, || {});
    let search = |i: usize| format!(".*a.{{{}}}", i + 1);
    let grammars = [
        json!({"type": "regex", "value": "("}),
        json!({"type": "regex", "value": "(((a{99}){99}){99})"}),
        json!({"type": "regex", "value": "(".repeat(100_000)}),
        json!({"type": "json", "value": {"allOf": (0..30).map(|i| json!({"type": "string", "pattern": search(i)})).collect::<Vec<_>>()}}),
        json!({"type": "json", "value": {"type": "array", "minItems": 1e300}}),
        json!({"type": "json", "value": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}}),
        json!({"type": "json", "value": {"$ref": "file:///etc/passwd"}}),
        json!({"type": "json", "value": "{".repeat(1000)}),
        json!({"type": "lark", "value": "start: start"}),
        json!({"type": "lark", "value": format!("start: A\nA: {}", (0..30).map(|i| format!("/{}/", search(i))).collect::<Vec<_>>().join(" & "))}),
        json!({"type": "nonsense"}),
        json!([[[[[]]]]]),
    ];
    let attacked = long_generation(&server, || {
        for grammar in &grammars {
            let body = json!({"inputs": "a", "parameters": {"grammar": grammar, "max_new_tokens": 5}});
            let answer = post(&server.url("/generate"), &body);
            assert_eq!(
                (answer.status, &answer.body["error_type"]),
                (422, &json!("validation")),
                "{}",
                answer.body
            );
            let answer = post(&server.url(CHAT), &ask(json!({"response_format": grammar})));
            assert_eq!(
                (answer.status, &answer.body["error"]["param"]),
                (400, &json!("response_format")),
                "{}",
                answer.body
            );
        }
    });
    assert_eq!(attacked, undisturbed);
}

#[test]
fn grammars_can_be_switched_off_and_answers_run_on() {
    let server = Server::start(&["--disable-grammar-support", "--tool-call-parser", "hermes"]);
    let body = json!({"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a"}}});
    let answer = post(&server.url("/generate"), &body);
    assert_eq!(
        (answer.status, &answer.body["error"]),
        (422, &json!("Input validation error: grammar is not supported"))
    );
    let answer = post(&server.url(CHAT), &ask(json!({"ignore_eos": true, "max_tokens": 150}))).body;
    assert_eq!(
        (&answer["choices"][0]["finish_reason"], &answer["usage"]["completion_tokens"]),
        (&json!("length"), &json!(150))
    );
    let free = post(&server.url(CHAT), &ask(json!({}))).body["usage"]["completion_tokens"].as_u64().unwrap();
    let longer =
        post(&server.url(CHAT), &ask(json!({"min_tokens": free + 5}))).body["usage"]["completion_tokens"]
            .as_u64()
            .unwrap();
    assert!(longer > free + 5, "{free} {longer}");
}
