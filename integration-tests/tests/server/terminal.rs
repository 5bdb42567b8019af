//! Tests the commands that people type.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use millrace_integration_tests::{AdapterFolder, Server, binary, post, test_data};
use serde_json::{Value, json};

fn millrace(arguments: &[&str], input: &str) -> Output {
    let mut process = Command::new(binary())
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    process.wait_with_output().unwrap()
}

fn stdout(output: &Output) -> String {
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && errors.is_empty(), "{errors}");
    String::from_utf8(output.stdout.clone()).unwrap()
}

#[test]
fn generate_prints_what_the_server_answers() {
    let prompt = "Once upon a time";
    let server = Server::start(&[]);
    let answer = post(
        &server.url("/generate"),
        &json!({"inputs": prompt, "parameters": {"max_new_tokens": 40, "return_full_text": false}}),
    );
    let text = answer.body["generated_text"].as_str().unwrap();
    assert!(!text.is_empty());
    let by_argument = stdout(&millrace(&["generate", prompt, "-n", "40"], ""));
    let by_input = stdout(&millrace(&["generate", "-n", "40"], prompt));
    assert_eq!(by_argument.trim_end_matches('\n'), format!("{prompt}{text}").trim_end_matches('\n'));
    assert_eq!(by_argument, by_input);
}

#[test]
fn generate_and_chat_use_the_adapter_that_is_chosen() {
    let folders = [1, 2].map(|seed| AdapterFolder::new(&format!("terminal-{seed}"), seed));
    let both = format!("{},{}", folders[0].named("a"), folders[1].named("b"));
    let server = Server::start(&["--lora-adapters", &both]);
    let prompt = "Once upon a time";
    for adapter in ["a", "b"] {
        let parameters = json!({"max_new_tokens": 30, "return_full_text": true, "adapter_id": adapter});
        let answer = post(&server.url("/generate"), &json!({"inputs": prompt, "parameters": parameters}));
        let text = answer.body["generated_text"].as_str().unwrap().trim_end_matches('\n').to_owned();
        let flags = ["generate", prompt, "-n", "30", "--lora-adapters", &both, "--adapter", adapter];
        assert_eq!(stdout(&millrace(&flags, "")).trim_end_matches('\n'), text);
    }
    let talk = "What does the fox have?\n";
    let with_adapter = ["chat", "-n", "20", "--lora-modules", &folders[0].named("a")];
    assert_ne!(stdout(&millrace(&with_adapter, talk)), stdout(&millrace(&["chat", "-n", "20"], talk)));
    let unclear = millrace(&["generate", prompt, "--lora-adapters", &both], "");
    let errors = String::from_utf8_lossy(&unclear.stderr);
    assert!(errors.contains("several adapters are given (a, b): choose one with --adapter NAME"), "{errors}");
}

#[test]
fn chat_remembers_the_conversation() {
    let talk = "Emma has a yellow ball. What colour is Emma's ball?\nWhat does Emma have?\n/exit\n";
    let answers = stdout(&millrace(&["chat"], talk));
    // Only the first message contains this fact.
    assert_eq!(answers.lines().nth(1), Some("Emma has a yellow ball."), "{answers}");
}

#[test]
fn chat_has_commands() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("talk.json");
    let talk = format!(
        "/system Answer in one word.\n/rest\n/speed\n\"\"\"Emma has a yellow ball.\nWhat colour is \
         it?\"\"\"\n/save {file}\n/save {file}\n/system\n",
        file = file.display()
    );
    let answers = stdout(&millrace(&["chat", "-n", "3"], &talk));
    for expected in [
        "there is no command /rest\n/reset ",
        "[cut off; --max-new-tokens allows longer answers]\n[3 tokens, ",
        "saved 3 messages to ",
        "cannot write ",
        "Answer in one word.\n",
    ] {
        assert!(answers.contains(expected), "{expected:?} is missing in:\n{answers}");
    }
    let saved: Value = serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap();
    let roles: Vec<_> =
        saved["messages"].as_array().unwrap().iter().map(|message| &message["role"]).collect();
    assert_eq!(roles, ["system", "user", "assistant"]);
    assert_eq!(saved["messages"][1]["content"], "Emma has a yellow ball.\nWhat colour is it?");
}

#[test]
fn chat_with_a_model_without_a_template_ends_before_the_first_message() {
    let (root, folder) = (env!("CARGO_MANIFEST_DIR"), tempfile::tempdir().unwrap());
    for file in ["golden/llama_mha/config.json", "../models/demo/tokenizer.json"] {
        let from = Path::new(root).join(file);
        std::fs::copy(&from, folder.path().join(from.file_name().unwrap())).unwrap();
    }
    let model = folder.path().to_str().unwrap();
    let refused = millrace(&["chat", "--model-id", model, "--load-format", "dummy"], "hello\n");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && refused.stdout.is_empty(), "{errors}");
    assert!(errors.contains("has no chat template") && errors.contains("millrace generate"), "{errors}");
}

#[test]
fn inspect_describes_a_checkpoint() {
    let text = stdout(&millrace(&["inspect", "--tensors", "--contexts", "128,1024"], ""));
    for expected in ["llama", "bfloat16", "model.embed_tokens.weight", "1024"] {
        assert!(text.contains(expected), "{expected} is missing in:\n{text}");
    }
    let text = stdout(&millrace(&["inspect", "--rope-scaling", "linear", "--rope-factor", "2"], ""));
    assert!(text.contains("context       2048 tokens") && text.contains("linear"), "{text}");
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_are_inspected() {
    let stories = test_data("stories260k");
    let text = stdout(&millrace(&["inspect", "--model-id", stories.to_str().unwrap()], ""));
    assert!(text.contains("float32") && text.contains("260"), "{text}");
}

#[test]
fn inspect_plans_for_several_devices() {
    let text = stdout(&millrace(&["inspect", "--num-shard", "1,2,4", "--gpu", "h100-sxm"], ""));
    let values = |name: &str| -> Vec<&str> {
        let plan = text.split_once("Split over shards").unwrap().1;
        let row = plan.lines().find_map(|line| line.trim_start().strip_prefix(name));
        row.unwrap_or_else(|| panic!("{name} is missing in:\n{text}")).split_whitespace().collect()
    };
    assert_eq!(values("shards"), ["1", "2", "4"]);
    // Five layers, keys and values, four heads with 16 features, and 2 bytes per element.
    assert_eq!(values("KV per token"), ["1.25", "KiB", "640", "B", "320", "B"]);
    assert_eq!(values("collectives"), ["0", "13", "13"]);
    assert_eq!(values("time").len(), 3);
    assert!(text.contains("80% of 3350 GB/s"), "{text}");

    // A flag overrides the data sheet, and the error for an impossible size names the possible
    // ones.
    let slower = stdout(&millrace(&["inspect", "--gpu", "h100-sxm", "--memory-bandwidth", "1000"], ""));
    assert!(slower.contains("80% of 1000 GB/s"), "{slower}");
    let unsplit = stdout(&millrace(&["inspect"], ""));
    assert!(!unsplit.contains("Split over shards"), "{unsplit}");
    let refused = millrace(&["inspect", "--num-shard", "3"], "");
    let errors = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success() && refused.stdout.is_empty());
    assert!(errors.contains("8 attention heads") && errors.contains("1, 2, 4, 8"), "{errors}");
}

#[test]
fn help_teaches() {
    let text = stdout(&millrace(&["--help"], ""));
    assert!(text.contains("serve") && text.contains("curl"), "{text}");
    let serve = stdout(&millrace(&["serve", "--help"], ""));
    for flag in ["--model-id", "--max-batch-total-tokens", "MODEL_ID", "429"] {
        assert!(serve.contains(flag), "{flag} is missing in:\n{serve}");
    }
    let unknown = millrace(&["serve", "--max-total-token", "5"], "");
    assert!(!unknown.status.success());
    assert!(
        String::from_utf8_lossy(&unknown.stderr).contains("--max-total-tokens"),
        "the nearest flag is named"
    );
}
