//! The split of a model's layers between a GPU and the CPU, as a table.

use std::fmt::{self, Display, Formatter};

use millrace_backend::KvFormat;

use super::{BLOCK_SIZE, Workload};
use crate::description::{DecoderSpec, WeightStorage};
use crate::memory_plan::{
    Footprint, HostRequest, MemoryPlan, PlanError, PlanRequest, UnpaddedDevice, plan_split,
};
use crate::{AdapterLimits, Bytes};

/// The layers that a GPU holds in a given number of bytes, and the memory on both sides.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSplitEstimate {
    /// Bytes that may be taken of the GPU.
    pub gpu_memory: usize,
    /// The plan for devices without padding. The CPU's memory is taken to be enough.
    pub plan: MemoryPlan,
    layers: usize,
}

impl LayerSplitEstimate {
    /// Splits the layers of `spec` as a server does with `--gpu-memory`, for the sequences and the
    /// prompt tokens of `load` in a step. The KV cache has room for `sequences` sequences of the
    /// longest context.
    ///
    /// # Errors
    /// If the GPU cannot hold one layer.
    pub fn new(
        spec: &DecoderSpec,
        storage: &WeightStorage,
        kv_format: KvFormat,
        gpu_memory: usize,
        (load, sequences): (&Workload, usize),
    ) -> Result<Self, PlanError> {
        let longest =
            load.contexts.iter().copied().max().unwrap_or(spec.max_positions).min(spec.max_positions);
        let pool = longest.next_multiple_of(BLOCK_SIZE).saturating_mul(sequences);
        let request = PlanRequest {
            weights: storage.clone(),
            kv_format,
            max_total_tokens: Some(longest),
            max_batch_total_tokens: Some(pool),
            max_step_tokens: load.prefill_tokens.saturating_add(load.batch),
            max_sequences: load.batch,
            ranks: 1,
            block_size: BLOCK_SIZE,
            free: None,
            fraction: 1.0,
            pool_bound: None,
            state_checkpoints: None,
            max_drafts: 0,
            adapters: AdapterLimits::NONE,
            draft_model: None,
        };
        let on_host = HostRequest {
            device_bytes: gpu_memory,
            weights: storage.clone(),
            free: None,
            fraction: 1.0,
            pool_bound: None,
            host: &UnpaddedDevice,
        };
        let plan = plan_split(spec, &request, &UnpaddedDevice, &on_host)?;
        Ok(LayerSplitEstimate { gpu_memory, plan, layers: spec.layers.len() })
    }
}

impl Display for LayerSplitEstimate {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let MemoryPlan { limits, footprint: gpu, host, .. } = self.plan;
        let (on_cpu, cpu) = host.map_or((0, Footprint::default()), |host| (host.layers, host.footprint));
        writeln!(f, "\nSplit between a GPU, of which {} may be taken, and the CPU", Bytes(self.gpu_memory))?;
        let mut row = |name: &str, gpu: String, cpu: String| writeln!(f, "  {name:<14}{gpu:>12}{cpu:>12}");
        row("", "GPU".into(), "CPU".into())?;
        row("layers", (self.layers - on_cpu).to_string(), on_cpu.to_string())?;
        for (name, bytes) in [
            ("weights", [gpu.weights, cpu.weights]),
            ("workspace", [gpu.workspace(), cpu.workspace()]),
            ("KV cache", [gpu.kv_pool, cpu.kv_pool]),
            ("total", [gpu.total(), cpu.total()]),
        ] {
            let [gpu, cpu] = bytes.map(|bytes| Bytes(bytes).to_string());
            row(name, gpu, cpu)?;
        }
        writeln!(
            f,
            "  for {} sequences and {} prompt tokens in a step, sequences of up to {} tokens, and {} tokens of KV cache",
            limits.max_sequences,
            limits.max_step_tokens - limits.max_sequences,
            limits.max_sequence_tokens,
            limits.num_blocks * limits.block_size,
        )
    }
}
