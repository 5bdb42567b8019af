//! Tests the demo model through the OpenAI API against the results in its model card.

use std::sync::atomic::{AtomicUsize, Ordering};

use millrace_integration_tests::{Server, post, stream};
use serde_json::{Value, json};

/// The share of the held-out tasks that the model card promises.
const PROMISED: f64 = 0.95;

#[test]
fn held_out_tasks_are_answered() {
    let list = include_str!("../../../models/demo/heldout.jsonl");
    let tasks: Vec<Value> = list.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert!(tasks.len() >= 300, "the list has only {} tasks", tasks.len());
    let server = Server::start(&[]);
    let (next, exact) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                while let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let answer = post(
                        &server.url("/v1/chat/completions"),
                        &json!({"messages": task["messages"], "temperature": 0, "max_tokens": 120}),
                    );
                    assert_eq!(answer.status, 200, "{}", answer.body);
                    match answer.body["choices"][0]["message"]["content"] == task["answer"] {
                        true => _ = exact.fetch_add(1, Ordering::Relaxed),
                        false => eprintln!(
                            "{task}\n  answered {}",
                            answer.body["choices"][0]["message"]["content"]
                        ),
                    }
                }
            });
        }
    });
    let share = exact.into_inner() as f64 / tasks.len() as f64;
    println!("{:.1}% of {} held-out tasks are exact", 100.0 * share, tasks.len());
    assert!(share >= PROMISED, "{share}");
}

#[test]
fn chat_streams_the_same_text_that_it_answers_whole() {
    let server = Server::start(&[]);
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me a story about a fox and a lantern."}],
        "temperature": 0.7, "seed": 11, "max_tokens": 120,
    });
    let whole = post(&server.url("/v1/chat/completions"), &body);
    assert_eq!(whole.status, 200, "{}", whole.body);
    body["stream"] = json!(true);
    let text: String = stream(&server.url("/v1/chat/completions"), &body)
        .filter_map(|event| event["choices"][0]["delta"]["content"].as_str().map(str::to_owned))
        .collect();
    assert_eq!(whole.body["choices"][0]["message"]["content"], text);
    assert!(text.len() > 40, "{text}");
}

#[test]
fn a_seed_repeats_the_text_alone_and_under_load() {
    let server = Server::start(&[]);
    let ask = |seed: u64| {
        let parameters = json!({"max_new_tokens": 40, "do_sample": true, "temperature": 1.3, "seed": seed});
        let answer =
            post(&server.url("/generate"), &json!({"inputs": "Once upon a time", "parameters": parameters}));
        answer.body["generated_text"].as_str().unwrap().to_owned()
    };
    let alone: Vec<String> = (0..8).map(ask).collect();
    let together: Vec<String> = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..8).map(|seed| scope.spawn(move || ask(seed))).collect();
        clients.into_iter().map(|client| client.join().unwrap()).collect()
    });
    assert_eq!(alone, together);
    assert!(alone.iter().any(|text| *text != alone[0]), "different seeds should differ");
}
