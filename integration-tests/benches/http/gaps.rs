//! The table of the gaps between tokens, of one binary or of two in turns.

use std::path::Path;
use std::time::Duration;

use millrace_integration_tests::{ModelCopy, Server, binary, post};
use serde_json::json;

use crate::load::{self, BenchLoad, RunTimes};
use crate::long_prompts;
use crate::model::BenchModel;
use crate::options::{BenchOptions, LongPrompts};
use crate::report::{Figures, HEADING};

/// The positions of the demo model, whose own are too few for a prompt of 4,000 tokens. Its text is
/// meaningless beyond those that it was trained on, and takes the same time.
const DEMO_POSITIONS: usize = 8192;

/// A binary under test.
struct Candidate {
    name: &'static str,
    server: Server,
}

/// Measures the gaps with one model and prints a table with long prompts and one without.
pub(crate) fn measure(model: &BenchModel, options: &BenchOptions) {
    let copy = (model.name == "demo").then(|| {
        let copy = ModelCopy::new("bench-gaps");
        copy.edit("config.json", |config| config["max_position_embeddings"] = json!(DEMO_POSITIONS));
        copy
    });
    let mut flags: Vec<&str> = model.flags.iter().map(String::as_str).collect();
    flags.extend(copy.iter().flat_map(|copy| ["--model-id", copy.path()]));
    let candidate = |name, path: &Path| Candidate { name, server: Server::start_binary(path, &flags) };
    let mut candidates = vec![candidate("this", binary())];
    candidates.extend(options.against.as_deref().map(|path| candidate("against", path)));
    let prompt_tokens: Vec<String> = candidates.iter().map(|candidate| settle(&candidate.server)).collect();

    for prompts in [LongPrompts::Without, LongPrompts::With] {
        if options.prompts.is_some_and(|wanted| wanted != prompts) {
            continue;
        }
        let beside = match prompts {
            LongPrompts::Without => "without long prompts".to_owned(),
            LongPrompts::With => format!("with a prompt of {} tokens every 2 s", prompt_tokens[0]),
        };
        println!("\n## {}: gaps between tokens, {beside}\n\n{HEADING}", model.name);
        for &clients in &options.clients {
            let load = BenchLoad {
                clients: clients.into(),
                stream_tokens: model.stream_tokens,
                has_long_prompts: prompts == LongPrompts::With,
                duration: Duration::from_secs(options.seconds),
                name: String::new(),
            };
            measure_load(&candidates, &load, options.turns);
        }
    }
}

/// Measures one load on all binaries in turns, and prints their rows.
fn measure_load(candidates: &[Candidate], load: &BenchLoad, turns: u16) {
    let mut times = vec![RunTimes::default(); candidates.len()];
    for turn in 0..turns {
        for (candidate, times) in candidates.iter().zip(&mut times) {
            let prompts = if load.has_long_prompts { "with" } else { "without" };
            let load = BenchLoad { name: format!("{} {prompts} {turn}", load.clients), ..load.clone() };
            times.merge(load::run(&candidate.server, &load));
            settle(&candidate.server);
        }
    }
    let figures: Vec<Figures> = times.iter().map(Figures::new).collect();
    for (candidate, figures) in candidates.iter().zip(&figures) {
        println!("{}", figures.row(load.clients, candidate.name));
    }
    if let [own, other] = figures.as_slice() {
        println!("{}", own.ratios(other, load.clients));
    }
}

/// Waits until the server computes nothing, so that it does not disturb the run of another one.
/// Returns the number of tokens of a long prompt.
fn settle(server: &Server) -> String {
    server.wait_until("nothing runs", |server| {
        server.metric("tgi_batch_current_size") == 0.0 && server.metric("tgi_queue_size") == 0.0
    });
    // A step that was sent before its sequences were dropped is computed before this request. The
    // prompt is cut before it is computed.
    let body =
        json!({"inputs": long_prompts::prompt("settle"), "parameters": {"max_new_tokens": 1, "truncate": 8}});
    assert_eq!(post(&server.url("/generate"), &body).status, 200);
    let body = json!({"inputs": long_prompts::prompt("settle")});
    let tokens = post(&server.url("/tokenize"), &body);
    assert_eq!(tokens.status, 200, "{}", tokens.body);
    tokens.body.as_array().unwrap().len().to_string()
}
