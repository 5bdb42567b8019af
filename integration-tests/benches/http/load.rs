//! A load on a server: a process of `millrace bench-http`, and the figures that it prints.

use std::process::{Child, Command, Stdio};

use millrace_integration_tests::{Server, binary};
use serde_json::Value;

/// A text of about 4,000 tokens of the demo model's tokenizer, which both models have.
const LONG_PROMPT_CHARS: usize = 12_570;

/// A process that sends requests.
pub(crate) struct Load(Child);

impl Load {
    /// Starts to send greedy requests, whose answers no token ends before their limit. `flags` say
    /// how many, with which prompts, and how long.
    pub(crate) fn start(server: &Server, seed: u64, flags: &[&str]) -> Load {
        let url = server.url("");
        let mut command = Command::new(binary());
        command.args(["bench-http", "--url", &url, "--seed", &seed.to_string(), "--json", "-"]);
        command.args(["--warmup", "0", "--extra", r#"{"ignore_eos": true}"#]).args(flags);
        Load(command.stdout(Stdio::piped()).spawn().unwrap())
    }

    /// Waits for the end, and returns the figures of the only measurement.
    pub(crate) fn figures(self) -> Value {
        let output = self.0.wait_with_output().unwrap();
        assert!(output.status.success(), "bench-http failed");
        let mut report: Value = serde_json::from_slice(&output.stdout).unwrap();
        let run = report["runs"][0].take();
        assert_eq!(run["errors"], serde_json::json!({}), "a request failed");
        run
    }
}

/// Returns a long prompt. Prompts with different names have no common prefix.
pub(crate) fn long_prompt(name: &str) -> String {
    let text = format!("{name}: {}", "the lantern and the fox went over the hill, ".repeat(300));
    text.chars().take(LONG_PROMPT_CHARS).collect()
}
