//! The table of the gaps between tokens, of one binary or of two in turns.

use std::fs;

use millrace_integration_tests::Server;
use serde_json::Value;
use tempfile::NamedTempFile;

use crate::candidate::{Candidate, settle, start_candidates};
use crate::load::{Load, long_prompt};
use crate::model::BenchModel;
use crate::options::{BenchOptions, LongPrompts};

/// Long prompts that start per second, at random times.
const PROMPTS_PER_SECOND: &str = "0.5";

/// Long prompts that run at the same time at most.
const MAX_LONG_PROMPTS: &str = "2";

/// The number of tokens that follow each long prompt.
const PROMPT_TOKENS: &str = "4";

const HEADING: &str = "\
| clients | binary | gap p50 | p99 | max | tokens/s | first token p50 | max | long prompt: first token p50 | max | prompts answered |
|---|---|---|---|---|---|---|---|---|---|---|";

/// The columns: the load, the figure in it, and whether it is a time in milliseconds.
const COLUMNS: [(Part, &str, bool); 8] = [
    (Part::Streams, "/itl_ms/p50", true),
    (Part::Streams, "/itl_ms/p99", true),
    (Part::Streams, "/itl_ms/max", true),
    (Part::Streams, "/output_tokens_per_second", false),
    (Part::Streams, "/ttft_ms/p50", true),
    (Part::Streams, "/ttft_ms/max", true),
    (Part::Prompts, "/ttft_ms/p50", true),
    (Part::Prompts, "/ttft_ms/max", true),
];

#[derive(Clone, Copy, PartialEq)]
enum Part {
    Streams,
    Prompts,
}

/// The figures of the runs of one binary under one load.
#[derive(Default)]
struct Figures {
    /// The figures in each column, one for each run that has them.
    columns: [Vec<f64>; COLUMNS.len()],
    /// Long prompts that got a token, and all.
    answered: (u64, u64),
}

/// Measures the gaps with one model and prints a table with long prompts and one without.
pub(crate) fn measure(model: &BenchModel, options: &BenchOptions) {
    let (candidates, _copy) = start_candidates(model, options);
    for prompts in [LongPrompts::Without, LongPrompts::With] {
        if options.prompts.is_some_and(|wanted| wanted != prompts) {
            continue;
        }
        let beside = match prompts {
            LongPrompts::Without => "without long prompts",
            LongPrompts::With => "with prompts of 4,000 tokens",
        };
        println!("\n## {}: gaps between tokens, {beside}\n\n{HEADING}", model.name);
        for &clients in &options.clients {
            let has_prompts = prompts == LongPrompts::With;
            let load = GapLoad { model, seconds: options.seconds, clients, has_prompts };
            measure_load(&candidates, &load, options.turns);
        }
    }
}

/// Measures one load on all binaries in turns, and prints their rows.
fn measure_load(candidates: &[Candidate], load: &GapLoad<'_>, turns: u16) {
    let mut figures: Vec<Figures> = candidates.iter().map(|_| Figures::default()).collect();
    for turn in 0..turns {
        for (candidate, figures) in candidates.iter().zip(&mut figures) {
            figures.add(&candidate.server, load, turn);
            settle(&candidate.server);
        }
    }
    for (candidate, figures) in candidates.iter().zip(&figures) {
        println!("{}", figures.row(load.clients, candidate.name));
    }
    if let [own, other] = figures.as_slice() {
        println!("{}", own.ratios(other, load.clients));
    }
}

/// Streams, with or without long prompts beside them.
struct GapLoad<'m> {
    model: &'m BenchModel,
    seconds: u64,
    clients: u16,
    has_prompts: bool,
}

impl GapLoad<'_> {
    fn start_streams(&self, server: &Server, seed: u64) -> Load {
        let (clients, tokens) = (self.clients.to_string(), self.model.stream_tokens.to_string());
        let flags = ["--concurrency", &clients, "--max-tokens", &tokens, "--prompt-words", "12"];
        Load::start(server, seed, &[&flags[..], &["--duration", &self.seconds.to_string()]].concat())
    }

    /// Sends long prompts for the duration of the load, and returns their figures.
    fn send_prompts(&self, server: &Server, seed: u64) -> Value {
        let file = NamedTempFile::new().unwrap();
        // More than start in the time.
        let lines = (0..2 * self.seconds + 10).map(|line| long_prompt(&format!("{seed} {line}")));
        fs::write(file.path(), lines.collect::<Vec<_>>().join("\n")).unwrap();
        let pace = ["--rate", PROMPTS_PER_SECOND, "--max-concurrency", MAX_LONG_PROMPTS];
        let prompts = ["--prompts", file.path().to_str().unwrap(), "--max-tokens", PROMPT_TOKENS];
        let duration = ["--duration", &self.seconds.to_string()];
        Load::start(server, seed, &[&pace[..], &prompts, &duration].concat()).figures()
    }
}

impl Figures {
    /// Runs the load once.
    fn add(&mut self, server: &Server, load: &GapLoad<'_>, turn: u16) {
        // No two runs of a server have the same prompts, so that none is in the prefix cache.
        let seed = u64::from(turn) << 32 | u64::from(load.clients) << 1 | u64::from(load.has_prompts);
        let streams = load.start_streams(server, seed);
        let prompts = load.has_prompts.then(|| load.send_prompts(server, seed));
        let streams = streams.figures();
        for ((part, pointer, _), column) in COLUMNS.iter().zip(&mut self.columns) {
            let figures = if *part == Part::Streams { Some(&streams) } else { prompts.as_ref() };
            column.extend(figures.and_then(|figures| figures.pointer(pointer)).and_then(Value::as_f64));
        }
        if let Some(prompts) = prompts {
            let [answered, all] = ["first_tokens", "requests"].map(|name| prompts[name].as_u64().unwrap());
            self.answered = (self.answered.0 + answered, self.answered.1 + all);
        }
    }

    /// Returns the median over the runs of each column.
    fn medians(&self) -> [Option<f64>; COLUMNS.len()] {
        self.columns.each_ref().map(|column| {
            let mut sorted = column.clone();
            sorted.sort_by(f64::total_cmp);
            sorted.get(sorted.len() / 2).copied()
        })
    }

    /// Returns the row of a binary.
    fn row(&self, clients: u16, binary: &str) -> String {
        let cells = self.medians().into_iter().zip(COLUMNS).map(|(figure, (_, _, is_time))| match figure {
            None => "–".to_owned(),
            Some(figure) if is_time => millis(figure),
            Some(figure) => format!("{figure:.1}"),
        });
        let (answered, all) = self.answered;
        format!("| {clients} | {binary} | {} | {answered} of {all} |", cells.collect::<Vec<_>>().join(" | "))
    }

    /// Returns the row of the ratios of these figures to those of another binary.
    fn ratios(&self, other: &Figures, clients: u16) -> String {
        let cells = self.medians().into_iter().zip(other.medians()).map(|figures| match figures {
            (Some(own), Some(other)) if other > 0.0 => format!("{:.2}", own / other),
            _ => "–".to_owned(),
        });
        format!("| {clients} | ratio | {} | |", cells.collect::<Vec<_>>().join(" | "))
    }
}

fn millis(time: f64) -> String {
    match time {
        time if time < 10.0 => format!("{time:.2} ms"),
        time if time < 1000.0 => format!("{time:.0} ms"),
        time => format!("{:.2} s", time / 1e3),
    }
}
