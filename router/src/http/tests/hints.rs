//! Fields that cannot change the answer, defaults that clients send, and roles.

use serde_json::{Value, json};

use super::{HttpConfig, Reply, RequestLimits, Script, Server};
use crate::test_support::assets_with_template;

const CHAT: &str = "/v1/chat/completions";

fn chat(more: Value) -> Value {
    let mut request = json!({"messages": [{"role": "user", "content": "a"}], "max_tokens": 5});
    request.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    request
}

/// A server with this template.
fn with_template(template: &str) -> Server {
    let assets = assets_with_template(template);
    Server::serving(&assets, Script::Say("x".into()), RequestLimits::default(), HttpConfig::default())
}

fn ignored(reply: &Reply) -> &str {
    assert_eq!(reply.status.as_u16(), 200, "{}", reply.body);
    reply.headers.get("x-millrace-ignored").map_or("", |names| names.to_str().unwrap())
}

/// Returns the prompt of the next request that the engine gets.
async fn prompt(server: &mut Server) -> String {
    let prompt = server.engine.requests.recv().await.unwrap().prompt;
    prompt.iter().filter_map(|&id| char::from_u32(id)).filter(char::is_ascii).collect()
}

#[tokio::test]
async fn hints_are_accepted_and_reported() {
    let server = Server::saying("x");
    let hints = json!({
        "reasoning_effort": "high", "effort": "low", "verbosity": "low", "truncation": "auto", "service_tier": "flex",
        "safety_identifier": "u", "prompt_cache_key": "k", "user": "u", "store": true, "metadata": {"a": "b"},
    });
    let names = "effort, metadata, prompt_cache_key, reasoning_effort, safety_identifier, service_tier, store, truncation, \
                 user, verbosity";
    for stream in [false, true] {
        let mut body = chat(hints.clone());
        body["stream"] = json!(stream);
        assert_eq!(ignored(&server.post(CHAT, body).await), names, "{stream}");
    }
    let more = json!({"prompt": "a", "service_tier": "flex", "user": "u"});
    assert_eq!(ignored(&server.post("/v1/completions", more).await), "service_tier, user");
    let more = json!({"input": "a", "user": "u"});
    assert_eq!(ignored(&server.post("/v1/embeddings", more).await), "user");
    assert_eq!(ignored(&server.post(CHAT, chat(json!({}))).await), "");
}

#[tokio::test]
async fn defaults_that_clients_send_are_accepted() {
    let mut server = Server::saying("x");
    // Defaults of the clients of vLLM and llama.cpp.
    let defaults = json!({
        "add_special_tokens": false, "add_generation_prompt": true, "continue_final_message": false, "n_predict": -1,
        "priority": 0, "top_k": -1, "min_p": 0.0, "repetition_penalty": 1.0, "length_penalty": 1.0, "stop_token_ids": [],
        "include_stop_str_in_output": false, "ignore_eos": false, "min_tokens": 0, "skip_special_tokens": true,
        "use_beam_search": false, "bad_words": [], "echo": false, "truncate_prompt_tokens": null, "repeat_penalty": 1.0,
        "mirostat": 0, "typical_p": 1.0, "dry_multiplier": 0.0, "xtc_probability": 0.0, "dynatemp_range": 0.0,
        "n_probs": 0, "grammar": "", "structured_outputs": null, "guided_json": null, "store": false, "metadata": {},
        "service_tier": "auto", "return_tokens_as_token_ids": false,
    });
    let reply = server.post(CHAT, chat(defaults)).await;
    assert_eq!(ignored(&reply), "", "{}", reply.body);
    assert_eq!(server.engine.requests.recv().await.unwrap().sampling.top_k, 0);

    for (path, mut body) in super::rows::posts() {
        let tgi = ["/", "/generate", "/generate_stream", "/invocations"].contains(&path);
        let openai = ["/v1/completions", "/v1/messages"].contains(&path);
        if !tgi && !openai {
            continue;
        }
        let fields = if tgi { &mut body["parameters"] } else { &mut body };
        fields["top_k"] = json!(-1);
        if path != "/v1/messages" {
            fields["priority"] = json!(0);
        }
        let reply = server.post(path, body.clone()).await;
        assert_eq!(reply.status.as_u16(), 200, "{path}: {}", reply.body);
        assert_eq!(server.engine.requests.recv().await.unwrap().sampling.top_k, 0, "{path}");
        if path != "/v1/messages" {
            let fields = if tgi { &mut body["parameters"] } else { &mut body };
            fields["priority"] = json!(7);
            let reply = server.post(path, body).await;
            assert!(
                reply.status.is_client_error()
                    && reply.body.contains("the only number that is accepted is 0"),
                "{}",
                reply.body
            );
        }
    }
}

#[tokio::test]
async fn templates_get_the_reasoning_effort() {
    let template =
        "{% for m in messages %}{{ m.content }}{% endfor %} think={{ reasoning_effort | default('medium') }}";
    let mut server = with_template(template);
    for (fields, expected, names) in [
        (json!({}), "a think=medium", ""),
        (json!({"reasoning_effort": "high"}), "a think=high", ""),
        (json!({"effort": "low"}), "a think=low", ""),
        (json!({"reasoning_effort": "high", "effort": "low"}), "a think=high", ""),
        (
            json!({"reasoning_effort": "high", "chat_template_kwargs": {"reasoning_effort": "none"}}),
            "a think=none",
            "",
        ),
    ] {
        let reply = server.post(CHAT, chat(fields.clone())).await;
        assert_eq!(ignored(&reply), names, "{fields}");
        assert_eq!(prompt(&mut server).await, expected, "{fields}");
    }
    let reply = server.post(CHAT, chat(json!({"reasoning_effort": 5}))).await;
    assert_eq!(reply.status.as_u16(), 400);
}

#[tokio::test]
async fn a_developer_message_becomes_a_system_message_if_the_template_has_no_developer_role() {
    let messages = json!([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "a"}]);
    let body = json!({"messages": messages});
    let known = "{% for m in messages %}{% if m.role == 'system' %}[S {{ m.content }}]{% elif m.role == 'user' %}\
                 {{ m.content }}{% endif %}{% endfor %}";
    let mut server = with_template(known);
    assert_eq!(server.post(CHAT, body.clone()).await.status, 200);
    assert_eq!(prompt(&mut server).await, "[S Be brief.]a");
    let text = server.post("/chat_tokenize", body.clone()).await.json()["templated_text"].clone();
    assert_eq!(text, "[S Be brief.]a");
    // A template that knows the role gets it.
    let own = known.replace("m.role == 'system'", "m.role == 'developer'").replace("[S", "[D");
    let mut server = with_template(&own);
    assert_eq!(server.post(CHAT, body).await.status, 200);
    assert_eq!(prompt(&mut server).await, "[D Be brief.]a");
}

#[tokio::test]
async fn a_role_that_the_template_leaves_out_is_refused() {
    let template = "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}{% endfor %}";
    let server = with_template(template);
    for role in ["system", "developer", "tool"] {
        let body = json!({"messages": [{"role": role, "content": "b"}, {"role": "user", "content": "a"}]});
        let named = if role == "developer" { "system" } else { role };
        let text = format!("leaves out messages with the role `{named}`");
        let reply = server.post(CHAT, body.clone()).await;
        assert_eq!((reply.status.as_u16(), &reply.json()["error"]["code"]), (400, &json!("template_error")));
        assert!(reply.body.contains(&text), "{}", reply.body);
        let reply = server.post("/chat_tokenize", body).await;
        assert_eq!(reply.status.as_u16(), 422);
        assert!(reply.body.contains(&text), "{}", reply.body);
    }
}

#[tokio::test]
async fn null_content_becomes_empty_and_absent_content_stays_absent() {
    let template = "{% for m in messages %}{{ m.role }}:{% if m.content is defined %}({{ m.content }}){% endif %}{% endfor %}";
    let mut server = with_template(template);
    let body = json!({"messages": [{"role": "user", "content": null}, {"role": "assistant"}, {"role": "user", "content": "a"}]});
    let reply = server.post(CHAT, body).await;
    assert_eq!(reply.status.as_u16(), 200, "{}", reply.body);
    assert_eq!(prompt(&mut server).await, "user:()assistant:user:(a)");
}

#[tokio::test]
async fn errors_about_fields_of_the_wrong_type_are_readable() {
    let server = Server::saying("x");
    for (path, body, text) in [
        (CHAT, chat(json!({"stop": 5})), "`stop` must be a text or a list of texts"),
        (CHAT, chat(json!({"seed": "a"})), "`seed` must be an integer"),
        (CHAT, chat(json!({"logit_bias": "a"})), "`logit_bias` must map token ids to numbers"),
        (CHAT, chat(json!({"priority": {}})), "`priority` must be `high`, `normal` or `low`"),
        ("/v1/completions", json!({"prompt": 5}), "a prompt must be a text, a list of texts"),
        ("/v1/embeddings", json!({"input": {}}), "a prompt must be a text, a list of texts"),
        ("/generate", json!({"inputs": "a", "parameters": {"priority": []}}), "`priority` must be"),
        (
            "/v2/models/tgi/infer",
            json!({"inputs": [{"name": "a", "data": 5}]}),
            "`data` must be a list of bytes",
        ),
    ] {
        let reply = server.post(path, body.clone()).await;
        assert!(reply.status.is_client_error(), "{body}");
        assert!(reply.body.contains(text) && !reply.body.contains("untagged"), "{body}: {}", reply.body);
    }
}
