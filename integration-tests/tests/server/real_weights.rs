//! Tests trained weights: the right text, alone and under load.

use std::collections::HashMap;
use std::path::Path;

use millrace_integration_tests::{Server, post, stream, test_data};
use serde_json::{Value, json};

const LILY: &str = "Once upon a time, there was a little girl named Lily.";
const LILY_80: &str = " She loved to play outside in the park. One day, she saw a big, red ball. She wanted to play \
                       with it, but it was too high.\nLily's mom said, \"Lily, let's go to the park.\" Lily was sad and didn'";

/// The demo model, which is trained on similar stories.
const DEMO: &str = "demo";

fn serve(model: &Path, flags: &[&str]) -> Server {
    let mut all = vec!["--model-id", model.to_str().unwrap()];
    all.extend(flags);
    Server::start(&all)
}

fn request(prompt: &str, tokens: usize) -> Value {
    json!({"inputs": prompt, "parameters": {"max_new_tokens": tokens, "details": true}})
}

fn text_alone(server: &Server, prompt: &str, tokens: usize) -> String {
    let answer = post(&server.url("/generate"), &request(prompt, tokens));
    assert_eq!(answer.status, 200, "{}", answer.body);
    answer.body["generated_text"].as_str().unwrap().to_owned()
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_give_the_text_of_the_original_program() {
    let server = serve(&test_data("stories260k"), &[]);
    let answer = post(&server.url("/generate"), &request(LILY, 80));
    assert_eq!(answer.body["generated_text"], LILY_80);
    assert_eq!(answer.body["details"]["generated_tokens"], 80);
    assert_eq!(answer.body["details"]["finish_reason"], "length");
}

/// Converts `tokenizer.json` to llama2.c's `tokenizer.bin`, from which it was made.
#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_give_the_same_text_with_the_original_tokenizer() {
    let (from, folder) = (test_data("stories260k"), tempfile::tempdir().unwrap());
    for file in ["config.json", "generation_config.json", "model.safetensors"] {
        std::fs::copy(from.join(file), folder.path().join(file)).unwrap();
    }
    let json: Value = serde_json::from_slice(&std::fs::read(from.join("tokenizer.json")).unwrap()).unwrap();
    let vocabulary = json["model"]["vocab"].as_object().unwrap();
    let mut pieces: Vec<_> = vocabulary.iter().map(|(text, id)| (id.as_u64().unwrap(), text)).collect();
    pieces.sort_unstable();
    let mut file = 64u32.to_le_bytes().to_vec();
    for (id, text) in pieces {
        let text = match id {
            1 | 2 => format!("\n{text}\n"),
            _ => text.replace('▁', " "),
        };
        file.extend((-(id as f32)).to_le_bytes());
        file.extend((text.len() as u32).to_le_bytes());
        file.extend(text.as_bytes());
    }
    std::fs::write(folder.path().join("tokenizer.bin"), file).unwrap();
    let server = serve(folder.path(), &[]);
    let answer = post(&server.url("/generate"), &request(LILY, 80));
    assert_eq!(answer.body["generated_text"], LILY_80);
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_stream_the_whole_answer_in_pieces() {
    let server = serve(&test_data("stories260k"), &[]);
    let events: Vec<Value> = stream(&server.url("/generate_stream"), &request(LILY, 80)).collect();
    assert_eq!(events.len(), 80);
    let text: String = events.iter().map(|event| event["token"]["text"].as_str().unwrap()).collect();
    assert_eq!(text, LILY_80);
    assert_eq!(events[79]["generated_text"], LILY_80);
    assert!(events[..79].iter().all(|event| event["generated_text"].is_null()));
}

/// Returns prompts of many lengths, cut from one long text.
fn prompts() -> Vec<String> {
    let long = format!("{LILY}{LILY_80} ").repeat(4);
    (0..32).map(|i| long.chars().take(5 + 31 * i % 700 + i).collect()).collect()
}

fn under_load(flags: &[&str]) {
    let server = serve(Path::new(DEMO), flags);
    let prompts = prompts();
    let alone: HashMap<&str, String> =
        prompts.iter().map(|prompt| (prompt.as_str(), text_alone(&server, prompt, 48))).collect();
    std::thread::scope(|scope| {
        for (client, prompt) in prompts.iter().enumerate() {
            let (server, alone) = (&server, &alone);
            scope.spawn(move || {
                let leaves = client % 5 == 3;
                let events = stream(&server.url("/generate_stream"), &request(prompt, 48));
                let text: String = events
                    .take(if leaves { 7 } else { usize::MAX })
                    // A special token is reported as a token and is not part of the text.
                    .filter(|event| event["token"]["special"] == false)
                    .map(|event| event["token"]["text"].as_str().unwrap().to_owned())
                    .collect();
                match leaves {
                    true => assert!(alone[prompt.as_str()].starts_with(&text), "client {client}"),
                    false => assert_eq!(text, alone[prompt.as_str()], "client {client}"),
                }
            });
        }
    });
    server.wait_until("all sequences are freed", |server| {
        server.metric("tgi_batch_current_size") == 0.0 && server.metric("tgi_queue_size") == 0.0
    });
}

#[test]
fn concurrent_clients_get_the_same_texts_as_alone() {
    under_load(&[]);
}

#[test]
fn concurrent_clients_get_the_same_texts_when_blocks_and_slots_are_scarce() {
    under_load(&[
        "--max-batch-total-tokens",
        "1024",
        "--max-batch-size",
        "12",
        "--max-batch-prefill-tokens",
        "40",
    ]);
}
