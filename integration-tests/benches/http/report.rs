//! The table of gaps.

use std::time::Duration;

use crate::load::RunTimes;

/// The heading of the table.
pub(crate) const HEADING: &str = "\
| clients | binary | gap p50 | p99 | max | tokens/s | first token p50 | max | long prompt: first token p50 | max | tokens an arrival | client CPU |
|---|---|---|---|---|---|---|---|---|---|---|---|";

/// The figures of one row.
#[derive(Debug, Clone)]
pub(crate) struct Figures {
    gap: [Option<f64>; 3],
    tokens_per_second: f64,
    first: [Option<f64>; 2],
    prompt: [Option<f64>; 2],
    answered: usize,
    unanswered: Vec<Duration>,
    tokens_per_arrival: f64,
    client_cpu: f64,
}

impl Figures {
    /// Computes the figures of all runs of a binary under one load.
    pub(crate) fn new(times: &RunTimes) -> Self {
        let RunTimes { streams, prompts, seconds, client_cpu } = times;
        Figures {
            gap: [0.5, 0.99, 1.0].map(|part| millis_at(&streams.gaps, part)),
            tokens_per_second: streams.tokens as f64 / seconds,
            first: [0.5, 1.0].map(|part| millis_at(&streams.firsts, part)),
            prompt: [0.5, 1.0].map(|part| millis_at(&prompts.firsts, part)),
            answered: prompts.firsts.len(),
            unanswered: prompts.unanswered.clone(),
            tokens_per_arrival: streams.tokens as f64 / streams.arrivals.max(1) as f64,
            client_cpu: client_cpu / seconds,
        }
    }

    /// Returns the row of a binary.
    pub(crate) fn row(&self, clients: usize, binary: &str) -> String {
        let [p50, p99, max] = self.gap.map(millis);
        let [first, first_max] = self.first.map(millis);
        let [prompt, prompt_max] = self.prompt.map(millis);
        format!(
            "| {clients} | {binary} | {p50} | {p99} | {max} | {:.1} | {first} | {first_max} | {prompt}{} | {prompt_max} | {:.2} | {:.0}% |",
            self.tokens_per_second,
            self.answers(),
            self.tokens_per_arrival,
            100.0 * self.client_cpu,
        )
    }

    /// Returns the row of the ratios of these figures to those of another binary.
    pub(crate) fn ratios(&self, other: &Figures, clients: usize) -> String {
        let ratio = |own: Option<f64>, other: Option<f64>| match own.zip(other) {
            Some((own, other)) if other > 0.0 => format!("{:.2}", own / other),
            _ => "–".to_owned(),
        };
        let cells = [
            ratio(self.gap[0], other.gap[0]),
            ratio(self.gap[1], other.gap[1]),
            ratio(self.gap[2], other.gap[2]),
            ratio(Some(self.tokens_per_second), Some(other.tokens_per_second)),
            ratio(self.first[0], other.first[0]),
            ratio(self.first[1], other.first[1]),
            ratio(self.prompt[0], other.prompt[0]),
            ratio(self.prompt[1], other.prompt[1]),
        ];
        format!("| {clients} | ratio | {} | | |", cells.join(" | "))
    }

    /// Returns how many long prompts have a first token, and the age of the oldest one that has
    /// none.
    fn answers(&self) -> String {
        let all = self.answered + self.unanswered.len();
        match self.unanswered.iter().max() {
            None if all == 0 => String::new(),
            None => format!(" ({all})"),
            Some(oldest) => {
                format!(" ({} of {all}, one waits for {})", self.answered, millis(Some(to_millis(*oldest))))
            }
        }
    }
}

/// Returns the time in milliseconds that a part of the times does not exceed.
fn millis_at(times: &[Duration], part: f64) -> Option<f64> {
    let mut sorted = times.to_vec();
    sorted.sort_unstable();
    let rank = (part * sorted.len() as f64).ceil() as usize;
    sorted.get(rank.max(1) - 1).copied().map(to_millis)
}

fn to_millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

fn millis(time: Option<f64>) -> String {
    match time {
        None => "–".to_owned(),
        Some(time) if time < 10.0 => format!("{time:.2} ms"),
        Some(time) if time < 1000.0 => format!("{time:.0} ms"),
        Some(time) => format!("{:.2} s", time / 1e3),
    }
}
