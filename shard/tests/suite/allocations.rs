//! Tests that a step allocates nothing once a step of its size has been run.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use crate::common::{MemoryWeights, fixed_spec, limits};
use millrace_backend::{
    ExpertGroups, Gating, GroupScore, MlpKind, RouterScores, RouterSpec, Sampled, SeqRow, StepInput,
};
use millrace_cpu::{Cpu, CpuOptions};
use millrace_model::{DecoderSpec, ExpertsSpec, Mlp, SharedExpert};
use millrace_numbers::DType;
use millrace_proto::{Admission, Row, Sampling, Step};
use millrace_shard::decoder::{Decoder, HostLayers, ModelPart, Weights};
use millrace_shard::state::{Batch, SlotTable};

thread_local! {
    static ALLOCATIONS: Cell<usize> = const { Cell::new(0) };
}

/// Counts the allocations of each thread.
struct Counting;

// SAFETY: every call is passed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        // SAFETY: as the caller promises.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: as the caller promises.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Returns a step of two sequences: first a prompt of 16 tokens each, then single tokens. A step
/// appends blocks when it needs them.
fn step(position: u32) -> Step {
    let (start, count) = if position == 0 { (0, 16) } else { (15 + position, 1) };
    let row = |slot: u32| {
        let new_blocks = match start {
            0 => vec![slot],
            start if start % 16 == 0 => vec![slot + start / 8],
            _ => vec![],
        };
        Row { slot, start, count, new_blocks, sample: true, ..Row::default() }
    };
    let sampling = Some(Sampling { repetition_penalty: 1.0, ..Sampling::default() });
    let admission = |slot| Admission {
        slot,
        tokens: vec![3; 16],
        prompt_len: 16,
        sampling: sampling.clone(),
        ..Default::default()
    };
    let admit = if position == 0 { vec![admission(0), admission(1)] } else { vec![] };
    Step { id: u64::from(position), admit, rows: vec![row(0), row(1)], ..Step::default() }
}

#[test]
fn steps_allocate_nothing() {
    let mut spec = fixed_spec();
    let router = RouterSpec {
        experts: 6,
        top_k: 2,
        scores: RouterScores::Sigmoid,
        normalize: true,
        factor: 1.0,
        weighs_inputs: false,
        groups: Some(ExpertGroups { count: 3, chosen: 2, score: GroupScore::TwoBest }),
    };
    let shared = Some(SharedExpert { width: 4, gated: true });
    let experts = ExpertsSpec {
        router,
        router_bias: true,
        choice_bias: true,
        width: 4,
        kind: MlpKind::Gated(Gating::Clamped { alpha: 1.702, limit: 7.0 }),
        up_bias: true,
        down_bias: true,
        shared,
        scales: true,
        own_norms: true,
    };
    spec.layers[1].mlp = Mlp::Experts(experts);
    let weights = MemoryWeights::random(&spec, 3);
    // All layers on one CPU, and the first of two on another one.
    for host_layers in [0, 1] {
        assert_steps_allocate_nothing(&spec, &weights, host_layers);
    }
    assert!(ALLOCATIONS.get() > 0, "nothing is counted");
}

/// Runs steps of the model with its first `host_layers` layers on a CPU beside the decoder's.
fn assert_steps_allocate_nothing(spec: &DecoderSpec, weights: &MemoryWeights, host_layers: usize) {
    let limits = limits(DType::F32);
    let cpu = || Cpu::new(CpuOptions { threads: Some(1), ..CpuOptions::default() }).unwrap();
    let (device, mut ignore) = (cpu(), |_| Ok(()));
    let part = ModelPart { spec, layers: host_layers..spec.layers.len() };
    let of_device = Weights::load(&device, part, weights, DType::F32, 64, &mut ignore).unwrap();
    let mut decoder = Decoder::new(&device, spec.clone(), of_device, &limits, None).unwrap();
    if host_layers > 0 {
        let part = ModelPart { spec, layers: 0..host_layers };
        let host = HostLayers::load(cpu(), &part, weights, DType::F32, &limits, &mut ignore).unwrap();
        decoder = decoder.with_host_layers(host);
    }
    let mut queue = decoder.queue(&device, &limits).unwrap();
    let mut table = SlotTable::new(limits, spec.vocab);
    let mut batch = Batch::new(&limits);
    let chosen = vec![Sampled { token: 1, logprob: 0.0, top: vec![] }; 2];

    let steps: Vec<Step> = (0..40).map(step).collect();
    for (position, step) in steps.iter().enumerate() {
        let before = ALLOCATIONS.get();
        table.apply(step, &mut batch).unwrap();
        let mut rows = [SeqRow::prefill(0, 0..0, &[]); 2];
        for (place, row) in rows.iter_mut().zip(table.seq_rows(&batch)) {
            *place = row;
        }
        let input = StepInput {
            tokens: &batch.tokens,
            rows: &rows,
            outputs: &batch.outputs,
            samples: &[],
            ..StepInput::EMPTY
        };
        drop(decoder.compute(&device, &mut queue, &input).unwrap());
        table.expect(&mut batch);
        table.fill(&mut batch, &chosen);
        let allocations = ALLOCATIONS.get() - before;
        assert!(position == 0 || allocations == 0, "{allocations} allocations in step {position}");
    }
}
