//! The binaries under test, which are measured in turns.

use std::path::Path;

use millrace_integration_tests::{ModelCopy, Server, binary, post};
use serde_json::json;

use crate::load::long_prompt;
use crate::model::BenchModel;
use crate::options::BenchOptions;

/// The positions of the demo model, whose own are too few for a prompt of 4,000 tokens. Its text is
/// meaningless beyond those that it was trained on, and takes the same time.
const DEMO_POSITIONS: usize = 8192;

/// A binary under test.
pub(crate) struct Candidate {
    pub(crate) name: &'static str,
    pub(crate) server: Server,
}

/// Starts the binary of this build, and the one to compare it with if there is one. The copy of the
/// model must live as long as the servers.
pub(crate) fn start_candidates(
    model: &BenchModel,
    options: &BenchOptions,
) -> (Vec<Candidate>, Option<ModelCopy>) {
    let copy = (model.name == "demo").then(|| {
        let copy = ModelCopy::new("bench-candidates");
        copy.edit("config.json", |config| config["max_position_embeddings"] = json!(DEMO_POSITIONS));
        copy
    });
    let mut flags: Vec<&str> = model.flags.iter().map(String::as_str).collect();
    flags.extend(copy.iter().flat_map(|copy| ["--model-id", copy.path()]));
    let candidate = |name, path: &Path| Candidate { name, server: Server::start_binary(path, &flags) };
    let mut candidates = vec![candidate("this", binary())];
    candidates.extend(options.against.as_deref().map(|path| candidate("against", path)));
    (candidates, copy)
}

/// Waits until the server computes nothing, so that it does not disturb the run of another one.
pub(crate) fn settle(server: &Server) {
    server.wait_until("nothing runs", |server| {
        server.metric("tgi_batch_current_size") == 0.0 && server.metric("tgi_queue_size") == 0.0
    });
    // A step that was sent before its sequences were dropped is computed before this request. The
    // prompt is cut before it is computed.
    let body = json!({"inputs": long_prompt("settle"), "parameters": {"max_new_tokens": 1, "truncate": 8}});
    assert_eq!(post(&server.url("/generate"), &body).status, 200);
}
