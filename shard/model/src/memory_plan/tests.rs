use millrace_backend::{KvSpec, ProductShape};
use millrace_numbers::{DType, WeightFormat};
use proptest::prelude::*;

use super::*;
use crate::description::test_spec::spec;
use crate::description::{Quantize, WeightSlot};

fn request() -> PlanRequest {
    PlanRequest {
        weights: DType::F16.into(),
        kv_format: DType::F16.into(),
        max_total_tokens: None,
        max_batch_total_tokens: None,
        max_step_tokens: 8,
        max_sequences: 4,
        ranks: 1,
        block_size: 16,
        free: Some(1 << 20),
        fraction: 0.5,
        pool_bound: None,
        state_checkpoints: None,
        max_drafts: 0,
        draft_model: None,
        adapters: AdapterLimits::NONE,
    }
}

fn plan_of(request: &PlanRequest) -> Result<MemoryPlan, PlanError> {
    plan(&spec(), request, &UnpaddedDevice)
}

/// A device whose state of steps grows with the number of blocks.
struct GrowingDevice;

impl Sizing for GrowingDevice {
    fn matrix_bytes(&self, out: usize, cols: usize, format: WeightFormat) -> usize {
        UnpaddedDevice.matrix_bytes(out, cols, format)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        UnpaddedDevice.kv_bytes(spec)
    }

    fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
        0
    }

    fn step_bytes(&self, size: &millrace_backend::StepSize<'_>) -> usize {
        300 * size.blocks
    }
}

#[test]
fn state_that_grows_with_the_pool_makes_the_pool_smaller() {
    let request = PlanRequest { free: Some(200_000), ..request() };
    let found = plan(&spec(), &request, &GrowingDevice).unwrap();
    let blocks = found.limits.num_blocks;
    assert!(found.footprint.total() <= 100_000 && blocks < plan_of(&request).unwrap().limits.num_blocks);
    let more = ShardLimits { num_blocks: blocks + 1, ..found.limits };
    assert!(footprint(&spec(), DType::F16, &more, 1, &GrowingDevice).total() > 100_000);
}

#[test]
fn every_byte_is_counted() {
    let limits = ShardLimits {
        max_step_tokens: 8,
        max_sequences: 4,
        max_sequence_tokens: 100,
        block_size: 16,
        num_blocks: 9,
        kv_format: DType::F16.into(),
        state_checkpoints: 0,
        max_drafts: 0,
        adapters: AdapterLimits { count: 3, max_loaded: 5, max_rank: 2 },
    };
    let found = footprint(&spec(), DType::F16, &limits, 1, &UnpaddedDevice);
    let matrices = 100 * 16 + 2 * (32 * 16 + 16 * 16 + 64 * 16 + 16 * 32);
    let vectors = 16 + 2 * (16 + 32 + 16);
    // Query, key and value have products of their own, and so have gate and up.
    let adapter = 2 * (6 * (16 + 32) + 2 * (16 + 16) + 4 * (16 + 64) + 2 * (32 + 16));
    let expected = Footprint {
        weights: 2 * matrices + 4 * vectors,
        adapters: 3 * 2 * adapter,
        adapter_copies: 5 * 2 * adapter,
        draft_model: 0,
        activations: 4 * (8 * (3 * 16 + 32 + 16 + 64 + 32 + (2 + 4 + 6)) + 4 * 16),
        logits: 4 * 4 * 100,
        step: 0,
        rope_tables: 4 * 100 * 2 * 2,
        slot_table: 4 * 4 * (100 + 1 + 7 + 4),
        states: 0,
        kv_pool: 9 * 16 * 2 * 2 * 2 * 4 * 2,
        overheads: Overheads::default(),
    };
    assert_eq!(found, expected);
    assert_eq!(kv_bytes_per_token(&spec(), DType::F32.into(), &UnpaddedDevice), 2 * 2 * 2 * 4 * 4);
    assert_eq!(spec().parameters(), matrices + vectors);
}

/// A draft model has weights, a workspace and blocks of its own, which leave fewer blocks for both.
#[test]
fn a_draft_model_is_part_of_the_plan() {
    let draft_model = Some(DraftRequest { spec: spec(), weights: DType::F16.into() });
    let tight = PlanRequest { free: Some(600_000), ..request() };
    let (alone, both) = (plan_of(&tight).unwrap(), plan_of(&PlanRequest { draft_model, ..tight }).unwrap());
    assert_eq!(alone.footprint.draft_model, 0);
    let Footprint { draft_model, weights, kv_pool, .. } = both.footprint;
    assert!(draft_model > weights + kv_pool, "{:?}", both.footprint);
    assert!(both.limits.num_blocks < alone.limits.num_blocks && both.footprint.total() <= 300_000);
    assert!(both.footprint.items().contains(&("draft model", draft_model)));
}

/// A quantized matrix takes one byte per number and one scale per row. Embedding and vectors are
/// not quantized.
#[test]
fn quantized_layers_take_fewer_bytes() {
    let storage = WeightStorage::new(DType::F16, Some(Quantize::Fp8));
    let (numbers, rows) = (2 * (32 * 16 + 16 * 16 + 64 * 16 + 16 * 32), 2 * (32 + 16 + 64 + 16));
    let dense = weight_bytes(&spec(), &DType::F16.into(), &UnpaddedDevice);
    assert_eq!(weight_bytes(&spec(), &storage, &UnpaddedDevice), dense - numbers + 4 * rows);
    assert_eq!(storage.matrix(WeightSlot::Head, 16), WeightFormat::Dense(DType::F16));
    let int8 = WeightStorage::new(DType::F16, Some(Quantize::Int8));
    assert_eq!(
        weight_bytes(&spec(), &int8, &UnpaddedDevice),
        weight_bytes(&spec(), &storage, &UnpaddedDevice)
    );
    assert_eq!(int8.matrix(WeightSlot::Head, 16), WeightFormat::Dense(DType::F16));
}

#[test]
fn a_pool_without_a_size_has_no_more_blocks_than_can_be_used() {
    let found = plan_of(&request()).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (1000, 4 * 63));
}

#[test]
fn sequences_are_shortened_to_fit_unless_a_length_is_requested() {
    let tight = PlanRequest { free: Some(120_000), ..request() };
    let found = plan_of(&tight).unwrap();
    let longest = found.limits.max_sequence_tokens;
    assert!((16..1000).contains(&longest), "{longest}");
    assert!(found.limits.num_blocks * 16 >= longest);
    assert!(found.footprint.total() <= 60_000);

    let asked = PlanRequest { max_total_tokens: Some(1000), ..tight };
    let error = plan_of(&asked).unwrap_err().to_string();
    assert_eq!(
        error,
        "not enough memory: weights 12.69 KiB + workspace 40.12 KiB leave 5.78 KiB of 58.59 KiB for the KV cache, which needs 63.00 KiB \
         for one sequence of 1000 tokens; lower --max-batch-total-tokens, --max-total-tokens, --max-batch-prefill-tokens or --max-batch-size, \
         choose a smaller --dtype or --kv-cache-dtype, or free memory"
    );
}

#[test]
fn too_little_memory_for_one_block_is_refused() {
    let error = plan_of(&PlanRequest { free: Some(20_000), ..request() }).unwrap_err().to_string();
    assert!(error.contains("are more than 9.77 KiB and leave nothing"), "{error}");
    assert!(error.contains("one sequence of 16 tokens"), "{error}");
}

#[test]
fn a_given_pool_must_hold_the_longest_requested_sequence() {
    let given = PlanRequest { max_batch_total_tokens: Some(200), ..request() };
    let found = plan_of(&given).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (208, 13));
    let error = plan_of(&PlanRequest { max_total_tokens: Some(500), ..given }).unwrap_err();
    assert_eq!(error, PlanError::PoolTooSmall { longest: 500, pool: 208 });
    let exact = PlanRequest { max_total_tokens: Some(201), max_batch_total_tokens: Some(201), ..request() };
    assert_eq!(plan_of(&exact).unwrap().limits.max_sequence_tokens, 201);
}

#[test]
fn a_given_pool_is_checked_against_the_memory_if_known() {
    let given = PlanRequest { max_batch_total_tokens: Some(4000), free: None, ..request() };
    assert_eq!(plan_of(&given).unwrap().limits.num_blocks, 250);
    let error = plan_of(&PlanRequest { free: Some(100_000), ..given }).unwrap_err().to_string();
    assert!(error.contains("needs 250.00 KiB for 4000 tokens"), "{error}");
}

#[test]
fn the_pool_has_a_default_size_if_the_memory_is_unknown() {
    let long = DecoderSpec { max_positions: 100_000, ..spec() };
    let unknown = PlanRequest { free: None, ..request() };
    let found = plan(&long, &unknown, &UnpaddedDevice).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (8192, 512));
    let asked = PlanRequest { max_total_tokens: Some(20_000), ..unknown };
    let found = plan(&long, &asked, &UnpaddedDevice).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (20_000, 1250));
}

#[test]
fn zeros_are_refused_by_name() {
    let error = plan_of(&PlanRequest { max_total_tokens: Some(0), ..request() }).unwrap_err();
    assert_eq!(error.to_string(), "--max-total-tokens must be at least 1");
    assert!(matches!(plan_of(&PlanRequest { block_size: 0, ..request() }), Err(PlanError::Zero(_))));
}

#[test]
fn sequences_in_which_a_model_would_choose_keys_are_refused() {
    let choice = KeyChoice { keys: 300, positions: 5000 };
    let choosing = DecoderSpec { max_positions: 300, key_choice: Some(choice), ..spec() };
    let of = |asked| plan(&choosing, &PlanRequest { max_total_tokens: asked, ..request() }, &UnpaddedDevice);
    for asked in [None, Some(300)] {
        assert_eq!(of(asked).unwrap().limits.max_sequence_tokens, 300);
    }
    let error = of(Some(301)).unwrap_err();
    assert_eq!(error, PlanError::ChosenKeys { asked: 301, keys: 300 });
    assert!(!error.is_lack_of_memory());
    let text = error.to_string();
    assert!(text.starts_with("--max-total-tokens 301: this model chooses 300 keys"), "{text}");
}

/// Keys and values take 64 bytes per token.
#[test]
fn a_pool_without_a_size_is_bounded_on_a_shared_memory() {
    let blocks = |bound: PoolBound, ranks: usize, request: PlanRequest| {
        plan_of(&PlanRequest { pool_bound: Some(bound), ranks, ..request }).map(|plan| plan.limits.num_blocks)
    };
    let (share, bytes) =
        (PoolBound { fraction: 0.125, bytes: usize::MAX }, PoolBound { fraction: 1.0, bytes: 200_000 });
    assert_eq!(blocks(share, 1, request()), Ok((1 << 17) / 1024));
    assert_eq!(blocks(bytes, 1, request()), Ok(200_000 / 1024));
    assert_eq!(blocks(bytes, 2, request()), Ok(100_000 / 1024));
    // One sequence of the greatest length always has room, and a given size is not bounded.
    let none = PoolBound { fraction: 0.0, bytes: 0 };
    assert_eq!(blocks(none, 1, request()), Ok(63));
    assert_eq!(blocks(none, 1, PlanRequest { max_batch_total_tokens: Some(1600), ..request() }), Ok(100));
    // The bound adds to the budget for everything and does not replace it.
    let little = PlanRequest { free: Some(20_000), ..request() };
    assert!(matches!(blocks(share, 1, little), Err(PlanError::NoRoom { .. })));
}

proptest! {
    /// Every plan fits into the memory and can hold its longest sequence, and nothing overflows.
    #[test]
    fn plans_fit(
        total in prop::option::of(any::<usize>()),
        batch in prop::option::of(any::<usize>()),
        small in prop::option::of(0usize..5000),
        step in any::<usize>(), step_shift in 0u32..64,
        sequences in any::<usize>(), sequences_shift in 0u32..64,
        free in prop::option::of(0usize..4_000_000),
        bound in prop::option::of(0usize..1_000_000),
    ) {
        let request = PlanRequest {
            max_total_tokens: small.or(total),
            max_batch_total_tokens: batch.map(|batch| batch % 100_000),
            max_step_tokens: step >> step_shift,
            max_sequences: sequences >> sequences_shift,
            free,
            pool_bound: bound.map(|bytes| PoolBound { fraction: 0.25, bytes }),
            ..request()
        };
        if let Ok(plan) = plan_of(&request) {
            let limits = plan.limits;
            prop_assert!(limits.max_sequence_tokens >= 1 && limits.num_blocks >= limits.table_blocks());
            prop_assert!(free.is_none_or(|free| plan.footprint.total() <= free));
            let unbounded = free.is_none() || request.max_batch_total_tokens.is_some();
            let one_sequence = limits.max_sequence_tokens.div_ceil(limits.block_size);
            prop_assert!(unbounded || limits.num_blocks == one_sequence
                || bound.is_none_or(|bytes| plan.footprint.kv_pool <= bytes));
            prop_assert!(request.max_total_tokens.is_none_or(|most| limits.max_sequence_tokens <= most));
        }
    }
}
