//! The comparison of group sizes, as a table with a column for each size.

use std::fmt::{self, Display, Formatter};
use std::time::Duration;

use super::{
    COMPUTE_FRACTION, DEFAULT_LINK_LATENCY, Hardware, LINK_FRACTION, MEMORY_FRACTION, MEMORY_SHARE,
    ShardEstimate, StepEstimate, Workload,
};
use crate::{Bytes, Operations};

/// Estimates of one model for several group sizes, on the same devices with the same work.
#[derive(Debug, Clone, PartialEq)]
pub struct EstimateReport {
    /// The estimates, one for each group size.
    pub shares: Vec<ShardEstimate>,
    /// The known numbers of the devices.
    pub hardware: Hardware,
    /// The work of the devices.
    pub load: Workload,
}

/// Width of a row's name in characters.
const NAME: usize = 24;

/// Width of a value in characters.
const CELL: usize = 13;

/// The value of a row if the model or its KV cache is too large for the device.
const TOO_LARGE: &str = "does not fit";

impl Display for EstimateReport {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        self.write_memory(f)?;
        self.write_decode(f)?;
        self.write_prefill(f)?;
        self.write_assumptions(f)
    }
}

impl EstimateReport {
    fn row(&self, f: &mut Formatter<'_>, name: &str, cell: impl Fn(&ShardEstimate) -> String) -> fmt::Result {
        write!(f, "  {name:<NAME$}")?;
        for share in &self.shares {
            write!(f, " {:>CELL$}", cell(share))?;
        }
        writeln!(f)
    }

    fn write_memory(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nSplit over shards: the memory of the first, which holds the most")?;
        self.row(f, "shards", |share| share.world_size.to_string())?;
        self.row(f, "weights", |share| Bytes(share.weights).to_string())?;
        self.row(f, "all shards' weights", |share| Bytes(share.all_weights).to_string())?;
        self.row(f, "workspace", |share| Bytes(share.workspace(&self.load)).to_string())?;
        self.row(f, "KV per token", |share| Bytes(share.kv_per_token).to_string())?;
        let Some(memory) = self.hardware.memory else { return Ok(()) };
        self.row(f, "room for KV, tokens", |share| match share.kv_tokens(memory, &self.load) {
            Some(tokens) => tokens.to_string(),
            None => TOO_LARGE.to_owned(),
        })
    }

    fn write_decode(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let batch = self.load.batch;
        writeln!(f, "\nDecode step of each shard: one token for each of {batch} sequence{}", plural(batch))?;
        self.write_collectives(f, |share| share.decode(batch, 0))?;
        for &context in &self.load.contexts {
            writeln!(f, "  at {context} tokens of context")?;
            let step = |share: &ShardEstimate| share.decode(batch, context);
            self.write_work(f, "  ", step)?;
            if self.predicts() {
                let tokens = batch.saturating_mul(context);
                self.write_prediction(f, "  time", tokens, step, time)?;
                let rate = |seconds: f64| format!("{:.0}", batch as f64 / seconds);
                self.write_prediction(f, "  tokens per second", tokens, step, rate)?;
            }
        }
        Ok(())
    }

    fn write_prefill(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let tokens = self.load.prefill_tokens;
        writeln!(f, "\nPrefill step of each shard: the first {tokens} token{} of a prompt", plural(tokens))?;
        let step = |share: &ShardEstimate| share.prefill(tokens);
        self.write_collectives(f, step)?;
        self.write_work(f, "", step)?;
        if self.predicts() { self.write_prediction(f, "time", tokens, step, time) } else { Ok(()) }
    }

    fn write_collectives(
        &self,
        f: &mut Formatter<'_>,
        step: impl Fn(&ShardEstimate) -> StepEstimate,
    ) -> fmt::Result {
        self.row(f, "collectives", |share| step(share).collectives.to_string())?;
        self.row(f, "sent (and received)", |share| Bytes(step(share).sent).to_string())
    }

    fn write_work(
        &self,
        f: &mut Formatter<'_>,
        indent: &str,
        step: impl Fn(&ShardEstimate) -> StepEstimate,
    ) -> fmt::Result {
        self.row(f, &format!("{indent}read from memory"), |share| Bytes(step(share).read).to_string())?;
        self.row(f, &format!("{indent}operations"), |share| Operations(step(share).operations).to_string())
    }

    /// Writes a row with the predicted time of a step that needs `tokens` tokens of KV cache.
    fn write_prediction(
        &self,
        f: &mut Formatter<'_>,
        name: &str,
        tokens: usize,
        step: impl Fn(&ShardEstimate) -> StepEstimate,
        text: impl Fn(f64) -> String,
    ) -> fmt::Result {
        self.row(f, name, |share| {
            let room = |memory| share.kv_tokens(memory, &self.load).unwrap_or(0);
            if self.hardware.memory.is_some_and(|memory| room(memory) < tokens.max(1)) {
                return TOO_LARGE.to_owned();
            }
            step(share).seconds(&self.hardware).map_or("unknown".to_owned(), &text)
        })
    }

    /// Returns whether enough numbers are known to predict times of a single device.
    fn predicts(&self) -> bool {
        self.hardware.memory_bandwidth.is_some() && self.hardware.compute.is_some()
    }

    fn write_assumptions(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "\nAssumed")?;
        let Hardware { memory, memory_bandwidth, compute, link_bandwidth, link_latency } = self.hardware;
        if let Some(memory) = memory {
            let share = percent(MEMORY_SHARE);
            writeln!(f, "  {} of memory per device, {share} of which may be filled", Bytes(memory))?;
        }
        writeln!(f, "  all-reduce and all-gather go around a ring")?;
        if !self.predicts() {
            let missing = match (memory_bandwidth, compute) {
                (Some(_), None) => "--compute, which depends on the element type",
                (None, Some(_)) => "--memory-bandwidth",
                _ => "--gpu, or --memory-bandwidth and --compute",
            };
            return writeln!(f, "  no times are predicted without {missing}");
        }
        if let Some(bandwidth) = memory_bandwidth {
            writeln!(f, "  {} of {} GB/s from memory", percent(MEMORY_FRACTION), bandwidth / 1e9)?;
        }
        if let Some(compute) = compute {
            writeln!(f, "  {} of {} TFLOP/s", percent(COMPUTE_FRACTION), compute / 1e12)?;
        }
        if self.shares.iter().any(|share| share.world_size > 1) {
            match link_bandwidth {
                Some(bandwidth) => {
                    let latency = link_latency.unwrap_or(DEFAULT_LINK_LATENCY) * 1e6;
                    let share = percent(LINK_FRACTION);
                    writeln!(
                        f,
                        "  {share} of {} GB/s to other shards, and {latency} µs per collective",
                        bandwidth / 1e9
                    )?;
                }
                None => {
                    writeln!(f, "  the time of several shards is unknown without --gpu or --link-bandwidth")?
                }
            }
        }
        writeln!(
            f,
            "  time = max(read / bandwidth, operations / peak) + collectives; sampling, the traffic"
        )?;
        writeln!(f, "  of activations and the launch of kernels are not in it")
    }
}

fn plural(count: usize) -> &'static str {
    if count == 1 { "" } else { "s" }
}

fn percent(fraction: f64) -> String {
    format!("{:.0}%", fraction * 100.0)
}

/// Formats a time in a suitable unit.
fn time(seconds: f64) -> String {
    match Duration::try_from_secs_f64(seconds) {
        Ok(duration) => format!("{duration:.2?}"),
        Err(_) => "forever".to_owned(),
    }
}
