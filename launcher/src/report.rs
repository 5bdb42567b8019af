//! The start-up report of a shard, as text for the operator.

use std::fmt::{self, Display, Formatter};

use millrace_model::{Bytes, Count};
use millrace_router::engine::{PromptHandling, Ready};

/// Displays the model, its memory and its start-up times; with several shards, those of the first.
pub(crate) struct StartReport<'a>(pub(crate) &'a Ready);

impl Display for StartReport<'_> {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Ready { model_type, dtype, device, parameters, block_size, num_blocks, .. } = self.0;
        write!(f, "{model_type}, {} parameters as {dtype}", Count(*parameters as usize))?;
        if !self.0.quantize.is_empty() {
            write!(f, ", matrices of layers as {}", self.0.quantize)?;
        }
        if !self.0.head.is_empty() {
            write!(f, ", head as {}", self.0.head)?;
        }
        writeln!(f, " on {device}")?;
        let bytes = |bytes: u64| Bytes(bytes as usize);
        if self.0.world_size > 1 {
            let share = bytes(self.0.bytes_read);
            writeln!(
                f,
                "  on each of {} shards, {share} of the checkpoint read by the first:",
                self.0.world_size
            )?;
        }
        for item in &self.0.memory {
            writeln!(f, "  {:<28} {:>11}", item.name, bytes(item.bytes))?;
        }
        let total = self.0.memory.iter().map(|item| item.bytes).sum();
        write!(f, "  {:<28} {:>11}", "total", bytes(total))?;
        match self.0.free_bytes {
            0 => writeln!(f)?,
            free => writeln!(f, " of {} free", bytes(free))?,
        }
        for item in &self.0.host_memory {
            writeln!(f, "  {:<28} {:>11}", format!("{} on the CPU", item.name), bytes(item.bytes))?;
        }
        if !self.0.host_memory.is_empty() {
            let total = self.0.host_memory.iter().map(|item| item.bytes).sum();
            writeln!(f, "  {:<28} {:>11}", "total on the CPU", bytes(total))?;
        }
        writeln!(
            f,
            "  {} tokens of KV cache as {} in {num_blocks} blocks of {block_size}; up to {} sequences of up to {} tokens",
            u64::from(*num_blocks) * u64::from(*block_size),
            self.0.kv_cache_dtype,
            self.0.max_sequences,
            self.0.max_sequence_tokens,
        )?;
        match self.0.prompt_handling() {
            PromptHandling::Shared => {}
            PromptHandling::Unshared if self.0.state_checkpoints > 0 => writeln!(
                f,
                "  prompts with the same prefix are shared at up to {} checkpoints of recurrent states",
                self.0.state_checkpoints
            )?,
            PromptHandling::Unshared => writeln!(
                f,
                "  prompts are not shared: recurrent layers have state outside of the KV cache, so the prefix cache is off"
            )?,
            PromptHandling::Whole => writeln!(
                f,
                "  prompts are computed whole: attention is bidirectional, so the prefix cache is off"
            )?,
        }
        if !self.0.draft_model.is_empty() {
            let micros = self.0.draft_micros as f64 / 1e3;
            writeln!(f, "  draft model: {}, {micros:.1} ms for a guess", self.0.draft_model)?;
        }
        if !self.0.exchange.is_empty() {
            writeln!(f, "  the shards exchange activations over {}", self.0.exchange)?;
        }
        write!(f, "start-up")?;
        for phase in &self.0.phases {
            write!(f, "\n  {:<28} {:>8.1} ms", phase.name, phase.micros as f64 / 1e3)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_model_that_shares_no_prompts_says_so() {
        let report = |handling: PromptHandling| {
            StartReport(&Ready { prompt_handling: handling.into(), ..Ready::default() }).to_string()
        };
        assert!(!report(PromptHandling::Shared).contains("prompts"));
        assert!(report(PromptHandling::Unshared).contains("prompts are not shared: recurrent layers"));
        assert!(report(PromptHandling::Whole).contains("prompts are computed whole"));
    }

    #[test]
    fn a_draft_model_is_shown_with_the_time_of_its_guesses() {
        let ready =
            Ready { draft_model: "llama, 162 M parameters".into(), draft_micros: 8140, ..Ready::default() };
        let text = StartReport(&ready).to_string();
        assert!(text.contains("  draft model: llama, 162 M parameters, 8.1 ms for a guess\n"), "{text}");
        assert!(!StartReport(&Ready::default()).to_string().contains("draft"));
    }

    #[test]
    fn the_total_is_below_its_parts() {
        let item = |name: &str, bytes| millrace_router::engine::MemoryItem { name: name.into(), bytes };
        let ready = Ready {
            memory: vec![item("weights", 3 << 20), item("KV cache", 1 << 20)],
            num_blocks: 4,
            block_size: 16,
            free_bytes: 5 << 30,
            ..Ready::default()
        };
        let text = StartReport(&ready).to_string();
        assert!(text.contains("total                           4.00 MiB of 5.00 GiB free\n"), "{text}");
        assert!(!text.contains("on the CPU"), "{text}");
        let split = Ready { host_memory: vec![item("weights", 5 << 20), item("KV cache", 1 << 20)], ..ready };
        let of_both = StartReport(&split).to_string();
        assert!(of_both.contains("weights on the CPU              5.00 MiB\n"), "{of_both}");
        assert!(of_both.contains("total on the CPU                6.00 MiB\n"), "{of_both}");
        assert!(text.contains("64 tokens of KV cache as  in 4 blocks of 16"), "{text}");
    }
}
