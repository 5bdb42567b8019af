//! Tests the cache of the tokenizer with the turns of a conversation: it changes no answer, and the
//! metrics say what it found.

use millrace_integration_tests::{ModelCopy, Server, post};
use serde_json::{Value, json};

/// Returns the messages of a conversation of several thousand bytes with this many questions.
fn conversation(questions: usize) -> Vec<Value> {
    let facts: String = (10..75).map(|n| format!("Rosa bought {n} lemons <|im_end|>.\n")).collect();
    let mut messages = vec![json!({"role": "user", "content": facts})];
    for number in 0..questions {
        let answer = format!("Answer {number}: {}", "she went to the market again, ".repeat(8));
        messages.push(json!({"role": "assistant", "content": answer}));
        messages.push(json!({"role": "user", "content": format!("Who bought {number} lemons?")}));
    }
    messages
}

/// Asks for the next message. Returns the answer's text and the number of tokens of the prompt.
fn ask(server: &Server, questions: usize, salt: Option<&str>) -> (Value, f64) {
    let body = json!({"model": "tgi", "messages": conversation(questions), "max_tokens": 12, "temperature": 0, "cache_salt": salt});
    let answer = post(&server.url("/v1/chat/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    let tokens = answer.body["usage"]["prompt_tokens"].as_f64().unwrap();
    (answer.body["choices"][0]["message"]["content"].clone(), tokens)
}

#[test]
fn the_next_turn_of_a_conversation_tokenizes_only_what_is_new() {
    // The demo model has too few positions.
    let copy = ModelCopy::new("tokenizer-cache");
    copy.edit("config.json", |config| config["max_position_embeddings"] = json!(4096));
    let flags = ["--model-id", copy.path()];
    let server = Server::start(&flags);
    let plain = Server::start(&[&flags[..], &["--tokenizer-cache", "0"]].concat());
    let count = |server: &Server, name: &str| server.metric(&format!("millrace_tokenizer_cache_{name}"));
    let mut before = (0.0, 0.0);
    for questions in 0..3 {
        let (text, tokens) = ask(&server, questions, None);
        assert_eq!((text, tokens), ask(&plain, questions, None), "{questions}");
        let now = (count(&server, "hit_tokens_total"), count(&server, "miss_tokens_total"));
        let (found, missed) = (now.0 - before.0, now.1 - before.1);
        assert_eq!(found + missed, tokens, "each token is found or missed");
        let is_right = if questions == 0 { found == 0.0 } else { found > 3.0 * missed };
        assert!(is_right, "turn {questions}: {found} of {tokens} tokens were found");
        before = now;
    }
    assert!(count(&server, "pieces") > 3.0);
    let bytes = count(&server, "bytes");
    assert!(bytes > 4.0 * before.1 && bytes < 64e6, "{bytes}");
    // The same text with another salt.
    let (_, tokens) = ask(&server, 2, Some("other"));
    assert_eq!(count(&server, "hit_tokens_total"), before.0);
    assert_eq!(count(&server, "miss_tokens_total"), before.1 + tokens);
    let names = ["hit_tokens_total", "miss_tokens_total", "pieces", "bytes"];
    assert!(names.iter().all(|name| count(&plain, name) == 0.0));
}

/// Clients that count tokens before they send a conversation find what its earlier turns had.
#[test]
fn counting_tokens_uses_the_cache_of_prompts() {
    let copy = ModelCopy::new("tokenizer-cache-counts");
    copy.edit("config.json", |config| config["max_position_embeddings"] = json!(4096));
    let flags = ["--model-id", copy.path()];
    let server = Server::start(&flags);
    let plain = Server::start(&[&flags[..], &["--tokenizer-cache", "0"]].concat());
    let found = || server.metric("millrace_tokenizer_cache_hit_tokens_total");
    let (_, tokens) = ask(&server, 1, None);
    for (path, field) in [("/v1/messages/count_tokens", "input_tokens"), ("/tokenize", "count")] {
        let before = found();
        let body = json!({"messages": conversation(1), "add_special_tokens": false});
        let counts = [&server, &plain].map(|server| post(&server.url(path), &body).body);
        assert_eq!(counts[0], counts[1], "{path}");
        assert_eq!(counts[0][field], tokens, "{path}");
        assert_eq!(found() - before, tokens, "{path}");
    }
}
