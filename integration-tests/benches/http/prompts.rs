//! The table of prompts that run without streams, of one binary or of two in turns: a long prompt
//! alone, several answers to one prompt, and requests that arrive at once with a common prefix.

use std::time::{Duration, Instant};

use millrace_integration_tests::{Server, post};
use serde_json::json;

use crate::candidate::{settle, start_candidates};
use crate::load::long_prompt;
use crate::model::BenchModel;
use crate::options::BenchOptions;

/// The number of requests with a common prefix.
const HERD: usize = 16;

/// One row of the table: its name, and the function that measures it. The text makes the prompts
/// differ from those of other runs.
type Case = (&'static str, fn(&Server, &str) -> Duration);

const CASES: [Case; 5] = [
    ("a prompt of 4,000 tokens", |server, run| complete(server, &long_prompt(run), 1)),
    ("a prompt of 1,000 tokens, `n=1`", |server, run| complete(server, &part(run, 4), 1)),
    ("a prompt of 1,000 tokens, `n=2`", |server, run| complete(server, &part(run, 4), 2)),
    ("a prompt of 500 tokens", |server, run| complete(server, &part(run, 8), 1)),
    ("16 requests that begin with the same 500 tokens", herd),
];

/// Measures the prompts with one model and prints a table of the medians.
pub(crate) fn measure(model: &BenchModel, options: &BenchOptions) {
    let (candidates, _copy) = start_candidates(model, options);
    println!("\n## {}: prompts without streams\n", model.name);
    let names: Vec<&str> = candidates.iter().map(|candidate| candidate.name).collect();
    println!("| | {} | ratio |\n|---|{}---|", names.join(" | "), "---|".repeat(names.len()));
    for (index, (name, run)) in CASES.into_iter().enumerate() {
        let mut times = vec![Vec::new(); candidates.len()];
        for turn in 0..options.turns {
            for (candidate, times) in candidates.iter().zip(&mut times) {
                times.push(run(&candidate.server, &format!("{index} {turn}")).as_secs_f64());
                settle(&candidate.server);
            }
        }
        let medians: Vec<f64> = times.into_iter().map(median).collect();
        let cells: Vec<String> = medians.iter().map(|seconds| format!("{:.1} ms", 1e3 * seconds)).collect();
        let ratio = medians.get(1).map_or("–".to_owned(), |other| format!("{:.2}", medians[0] / other));
        println!("| {name} | {} | {ratio} |", cells.join(" | "));
    }
}

fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Returns the first part of a long prompt.
fn part(run: &str, divisor: usize) -> String {
    let prompt = long_prompt(run);
    prompt[..prompt.len() / divisor].to_owned()
}

/// Returns the time of a request for `n` answers of two tokens.
fn complete(server: &Server, prompt: &str, n: usize) -> Duration {
    let body =
        json!({"model": "tgi", "prompt": prompt, "max_tokens": 2, "n": n, "temperature": 1.0, "seed": 1});
    let since = Instant::now();
    let answer = post(&server.url("/v1/completions"), &body);
    assert_eq!(answer.status, 200, "{}", answer.body);
    since.elapsed()
}

/// Returns the time until all of some requests with a common prefix have been answered.
fn herd(server: &Server, run: &str) -> Duration {
    let prefix = part(run, 8);
    let since = Instant::now();
    std::thread::scope(|scope| {
        for number in 0..HERD {
            let prompt = format!("{prefix} {number}");
            scope.spawn(move || complete(server, &prompt, 1));
        }
    });
    since.elapsed()
}
