use millrace_kernels::{Activation, MatrixFormat, ProductShape, QkvLayout, RopeStyle};
use proptest::prelude::*;

use super::*;
use crate::model::{LayerSpec, MlpSpec, Quantize, RopeScaling, RopeTable, Slot};

/// Two layers of 2 * 2 * 4 cached elements per token.
pub(crate) fn spec() -> DecoderSpec {
    let layer = LayerSpec {
        qkv: QkvLayout { heads: 4, kv_heads: 2, head_dim: 4 },
        qkv_bias: true,
        head_norm: false,
        rope: Some(0),
        score_scale: 0.5,
        window: None,
        out_bias: false,
        mlp: MlpSpec { width: 32, act: Activation::Silu, up_bias: false, down_bias: false },
    };
    let rope = RopeTable { style: RopeStyle::Half, rotary_dim: 4, theta: 1e4, scaling: RopeScaling::Default };
    DecoderSpec {
        model_type: "llama".into(),
        vocab: 100,
        vocab_rows: 0..100,
        hidden: 16,
        max_positions: 1000,
        norm_eps: 1e-5,
        ropes: vec![rope],
        layers: vec![layer.clone(), layer],
        tied_head: true,
    }
}

fn wish() -> Wish {
    Wish {
        weights: DType::F16.into(),
        kv_dtype: DType::F16,
        max_total_tokens: None,
        max_batch_total_tokens: None,
        max_step_tokens: 8,
        max_sequences: 4,
        ranks: 1,
        block_size: 16,
        free: Some(1 << 20),
        fraction: 0.5,
    }
}

fn plan_of(wish: &Wish) -> Result<Plan, PlanError> {
    plan(&spec(), wish, &Unpadded)
}

/// A device that keeps something of each block for its steps.
struct Growing;

impl Device for Growing {
    fn matrix_bytes(&self, out: usize, cols: usize, format: MatrixFormat) -> usize {
        Unpadded.matrix_bytes(out, cols, format)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        Unpadded.kv_bytes(spec)
    }

    fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
        0
    }

    fn step_bytes(&self, size: &millrace_kernels::StepSize<'_>) -> usize {
        300 * size.blocks
    }
}

#[test]
fn what_grows_with_the_pool_leaves_it_less() {
    let wish = Wish { free: Some(200_000), ..wish() };
    let found = plan(&spec(), &wish, &Growing).unwrap();
    let blocks = found.limits.num_blocks;
    assert!(found.footprint.total() <= 100_000 && blocks < plan_of(&wish).unwrap().limits.num_blocks);
    let more = Limits { num_blocks: blocks + 1, ..found.limits };
    assert!(footprint(&spec(), DType::F16, &more, 1, &Growing).total() > 100_000);
}

#[test]
fn every_byte_is_counted() {
    let limits = Limits {
        max_step_tokens: 8,
        max_sequences: 4,
        max_sequence_tokens: 100,
        block_size: 16,
        num_blocks: 9,
        kv_dtype: DType::F16,
    };
    let found = footprint(&spec(), DType::F16, &limits, 1, &Unpadded);
    let matrices = 100 * 16 + 2 * (32 * 16 + 16 * 16 + 64 * 16 + 16 * 32);
    let vectors = 16 + 2 * (16 + 32 + 16);
    let expected = Footprint {
        weights: 2 * matrices + 4 * vectors,
        activations: 4 * (8 * (3 * 16 + 32 + 16 + 64 + 32) + 4 * 16),
        logits: 4 * 4 * 100,
        step: 0,
        rope_tables: 4 * 100 * 2 * 2,
        slot_table: 4 * 4 * (100 + 1 + 7 + 4),
        kv_pool: 9 * 16 * 2 * 2 * 2 * 4 * 2,
        overheads: Overheads::default(),
    };
    assert_eq!(found, expected);
    assert_eq!(kv_bytes_per_token(&spec(), DType::F32, &Unpadded), 2 * 2 * 2 * 4 * 4);
    assert_eq!(spec().parameters(), matrices + vectors);
}

/// One byte for each number of the layers' products, and a factor for each of their rows; embedding and vectors are as before.
#[test]
fn layers_are_kept_in_fewer_bits() {
    let storage = Storage { dtype: DType::F16, quantize: Some(Quantize::Fp8) };
    let (numbers, rows) = (2 * (32 * 16 + 16 * 16 + 64 * 16 + 16 * 32), 2 * (32 + 16 + 64 + 16));
    let dense = weight_bytes(&spec(), DType::F16, &Unpadded);
    assert_eq!(weight_bytes(&spec(), storage, &Unpadded), dense - numbers + 4 * rows);
    assert_eq!(storage.matrix(Slot::Head), MatrixFormat::Dense(DType::F16));
}

#[test]
fn a_pool_without_a_size_takes_what_can_ever_be_used() {
    let found = plan_of(&wish()).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (1000, 4 * 63));
}

#[test]
fn sequences_are_shortened_to_what_fits_unless_their_length_was_asked_for() {
    let tight = Wish { free: Some(120_000), ..wish() };
    let found = plan_of(&tight).unwrap();
    let longest = found.limits.max_sequence_tokens;
    assert!((16..1000).contains(&longest), "{longest}");
    assert!(found.limits.num_blocks * 16 >= longest);
    assert!(found.footprint.total() <= 60_000);

    let asked = Wish { max_total_tokens: Some(1000), ..tight };
    let error = plan_of(&asked).unwrap_err().to_string();
    assert_eq!(
        error,
        "not enough memory: weights 12.69 KiB + workspace 40.12 KiB leave 5.78 KiB of 58.59 KiB for the KV cache, which needs 63.00 KiB \
         for one sequence of 1000 tokens; lower --max-batch-total-tokens, --max-total-tokens or --max-batch-prefill-tokens, \
         choose a smaller --dtype or --kv-cache-dtype, or free memory"
    );
}

#[test]
fn too_little_memory_for_one_block_is_refused() {
    let error = plan_of(&Wish { free: Some(20_000), ..wish() }).unwrap_err().to_string();
    assert!(error.contains("are more than 9.77 KiB and leave nothing"), "{error}");
    assert!(error.contains("one sequence of 16 tokens"), "{error}");
}

#[test]
fn a_given_pool_must_hold_the_longest_sequence_asked_for() {
    let given = Wish { max_batch_total_tokens: Some(200), ..wish() };
    let found = plan_of(&given).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (208, 13));
    let error = plan_of(&Wish { max_total_tokens: Some(500), ..given }).unwrap_err();
    assert_eq!(error, PlanError::PoolTooSmall { longest: 500, pool: 208 });
    let exact = Wish { max_total_tokens: Some(201), max_batch_total_tokens: Some(201), ..wish() };
    assert_eq!(plan_of(&exact).unwrap().limits.max_sequence_tokens, 201);
}

#[test]
fn a_given_pool_needs_no_knowledge_of_the_memory_but_uses_it() {
    let given = Wish { max_batch_total_tokens: Some(4000), free: None, ..wish() };
    assert_eq!(plan_of(&given).unwrap().limits.num_blocks, 250);
    let error = plan_of(&Wish { free: Some(100_000), ..given }).unwrap_err().to_string();
    assert!(error.contains("needs 250.00 KiB for 4000 tokens"), "{error}");
}

#[test]
fn without_any_knowledge_the_pool_is_of_a_modest_size() {
    let long = DecoderSpec { max_positions: 100_000, ..spec() };
    let blind = Wish { free: None, ..wish() };
    let found = plan(&long, &blind, &Unpadded).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (8192, 512));
    let asked = Wish { max_total_tokens: Some(20_000), ..blind };
    let found = plan(&long, &asked, &Unpadded).unwrap().limits;
    assert_eq!((found.max_sequence_tokens, found.num_blocks), (20_000, 1250));
}

#[test]
fn zeros_are_refused_by_name() {
    let error = plan_of(&Wish { max_total_tokens: Some(0), ..wish() }).unwrap_err();
    assert_eq!(error.to_string(), "--max-total-tokens must be at least 1");
    assert!(matches!(plan_of(&Wish { block_size: 0, ..wish() }), Err(PlanError::Zero(_))));
}

proptest! {
    /// Whatever is asked for, a plan that is made fits and can hold its longest sequence, and nothing overflows.
    #[test]
    fn plans_fit(
        total in prop::option::of(any::<usize>()),
        batch in prop::option::of(any::<usize>()),
        small in prop::option::of(0usize..5000),
        step in any::<usize>(), step_shift in 0u32..64,
        sequences in any::<usize>(), sequences_shift in 0u32..64,
        free in prop::option::of(0usize..4_000_000),
    ) {
        let wish = Wish {
            max_total_tokens: small.or(total),
            max_batch_total_tokens: batch.map(|batch| batch % 100_000),
            max_step_tokens: step >> step_shift,
            max_sequences: sequences >> sequences_shift,
            free,
            ..wish()
        };
        if let Ok(plan) = plan_of(&wish) {
            let limits = plan.limits;
            prop_assert!(limits.max_sequence_tokens >= 1 && limits.num_blocks >= limits.table_blocks());
            prop_assert!(free.is_none_or(|free| plan.footprint.total() <= free));
            prop_assert!(wish.max_total_tokens.is_none_or(|most| limits.max_sequence_tokens <= most));
        }
    }
}
