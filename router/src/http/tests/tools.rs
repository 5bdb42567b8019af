//! Tools in `/v1/chat/completions`.

use axum::http::StatusCode;
use millrace_answers::reasoning::{ReasoningFormat, ReasoningParser};
use millrace_answers::tools::ToolFormat;
use serde_json::{Value, json};

use super::{HttpConfig, RequestLimits, Script, Server};
use crate::test_support::{self, EOS};

const PATH: &str = "/v1/chat/completions";

/// A template in the style of Hermes.
const TEMPLATE: &str = "{% if tools %}Tools: {{ tools | tojson }}; {% endif %}{% for m in messages %}{{ m.role }}{% if m.name %}({{ m.name }}){% endif %}: \
{{ m.content or '' }}{% for call in m.tool_calls or [] %}<tool_call>{{ call.function | tojson }}</tool_call>{% endfor %}; \
{% endfor %}{% if thinking is defined %}thinking {{ thinking }}; {% endif %}{% if documents %}{{ documents[0].text }}; {% endif %}\
{% if add_generation_prompt %}assistant: {% endif %}";

pub(super) fn server(says: &str, limits: RequestLimits) -> Server {
    let assets = test_support::assets_with_template(TEMPLATE);
    Server::serving(&assets, Script::Say(says.into()), limits, HttpConfig::default())
}

fn request(more: Value) -> Value {
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "parameters": {"type": "object"}}});
    let mut request =
        json!({"messages": [{"role": "user", "content": "hi"}], "tools": [tool("get"), tool("set")]});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

pub(super) async fn prompt(server: &mut Server) -> String {
    let request = server.engine.requests.recv().await.unwrap();
    request.prompt.iter().map(|&id| char::from_u32(id).unwrap()).collect()
}

pub(super) const ANSWER: &str = "Wait. <tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 1}}\n</tool_call>\n\
<tool_call>{\"name\": \"set\", \"arguments\": {}}</tool_call>";

#[tokio::test]
async fn calls_are_separated_from_text() {
    let server = server(ANSWER, RequestLimits::default());
    let body = server.post(PATH, request(json!({}))).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["content"], "Wait.");
    let calls = choice["message"]["tool_calls"].as_array().unwrap();
    assert_eq!(calls.len(), 2);
    assert_eq!((&calls[0]["type"], calls[0].get("index")), (&json!("function"), None));
    assert_eq!(calls[0]["function"], json!({"name": "get", "arguments": "{\"n\": 1}"}));
    assert_eq!(calls[1]["function"], json!({"name": "set", "arguments": "{}"}));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    assert!(calls[0]["id"].as_str().unwrap().starts_with("call_"));
}

#[tokio::test]
async fn a_stream_has_the_same_calls_in_parts() {
    let server = server(ANSWER, RequestLimits::default());
    let chunks = server.post(PATH, request(json!({"stream": true}))).await.chunks();
    let (mut content, mut calls) = (String::new(), Vec::<Value>::new());
    for chunk in &chunks {
        let delta = &chunk["choices"][0]["delta"];
        content += delta["content"].as_str().unwrap_or_default();
        for part in delta["tool_calls"].as_array().into_iter().flatten() {
            let index = part["index"].as_u64().unwrap() as usize;
            if index == calls.len() {
                assert!(
                    part["id"].is_string()
                        && part["type"] == "function"
                        && part["function"]["name"].is_string()
                );
                calls.push(part["function"].clone());
            } else {
                assert!(part.get("id").is_none() && part["function"].get("name").is_none(), "{part}");
                let so_far = calls[index]["arguments"].as_str().unwrap().to_owned();
                calls[index]["arguments"] = (so_far + part["function"]["arguments"].as_str().unwrap()).into();
            }
        }
    }
    assert_eq!(content, "Wait.");
    let expected =
        [json!({"name": "get", "arguments": "{\"n\": 1}"}), json!({"name": "set", "arguments": "{}"})];
    assert_eq!(calls, expected);
    assert_eq!(chunks.last().unwrap()["choices"][0]["finish_reason"], "tool_calls");
}

/// Answers that consist of messages with headers: each has the reasoning `Hm.` if the format has
/// any, and calls `get`.
const MESSAGES: [(ToolFormat, Option<ReasoningFormat>, &str); 4] = [
    (
        ToolFormat::Harmony,
        Some(ReasoningFormat::Harmony),
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>commentary to=functions.get <|constrain|>json<|message|>\
         {\"n\": 1}<|call|>",
    ),
    (
        ToolFormat::KimiK3,
        Some(ReasoningFormat::KimiK3),
        "<|open|>think<|sep|>Hm.<|close|>think<|sep|><|open|>tools<|sep|><|open|>call tool=\"get\" index=\"1\"<|sep|>\
         <|open|>argument key=\"n\" type=\"number\"<|sep|>1<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
    ),
    (
        ToolFormat::Muse,
        Some(ReasoningFormat::Muse),
        " to=self<|message|>Hm.<|eom|><|start|>assistant to=get<|message|><atem:function_calls>\n<atem:invoke name=\"get\">\n\
         <atem:parameter name=\"n\">1</atem:parameter>\n</atem:invoke>\n</atem:function_calls><|eom|>",
    ),
    (ToolFormat::Functionary, None, "get\n{\"n\": 1}"),
];

#[tokio::test]
async fn answers_in_messages_have_the_same_parts_on_all_routes() {
    for (format, reasoning_format, says) in MESSAGES {
        let reasoning = if reasoning_format.is_some() { "Hm." } else { "" };
        let limits = RequestLimits {
            tool_format: Some(format),
            reasoning: reasoning_format.map_or(ReasoningParser::Auto, ReasoningParser::Format),
            ..RequestLimits::default()
        };
        let server = server(says, limits);
        let body = server.post(PATH, request(json!({}))).await.json();
        let choice = &body["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{body}");
        assert_eq!(choice["message"]["reasoning_content"].as_str().unwrap_or_default(), reasoning, "{body}");
        assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), "", "{body}");
        let function = json!({"name": "get", "arguments": "{\"n\": 1}"});
        assert_eq!(choice["message"]["tool_calls"][0]["function"], function, "{body}");

        let chunks = server.post(PATH, request(json!({"stream": true}))).await.chunks();
        let deltas: Vec<&Value> = chunks.iter().map(|chunk| &chunk["choices"][0]["delta"]).collect();
        let joined = |part: fn(&Value) -> &Value| -> String {
            deltas.iter().filter_map(|delta| part(delta).as_str()).collect()
        };
        assert_eq!(joined(|delta| &delta["reasoning_content"]), reasoning, "{format}");
        assert_eq!(joined(|delta| &delta["content"]), "", "{format}");
        assert_eq!(joined(|delta| &delta["tool_calls"][0]["function"]["name"]), "get", "{format}");
        assert_eq!(
            joined(|delta| &delta["tool_calls"][0]["function"]["arguments"]),
            "{\"n\": 1}",
            "{format}"
        );

        let tool = json!([{"name": "get", "input_schema": {"type": "object"}}]);
        let message =
            server.post("/v1/messages", request(json!({"tools": tool, "max_tokens": 999}))).await.json();
        let content = message["content"].as_array().unwrap();
        let used = content.iter().find(|block| block["type"] == "tool_use").expect("a call");
        assert_eq!((&used["name"], &used["input"]), (&json!("get"), &json!({"n": 1})), "{message}");
        assert_eq!(
            content.iter().any(|block| block["thinking"] == "Hm."),
            !reasoning.is_empty(),
            "{message}"
        );
        assert_eq!(message["stop_reason"], "tool_use", "{message}");

        let tool = json!([{"type": "function", "name": "get", "parameters": {"type": "object"}}]);
        let response = server.post("/v1/responses", json!({"input": "hi", "tools": tool})).await.json();
        let output = response["output"].as_array().unwrap();
        let called = output.iter().find(|item| item["type"] == "function_call").expect("a call");
        assert_eq!(
            (&called["name"], &called["arguments"]),
            (&json!("get"), &json!("{\"n\": 1}")),
            "{response}"
        );
    }
}

#[tokio::test]
async fn a_call_that_is_cut_off_is_returned_incomplete() {
    let mut server = server(ANSWER, RequestLimits::default());
    let body = server.post(PATH, request(json!({"max_tokens": 52}))).await.json();
    let choice = &body["choices"][0];
    assert_eq!(choice["finish_reason"], "length");
    let arguments = choice["message"]["tool_calls"][0]["function"]["arguments"].as_str().unwrap();
    assert!("{\"n\": 1}".starts_with(arguments) && arguments.len() < 8, "{body}");
    // There is one request, while TGI sends a second one if the model calls no tool.
    assert!(server.engine.requests.recv().await.is_some() && server.engine.requests.try_recv().is_err());
}

#[tokio::test]
async fn the_template_gets_tools_calls_and_results() {
    let mut server = server("ok", RequestLimits::default());
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{\"n\": 1}"}});
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": null, "tool_calls": [call]},
                          {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "42"}]}]);
    let more = json!({
        "messages": messages, "documents": [{"text": "a document"}],
        "chat_template_kwargs": {"thinking": false, "nobody_reads": [1], "messages": "no"},
    });
    let reply = server.post(PATH, request(more.clone())).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{}", reply.body);
    let mut more = more;
    more["chat_template_kwargs"].as_object_mut().unwrap().remove("messages");
    let reply = server.post(PATH, request(more)).await;
    assert_eq!(
        (reply.status, &reply.json()["choices"][0]["finish_reason"]),
        (StatusCode::OK, &json!("stop"))
    );
    let text = prompt(&mut server).await;
    assert!(text.starts_with("Tools: [{\"type\": \"function\", \"function\": {\"name\": \"get\""), "{text}");
    let call = "assistant: <tool_call>{\"name\": \"get\", \"arguments\": {\"n\": 1}}</tool_call>; tool: 42; ";
    assert!(text.ends_with(&format!("{call}thinking False; a document; assistant: ")), "{text}");

    let more = json!({"chat_template_kwargs": {"thinking": [1]}});
    let error = server.post(PATH, request(more)).await.json()["error"].clone();
    assert_eq!(error["param"], "chat_template_kwargs.thinking");
    server.post(PATH, request(json!({"add_generation_prompt": false}))).await;
    assert!(prompt(&mut server).await.ends_with("user: hi; "));
}

#[tokio::test]
async fn the_tool_choice_is_applied() {
    let mut server = server(ANSWER, RequestLimits::default());
    let body = server.post(PATH, request(json!({"tool_choice": "none"}))).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], ANSWER);
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    let mask = server.engine.requests.recv().await.unwrap().mask;
    assert!(mask.is_none());

    let only = |request: crate::engine::Request| {
        let mask = request.mask.expect("it is constrained");
        (0..=EOS)
            .filter(|id| mask.get(*id as usize / 32).is_some_and(|w| w >> (id % 32) & 1 == 1))
            .collect::<Vec<_>>()
    };
    let set = json!({"type": "function", "function": {"name": "set"}});
    let allowed = json!({"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [set]}});
    for choice in [json!("required"), json!("set"), set, allowed] {
        let body = server
            .post(PATH, request(json!({"tool_choice": choice, "parallel_tool_calls": false})))
            .await
            .json();
        let calls = body["choices"][0]["message"]["tool_calls"].as_array().map_or(0, Vec::len);
        assert_eq!(calls, 1, "{body}");
        let first = only(server.engine.requests.recv().await.unwrap());
        assert_eq!(first, [u32::from(b'<')], "{choice}");
    }
    server.post(PATH, request(json!({}))).await;
    let first = only(server.engine.requests.recv().await.unwrap());
    assert!(first.len() > 90 && first.contains(&EOS), "any text: {first:?}");
}

/// A choice that names a function requires one call, whatever `parallel_tool_calls` is.
#[tokio::test]
async fn a_named_function_is_called_once() {
    let call = "<tool_call>{\"name\": \"get\", \"arguments\": {}}</tool_call>";
    let mut server = server(&call.repeat(3), RequestLimits::default());
    let chat = |choice: Value, parallel: Value| {
        (PATH, request(json!({"tool_choice": choice, "parallel_tool_calls": parallel})))
    };
    let function = json!({"type": "function", "name": "get", "parameters": {"type": "object"}});
    let responses = json!({"input": "hi", "tools": [function], "tool_choice": {"type": "function", "name": "get"},
                           "parallel_tool_calls": true});
    let tool = json!({"name": "get", "input_schema": {"type": "object"}});
    let messages = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 300, "tools": [tool],
                          "tool_choice": {"type": "tool", "name": "get"}});
    let named = json!({"type": "function", "function": {"name": "get"}});
    for ((path, body), most) in [
        (chat(named.clone(), json!(null)), 1),
        (chat(named, json!(true)), 1),
        (chat(json!("get"), json!(true)), 1),
        (chat(json!("required"), json!(true)), 3),
        (("/v1/responses", responses), 1),
        (("/v1/messages", messages), 1),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        let answer = reply.json();
        let calls = [&answer["choices"][0]["message"]["tool_calls"], &answer["output"], &answer["content"]]
            .map(|calls| calls.as_array().map_or(0, Vec::len));
        assert_eq!(calls.iter().sum::<usize>(), most, "{path} {body}: {answer}");
        assert!(server.engine.requests.recv().await.unwrap().mask.is_some());
    }
}

/// Llama 3 calls tools with plain JSON.
#[tokio::test]
async fn json_that_is_not_a_call_is_content() {
    for (says, calls) in [
        ("{\"name\": \"Ada\", \"age\": 36}", 0),
        ("{\"name\": \"get\", \"age\": 36}", 0),
        ("{\"answer\": {\"name\": \"get\", \"parameters\": {}}}", 0),
        ("{\"name\": \"get\", \"parameters\": {\"n\": 1}}", 1),
    ] {
        let limits = RequestLimits { tool_format: Some(ToolFormat::Llama3Json), ..RequestLimits::default() };
        let mut server = server(says, limits);
        for stream in [false, true] {
            let reply = server.post(PATH, request(json!({"stream": stream}))).await;
            let messages: Vec<Value> = match stream {
                false => vec![reply.json()["choices"][0]["message"].clone()],
                true => reply.chunks().iter().map(|chunk| chunk["choices"][0]["delta"].clone()).collect(),
            };
            let content: String = messages.iter().filter_map(|message| message["content"].as_str()).collect();
            assert_eq!(content, if calls == 0 { says } else { "" });
            let begun = messages.iter().flat_map(|m| m["tool_calls"].as_array().cloned().unwrap_or_default());
            assert_eq!(begun.filter(|call| call["id"].is_string()).count(), calls);
            let mask = server.engine.requests.recv().await.unwrap().mask.expect("calls are bound");
            let allowed = |byte: u8| mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 1;
            assert!(allowed(b'{') && allowed(b'a') && allowed(b'['), "an answer may begin with anything");
        }
    }
}

#[tokio::test]
async fn custom_tools_become_functions_with_one_text() {
    let call = |input: &str| {
        format!("<tool_call>{}</tool_call>", json!({"name": "patch", "arguments": {"input": input}}))
    };
    let format = json!({"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: LINE"}});
    let custom =
        json!({"type": "custom", "custom": {"name": "patch", "description": "edits", "format": format}});
    let mut server = server(&format!("Well. {}{}", call("a\n\"ü\""), call("b")), RequestLimits::default());
    let asked = |more: Value| {
        let mut asked = request(more);
        asked["tools"].as_array_mut().unwrap().push(custom.clone());
        asked
    };
    let reply = server.post(PATH, asked(json!({}))).await;
    assert_eq!(reply.header("x-millrace-ignored"), "tools[2].custom.format");
    let message = reply.json()["choices"][0]["message"].clone();
    let calls = message["tool_calls"].as_array().unwrap();
    assert_eq!((&calls[0]["type"], calls[0].get("function")), (&json!("custom"), None));
    assert_eq!(calls[0]["custom"], json!({"name": "patch", "input": "a\n\"ü\""}));
    assert_eq!(calls[1]["custom"], json!({"name": "patch", "input": "b"}));
    let text = prompt(&mut server).await;
    assert!(
        text.contains("\"description\": \"edits\"") && text.contains("lark grammar describes:\\nstart: LINE"),
        "{text}"
    );

    let chunks = server.post(PATH, asked(json!({"stream": true}))).await.chunks();
    let mut inputs = vec![String::new(); 2];
    for part in chunks
        .iter()
        .flat_map(|c| c["choices"][0]["delta"]["tool_calls"].as_array().cloned().unwrap_or_default())
    {
        assert!(part.get("function").is_none(), "{part}");
        inputs[part["index"].as_u64().unwrap() as usize] += part["custom"]["input"].as_str().unwrap();
    }
    assert_eq!(inputs, ["a\n\"ü\"", "b"]);
    prompt(&mut server).await;

    let choice = json!({"type": "custom", "custom": {"name": "patch"}});
    let body = server.post(PATH, asked(json!({"tool_choice": choice}))).await.json();
    assert_eq!(body["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    prompt(&mut server).await;
    let history = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "tool_calls": calls},
                         {"role": "tool", "tool_call_id": calls[0]["id"], "content": "done"}]);
    server.post(PATH, asked(json!({"messages": history}))).await;
    let text = prompt(&mut server).await;
    let written =
        "<tool_call>{\"name\": \"patch\", \"arguments\": {\"input\": \"b\"}}</tool_call>; tool: done; ";
    assert!(text.contains(written), "{text}");
}

/// TGI refuses the combination. In OpenAI's API an answer has the format unless it is a call.
#[tokio::test]
async fn tools_and_a_response_format_can_be_combined() {
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]});
    let chat = |choice: &str| {
        let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
        request(json!({"response_format": format, "tool_choice": choice}))
    };
    let tool = json!({"type": "function", "name": "get", "parameters": {"type": "object"}});
    let format = json!({"type": "json_schema", "name": "n", "schema": schema});
    let responses = json!({"input": "hi", "tools": [tool], "text": {"format": format}});
    let tool = json!({"name": "get", "input_schema": {"type": "object"}});
    let config = json!({"format": {"type": "json_schema", "schema": schema}});
    let messages = json!({"messages": [{"role": "user", "content": "hi"}], "max_tokens": 90, "tools": [tool],
                          "output_config": config});
    let mut server = server("{\"n\": 1}", RequestLimits::default());
    for (path, body, may_begin) in [
        (PATH, chat("auto"), [true, true]),
        (PATH, chat("required"), [false, true]),
        (PATH, chat("none"), [true, false]),
        ("/v1/responses", responses, [true, true]),
        ("/v1/messages", messages, [true, true]),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status, StatusCode::OK, "{}", reply.body);
        let answer = reply.json();
        let texts = [
            &answer["choices"][0]["message"]["content"],
            &answer["output"][0]["content"][0]["text"],
            &answer["content"][0]["text"],
        ];
        assert!(texts.contains(&&json!("{\"n\": 1}")), "{answer}");
        let mask = server.engine.requests.recv().await.unwrap().mask.expect("it is constrained");
        let allowed = |byte: u8| mask[usize::from(byte) / 32] >> (byte % 32) & 1 == 1;
        assert_eq!([allowed(b'{'), allowed(b'<')], may_begin, "{path} {body}");
        assert!(!allowed(b'a'), "{path}");
    }
}

#[tokio::test]
async fn without_grammars_calls_are_still_read_but_cannot_be_required() {
    let mut server = server(ANSWER, RequestLimits { grammar_support: false, ..RequestLimits::default() });
    let body = server.post(PATH, request(json!({}))).await.json();
    assert_eq!(body["choices"][0]["finish_reason"], "tool_calls");
    assert!(server.engine.requests.recv().await.unwrap().mask.is_none());
    let error = server.post(PATH, request(json!({"tool_choice": "required"}))).await.json()["error"].clone();
    assert_eq!(
        (&error["param"], &error["message"]),
        (&json!("tools"), &json!("Input validation error: grammar is not supported"))
    );
    let body = json!({"inputs": "a", "parameters": {"grammar": {"type": "regex", "value": "a"}}});
    let reply = server.post("/generate", body).await;
    assert_eq!(reply.status, StatusCode::UNPROCESSABLE_ENTITY);
    assert_eq!(reply.json()["error"], "Input validation error: grammar is not supported");
}

#[tokio::test]
async fn token_ids_are_returned_on_request() {
    let server = server("hi", RequestLimits::default());
    let asked = json!({"return_token_ids": true, "tools": []});
    let body = server.post(PATH, request(asked.clone())).await.json();
    assert_eq!(body["choices"][0]["token_ids"], json!([104, 105, EOS]));
    assert_eq!(
        body["prompt_token_ids"].as_array().unwrap().len(),
        body["usage"]["prompt_tokens"].as_u64().unwrap() as usize
    );
    let mut streamed = request(asked);
    streamed["stream"] = json!(true);
    let chunks = server.post(PATH, streamed).await.chunks();
    let ids: Vec<_> =
        chunks.iter().flat_map(|c| c["choices"][0]["token_ids"].as_array().unwrap().clone()).collect();
    assert_eq!(ids, [json!(104), json!(105), json!(EOS)]);
    assert!(chunks[0]["prompt_token_ids"].is_array() && chunks[1].get("prompt_token_ids").is_none());

    let mut asked = json!({"prompt": "ab", "return_token_ids": true, "n": 2});
    let body = server.post("/v1/completions", asked.clone()).await.json();
    for choice in body["choices"].as_array().unwrap() {
        assert_eq!(choice["prompt_token_ids"], json!([256, 97, 98]));
        assert_eq!(choice["token_ids"], json!([104, 105, EOS]));
    }
    asked["stream"] = json!(true);
    let chunks = server.post("/v1/completions", asked).await.chunks();
    let first = chunks.iter().filter(|chunk| chunk["choices"][0].get("prompt_token_ids").is_some()).count();
    assert_eq!(first, 2);
    assert!(chunks.iter().all(|chunk| chunk["choices"][0]["token_ids"].as_array().unwrap().len() == 1));
}

#[tokio::test]
async fn the_end_token_can_be_ignored_or_delayed() {
    let mut server = server("a b a b", RequestLimits::default());
    server.post(PATH, request(json!({"tools": [], "ignore_eos": true, "max_tokens": 3}))).await;
    assert!(server.engine.requests.recv().await.unwrap().stop_tokens.is_empty());
    let more = json!({"tools": [], "min_tokens": 3, "stop": "b"});
    let body = server.post(PATH, request(more)).await.json();
    assert_eq!(body["choices"][0]["message"]["content"], "a b a ");
    let asked = server.engine.requests.recv().await.unwrap();
    assert_eq!((asked.sampling.min_new_tokens, asked.sampling.end_tokens), (3, vec![EOS]));
}

#[tokio::test]
async fn tools_are_written_into_the_messages_if_the_template_does_not_support_them() {
    let mut server = Server::saying("{\"name\": \"get\", \"arguments\": {\"n\": 1}}");
    let body = server.post(PATH, request(json!({}))).await.json();
    assert_eq!(body["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "get", "{body}");
    let text = prompt(&mut server).await;
    let shown = "user: hi\n---\n[{\"type\":\"function\",\"function\":{\"name\":\"get\",";
    assert!(text.trim_start_matches('Ā').starts_with(shown), "{text}");
    assert!(
        text.ends_with("like this: {\"name\": \"NAME\", \"arguments\": {\"KEY\":\"VALUE\"}}\nassistant: "),
        "{text}"
    );

    server.post(PATH, request(json!({"tool_prompt": "Call one!"}))).await;
    let text = prompt(&mut server).await;
    assert!(text.ends_with("}]\nCall one!\nassistant: "), "{text}");
    server.post(PATH, request(json!({"tool_choice": "none"}))).await;
    assert_eq!(prompt(&mut server).await, "Āuser: hi\nassistant: ");

    // Earlier calls are written in the format of the model.
    let call =
        json!({"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{\"n\": 1}"}});
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well.", "tool_calls": [call]},
                          {"role": "tool", "tool_call_id": "c1", "content": "42"}]);
    server.post(PATH, json!({"messages": messages})).await;
    let text = prompt(&mut server).await;
    let expected =
        "Āuser: hi\nassistant: Well.\n{\"name\": \"get\", \"arguments\": {\"n\":1}}\ntool: 42\nassistant: ";
    assert_eq!(text, expected);
    let written = server.post("/chat_tokenize", request(json!({}))).await.json()["templated_text"].clone();
    assert!(written.as_str().unwrap().contains("---"), "{written}");
}

#[tokio::test]
async fn an_assistant_message_with_calls_is_not_continued() {
    let mut server = server("ok", RequestLimits::default());
    let call = json!({"id": "c1", "type": "function", "function": {"name": "get", "arguments": "{}"}});
    let messages = json!([{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Well.", "tool_calls": [call]}]);
    server.post(PATH, request(json!({"messages": messages}))).await;
    let text = prompt(&mut server).await;
    assert!(text.ends_with("</tool_call>; assistant: "), "{text}");
}
