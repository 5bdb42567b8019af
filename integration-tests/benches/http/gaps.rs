//! The table of the gaps between tokens, of one binary or of two in turns.

use std::time::Duration;

use crate::candidate::{Candidate, settle, start_candidates};
use crate::load::{self, BenchLoad, RunTimes};
use crate::model::BenchModel;
use crate::options::{BenchOptions, LongPrompts};
use crate::report::{Figures, HEADING};

/// Measures the gaps with one model and prints a table with long prompts and one without.
pub(crate) fn measure(model: &BenchModel, options: &BenchOptions) {
    let (candidates, _copy) = start_candidates(model, options);
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
