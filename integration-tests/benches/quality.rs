//! Quality of the weight formats of the CPU: `cargo bench --package millrace-integration-tests
//! --bench quality`.
//!
//! For each format, the demo model answers its held-out tasks, and two texts are scored: these
//! tasks and their answers with the demo model, and stories with `stories260k`, if the folder that
//! `MILLRACE_TEST_DATA` names has it. The texts are fixed, and no weights were trained on them.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_integration_tests::{Server, post, test_data};
use serde_json::{Value, json};

/// The flags of each format. The first one is what the others are compared with.
const FORMATS: [(&str, &[&str]); 13] = [
    ("bfloat16", &["--dtype", "bfloat16"]),
    ("bfloat16, exact activations", &["--dtype", "bfloat16", "--activations", "exact"]),
    ("bfloat16, int8 KV cache", &["--dtype", "bfloat16", "--kv-cache-dtype", "int8"]),
    ("int8", &["--dtype", "bfloat16", "--quantize", "int8"]),
    ("q8_0", &["--dtype", "bfloat16", "--quantize", "q8_0"]),
    ("q6_k", &["--dtype", "bfloat16", "--quantize", "q6_k"]),
    ("fp8", &["--dtype", "bfloat16", "--quantize", "fp8"]),
    ("int4", &["--dtype", "bfloat16", "--quantize", "int4"]),
    ("q5_k", &["--dtype", "bfloat16", "--quantize", "q5_k"]),
    ("q4_k", &["--dtype", "bfloat16", "--quantize", "q4_k"]),
    ("q4_0", &["--dtype", "bfloat16", "--quantize", "q4_0"]),
    ("q4_0, dense head", &["--dtype", "bfloat16", "--quantize", "q4_0", "--dense-head"]),
    ("nf4", &["--dtype", "bfloat16", "--quantize", "nf4"]),
];

const STORIES: [&str; 4] = [
    "Once upon a time, there was a little girl named Lily. She loved to play outside in the park. One day, she saw \
     a big red ball under a tree. She ran to the ball and kicked it very far. The ball went into the pond. Lily was \
     sad. Her mom came and said, \"Do not cry. We can get it with a long stick.\" They found a stick and got the \
     ball. Lily was happy and gave her mom a big hug.",
    "Tom had a small dog. The dog was brown and very fast. Every day they went for a walk. One day the dog saw a cat \
     and ran away. Tom looked and looked, but he could not find his dog. Then he heard a bark. The dog was in the \
     garden with the cat. They were friends now. Tom smiled and took them both home.",
    "There was an old tree in the forest. A bird lived in the tree. The bird liked to sing in the morning. A bear \
     came and said, \"You are too loud. I want to sleep.\" The bird said sorry and sang a soft song. The bear liked \
     the soft song and went to sleep. From that day, the bird sang softly every morning.",
    "Ben and Anna wanted to make a cake. They got flour, eggs and milk. Ben dropped an egg on the floor. \"Oh no!\" \
     he said. Anna was not mad. She helped him clean the floor. Then they put the cake in the oven. The cake was \
     big and sweet. They ate it with their friends and had a lot of fun.",
];

fn main() {
    let list = include_str!("../../models/demo/heldout.jsonl");
    let tasks: Vec<Value> = list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let stories = std::env::var_os("MILLRACE_TEST_DATA").map(|_| test_data("stories260k"));
    println!(
        "| weights | held-out tasks, exact | perplexity of tasks and answers | stories260k, perplexity |"
    );
    println!("|---|--:|--:|--:|");
    for (name, flags) in FORMATS {
        let demo = Server::start(flags);
        let exact = exact_answers(&demo, &tasks);
        let of_answers = perplexity(&demo, tasks.iter().map(conversation));
        drop(demo);
        let of_stories = stories.as_ref().map_or("–".to_owned(), |folder| {
            let flags = [&["--model-id", folder.to_str().unwrap()], flags].concat();
            format!("{:.3}", perplexity(&Server::start(&flags), STORIES.map(str::to_owned)))
        });
        println!("| {name} | {exact} of {} | {of_answers:.3} | {of_stories} |", tasks.len());
    }
}

/// Returns the text of a task and its answer, in the format of the demo model's chats.
fn conversation(task: &Value) -> String {
    let turn = |role: &str, content: &str| format!("<|im_start|>{role}\n{content}<|im_end|>\n");
    let messages = task["messages"].as_array().unwrap().iter();
    let asked: String = messages
        .map(|message| turn(message["role"].as_str().unwrap(), message["content"].as_str().unwrap()))
        .collect();
    asked + &turn("assistant", task["answer"].as_str().unwrap())
}

/// Returns how many tasks are answered exactly, by greedy decoding.
fn exact_answers(server: &Server, tasks: &[Value]) -> usize {
    let (next, exact) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let body = json!({"messages": task["messages"], "temperature": 0, "max_tokens": 120});
                    let answer = post(&server.url("/v1/chat/completions"), &body);
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    if answer.body["choices"][0]["message"]["content"] == task["answer"] {
                        exact.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    exact.into_inner()
}

/// Returns the perplexity per token of texts that are scored one by one.
fn perplexity(server: &Server, texts: impl IntoIterator<Item = String>) -> f64 {
    let (mut sum, mut count) = (0.0, 0.0);
    for text in texts {
        let body = json!({"prompt": text, "echo": true, "logprobs": 1, "max_tokens": 0});
        let answer = post(&server.url("/v1/completions"), &body);
        assert_eq!(answer.status, 200, "{}", answer.body);
        for logprob in answer.body["choices"][0]["logprobs"]["token_logprobs"].as_array().unwrap() {
            // The first token has none.
            if let Some(logprob) = logprob.as_f64() {
                (sum, count) = (sum + logprob, count + 1.0);
            }
        }
    }
    f64::exp(-sum / count)
}
