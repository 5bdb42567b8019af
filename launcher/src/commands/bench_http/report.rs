//! Statistics of a measurement and their table.

use std::collections::BTreeMap;
use std::fmt::{Display, Formatter};
use std::time::Duration;

use serde_json::{Value, json};

use super::client::Sample;
use crate::cli::BenchHttpArgs;

/// BenchLoad of a measurement.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum BenchLoad {
    /// A constant number of concurrent requests.
    Concurrency(u32),
    /// A number of requests that start per second.
    Rate(f64),
}

/// One measurement.
#[derive(Debug)]
pub(super) struct Run {
    pub(super) load: BenchLoad,
    pub(super) wall: Duration,
    pub(super) samples: Vec<Sample>,
}

/// Distribution of times in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Spread {
    mean: f64,
    p50: f64,
    p90: f64,
    p95: f64,
    p99: f64,
    max: f64,
}

impl Spread {
    /// Returns `None` if there are no times.
    fn of(times: impl Iterator<Item = Duration>) -> Option<Self> {
        let mut ms: Vec<f64> = times.map(|time| time.as_secs_f64() * 1e3).collect();
        ms.sort_by(f64::total_cmp);
        let max = *ms.last()?;
        // Nearest rank: the smallest value that the given percentage of values does not exceed.
        let rank =
            |percent: f64| ms[((percent / 100.0 * ms.len() as f64).ceil() as usize).clamp(1, ms.len()) - 1];
        let mean = ms.iter().sum::<f64>() / ms.len() as f64;
        Some(Spread { mean, p50: rank(50.0), p90: rank(90.0), p95: rank(95.0), p99: rank(99.0), max })
    }

    fn json(self) -> Value {
        let Spread { mean, p50, p90, p95, p99, max } = self;
        json!({"mean": mean, "p50": p50, "p90": p90, "p95": p95, "p99": p99, "max": max})
    }
}

impl Run {
    fn good(&self) -> impl Iterator<Item = &Sample> {
        self.samples.iter().filter(|sample| sample.error.is_none())
    }

    /// The requests whose answers ended by themselves.
    fn whole(&self) -> impl Iterator<Item = &Sample> {
        self.good().filter(|sample| !sample.is_cut)
    }

    /// The number of requests that got an answer, or a part of one until the end of the
    /// measurement.
    fn answered(&self) -> usize {
        self.good().filter(|sample| sample.first.is_some()).count()
    }

    /// Whether requests failed and none got an answer.
    pub(super) fn has_failed(&self) -> bool {
        self.answered() == 0 && self.samples.iter().any(|sample| sample.error.is_some())
    }

    /// The number of requests whose answers the end of the measurement cut.
    fn cut(&self) -> usize {
        self.good().filter(|sample| sample.is_cut).count()
    }

    /// Returns the name of each figure with its distribution.
    fn spreads(&self) -> [(&'static str, &'static str, Option<Spread>); 4] {
        // The mean of each answer, so that a server that sends several tokens at once has no
        // advantage.
        let per_token = |sample: &Sample| {
            let rest = u32::try_from(sample.tokens.saturating_sub(1)).ok().filter(|&rest| rest > 0)?;
            let last = sample.first? + sample.gaps.iter().sum::<Duration>();
            Some((last - sample.first?) / rest)
        };
        [
            ("ttft_ms", "first token", Spread::of(self.good().filter_map(|sample| sample.first))),
            (
                "itl_ms",
                "between tokens",
                Spread::of(self.good().flat_map(|sample| sample.gaps.iter().copied())),
            ),
            ("tpot_ms", "per token of an answer", Spread::of(self.good().filter_map(per_token))),
            ("e2e_ms", "whole answer", Spread::of(self.whole().map(|sample| sample.total))),
        ]
    }

    fn errors(&self) -> BTreeMap<&str, usize> {
        let mut errors = BTreeMap::new();
        for error in self.samples.iter().filter_map(|sample| sample.error.as_deref()) {
            *errors.entry(error).or_insert(0) += 1;
        }
        errors
    }

    fn per_second(&self, count: u64) -> f64 {
        count as f64 / self.wall.as_secs_f64().max(f64::MIN_POSITIVE)
    }

    fn json(&self) -> Value {
        let load = match self.load {
            BenchLoad::Concurrency(n) => json!({"concurrency": n}),
            BenchLoad::Rate(rate) => json!({"requests_per_second": rate}),
        };
        let tokens = self.good().map(|sample| sample.tokens).sum();
        let prompt_tokens = self.good().map(|sample| sample.prompt_tokens).sum();
        let mut whole = json!({
            "load": load, "seconds": self.wall.as_secs_f64(), "requests": self.samples.len(), "succeeded": self.whole().count(), "cut": self.cut(),
            "first_tokens": self.answered(), "errors": self.errors(), "prompt_tokens": prompt_tokens, "output_tokens": tokens,
            "requests_per_second": self.per_second(self.whole().count() as u64),
            "output_tokens_per_second": self.per_second(tokens),
            "prompt_tokens_per_second": self.per_second(prompt_tokens),
        });
        for (name, _, spread) in self.spreads() {
            whole[name] = spread.map_or(Value::Null, Spread::json);
        }
        whole
    }
}

impl Display for Run {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.load {
            BenchLoad::Concurrency(n) => write!(f, "\n{n} at a time: ")?,
            BenchLoad::Rate(rate) => write!(f, "\n{rate} per second: ")?,
        }
        let tokens = self.good().map(|sample| sample.tokens).sum();
        let cut = match self.cut() {
            0 => String::new(),
            cut => format!(", {cut} cut at the end"),
        };
        writeln!(
            f,
            "{} of {} requests in {:.2} s{cut}, {:.2} requests/s, {:.1} tokens/s",
            self.whole().count(),
            self.samples.len(),
            self.wall.as_secs_f64(),
            self.per_second(self.whole().count() as u64),
            self.per_second(tokens),
        )?;
        writeln!(
            f,
            "  {:<24}{:>10}{:>10}{:>10}{:>10}{:>10}{:>10}",
            "ms", "mean", "p50", "p90", "p95", "p99", "max"
        )?;
        for (_, name, spread) in self.spreads() {
            let Some(Spread { mean, p50, p90, p95, p99, max }) = spread else { continue };
            writeln!(f, "  {name:<24}{mean:>10.2}{p50:>10.2}{p90:>10.2}{p95:>10.2}{p99:>10.2}{max:>10.2}")?;
        }
        for (error, count) in self.errors() {
            writeln!(f, "  {count} × {error}")?;
        }
        Ok(())
    }
}

/// Target of the measurement.
pub(super) fn heading(model: &str, url: &str) -> String {
    format!("{model} at {url}")
}

/// All measurements.
pub(super) fn json(model: &str, args: &BenchHttpArgs, runs: &[Run]) -> Value {
    json!({
        "url": args.url, "model": model, "max_tokens": args.max_tokens, "temperature": args.temperature,
        "prompt_words": if args.prompts.is_some() { Value::Null } else { args.prompt_words.into() },
        "seed": args.seed, "duration": args.duration, "runs": runs.iter().map(Run::json).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ms(times: &[u64]) -> Vec<Duration> {
        times.iter().map(|&time| Duration::from_millis(time)).collect()
    }

    #[test]
    fn percentiles_are_values_that_occurred() {
        let spread = Spread::of((1..=200).map(Duration::from_millis)).unwrap();
        let Spread { mean, p50, p90, p95, p99, max } = spread;
        assert_eq!([p50, p90, p95, p99, max], [100.0, 180.0, 190.0, 198.0, 200.0]);
        assert!((mean - 100.5).abs() < 1e-9);
        let one = Spread::of(ms(&[7]).into_iter()).unwrap();
        assert_eq!([one.p50, one.p99, one.max, one.mean], [7.0; 4]);
        assert_eq!(Spread::of(std::iter::empty()), None);
    }

    #[test]
    fn figures_count_what_was_answered() {
        let good = Sample {
            first: Some(Duration::from_millis(10)),
            gaps: ms(&[5, 15]),
            total: Duration::from_millis(40),
            is_cut: false,
            prompt_tokens: 7,
            tokens: 5,
            error: None,
        };
        let bad = Sample { error: Some("status 429: no".into()), ..Sample::default() };
        let cut = Sample { total: Duration::from_millis(90), is_cut: true, tokens: 0, ..good.clone() };
        let run = Run {
            load: BenchLoad::Concurrency(2),
            wall: Duration::from_secs(2),
            samples: vec![good.clone(), bad.clone(), good, bad, cut],
        };
        let json = run.json();
        assert_eq!([&json["requests"], &json["succeeded"], &json["cut"]], [&json!(5), &json!(2), &json!(1)]);
        assert_eq!(json["e2e_ms"]["max"], json!(40.0), "a cut answer has no duration");
        assert_eq!(json["errors"], json!({"status 429: no": 2}));
        assert_eq!(
            (&json["output_tokens_per_second"], &json["requests_per_second"]),
            (&json!(5.0), &json!(1.0))
        );
        assert_eq!((&json["ttft_ms"]["p50"], &json["itl_ms"]["mean"]), (&json!(10.0), &json!(10.0)));
        // 20 ms for the four tokens after the first one.
        assert_eq!(json["tpot_ms"]["p50"], json!(5.0));
        let text = run.to_string();
        assert!(
            text.contains("2 of 5 requests in 2.00 s, 1 cut at the end")
                && text.contains("2 × status 429: no"),
            "{text}"
        );
    }
}
