use millrace_backend::Activation;
use millrace_formats::Source;
use millrace_numbers::DType;

use super::*;
use crate::description::{PerLayerEmbedding, Quantize};
use crate::families::{self, Overrides};

const LLAMA_3_8B: Source = Source::Memory(&[(
    "config.json",
    br#"{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "intermediate_size": 14336, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 8192, "hidden_act": "silu", "tie_word_embeddings": false,
    "torch_dtype": "bfloat16"}"#,
)]);

const LLAMA_3_70B: Source = Source::Memory(&[(
    "config.json",
    br#"{"model_type": "llama", "hidden_size": 8192, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "intermediate_size": 28672, "vocab_size": 128256, "rms_norm_eps": 1e-5,
    "rope_theta": 500000.0, "max_position_embeddings": 8192, "hidden_act": "silu", "tie_word_embeddings": false,
    "torch_dtype": "bfloat16"}"#,
)]);

/// One layer: 4 heads of 8 on 2 KV heads, width 12, 61 words, biases everywhere, a window of 3
/// tokens.
fn small() -> DecoderSpec {
    let mut spec = spec(Source::Memory(&[(
        "config.json",
        br#"{"model_type": "llama", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 12, "vocab_size": 61, "rms_norm_eps": 1e-5,
        "max_position_embeddings": 64, "hidden_act": "silu", "attention_bias": true, "mlp_bias": true,
        "tie_word_embeddings": false, "torch_dtype": "float32"}"#,
    )]));
    spec.layers[0].attention.slide(3);
    spec
}

fn spec(source: Source) -> DecoderSpec {
    families::load_dummy(&source, &Overrides::default()).unwrap().spec
}

fn share(source: Source, world_size: usize) -> ShardEstimate {
    ShardEstimate::new(&spec(source), world_size, DType::BF16, DType::BF16).unwrap()
}

fn load(batch: usize, prefill_tokens: usize, contexts: &[usize]) -> Workload {
    Workload { batch, prefill_tokens, contexts: contexts.to_vec() }
}

/// Hardware with round numbers: after the fractions 8 GB/s of memory, 6 GFLOP/s, 80 MB/s of link.
const ROUND: Hardware = Hardware {
    memory: None,
    memory_bandwidth: Some(10e9),
    compute: Some(10e9),
    link_bandwidth: Some(1e8),
    link_latency: Some(1e-3),
};

#[test]
fn a_small_model_is_counted_by_hand() {
    let whole = ShardEstimate::new(&small(), 1, DType::F32, DType::F32).unwrap();
    // Embedding and head; the projections; their biases; three norms.
    let matrices = 2 * 61 * 32 + (32 + 2 * 16) * 32 + 32 * 32 + 2 * 12 * 32 + 32 * 12;
    let vectors = 64 + 32 + 24 + 32 + 3 * 32;
    assert_eq!((whole.weights, whole.all_weights), (4 * (matrices + vectors), 4 * (matrices + vectors)));
    assert_eq!(whole.kv_per_token, 2 * 2 * 8 * 4);

    // Alone a rank needs nobody.
    let step = whole.decode(5, 2);
    assert_eq!((step.collectives, step.sent), (0, 0));
    // The embedding is looked up; five sequences have two tokens each.
    assert_eq!(step.read, 4 * (matrices - 61 * 32 + vectors) + 5 * 2 * 128);
    let products = 5 * 2 * (matrices - 61 * 32);
    assert_eq!(step.operations, (products + 5 * 4 * 4 * 8 * 2) as f64);
    // The window shows three of nine tokens.
    assert_eq!(whole.decode(5, 9).read - step.read, 5 * 128);

    // Only the last of four tokens has logits. They see 1 + 2 + 3 + 3 tokens.
    let prefill = whole.prefill(4);
    let in_layer = matrices - 2 * 61 * 32;
    assert_eq!(prefill.operations, (4 * 2 * in_layer + 2 * 61 * 32 + 4 * 4 * 8 * 9) as f64);
    assert_eq!(prefill.read, 4 * (matrices - 61 * 32 + vectors) + 4 * 128);
}

#[test]
fn per_layer_embeddings_are_looked_up() {
    let (spec, table) = (small(), PerLayerEmbedding { rows: 61, width: 3, act: Activation::Silu });
    let layers = spec.layers.len();
    let with = DecoderSpec { per_layer: Some(table), ..spec.clone() };
    let [plain, with] =
        [spec, with].map(|spec| ShardEstimate::new(&spec, 1, DType::F32, DType::F32).unwrap());
    let (projection, of_layer) = (layers * 3 * 32, 2 * 3 * 32);
    let multiplied = projection + layers * of_layer;
    let vectors = 3 + layers * 32;
    assert_eq!(with.weights - plain.weights, 4 * (61 * layers * 3 + multiplied + vectors));
    let (plain, with) = (plain.decode(5, 2), with.decode(5, 2));
    assert_eq!(with.read - plain.read, 4 * (multiplied + vectors));
    assert_eq!(with.operations - plain.operations, (5 * 2 * multiplied) as f64);
}

#[test]
fn a_small_model_in_four_shares_is_counted_by_hand() {
    let quarter = ShardEstimate::new(&small(), 4, DType::F32, DType::F32).unwrap();
    // Sixteen words each, of which the last three are padding; one query and one KV head; three
    // features of the MLP.
    let matrices = 2 * 16 * 32 + (8 + 2 * 8) * 32 + 32 * 8 + 2 * 3 * 32 + 32 * 3;
    let vectors = 24 + 6 + 3 * 32;
    let row_biases = 2 * 32;
    assert_eq!(quarter.weights, 4 * (matrices + vectors + row_biases));
    assert_eq!(quarter.all_weights, 4 * (4 * (matrices + vectors) + row_biases));
    assert_eq!(quarter.kv_per_token, 2 * 8 * 4);

    // Three all-reduces of two rows, an all-gather, a broadcast.
    let step = quarter.decode(2, 1);
    assert_eq!(step.collectives, 5);
    assert_eq!(step.sent, 3 * (2 * 3 * (2 * 32 * 4) / 4) + 3 * (2 * 16 * 4) + 2 * 4);
    // The prompt's rows all take part in the all-reduces, and one of them has logits.
    let prefill = quarter.prefill(10);
    assert_eq!(prefill.collectives, 5);
    assert_eq!(prefill.sent, 3 * (2 * 3 * (10 * 32 * 4) / 4) + 3 * (16 * 4) + 4);
}

#[test]
fn llama_3_8b_has_its_known_size() {
    let whole = share(LLAMA_3_8B, 1);
    // 8,030,261,248 weights, of which 266,240 are in norms and kept in single precision.
    assert_eq!(whole.weights, 2 * (8_030_261_248 - 266_240) + 4 * 266_240);
    assert_eq!(whole.kv_per_token, 131_072);
    let step = whole.decode(1, 1024);
    assert_eq!(step.read, 15_010_381_824 + 1024 * 131_072);
    assert_eq!(step.operations, 15_009_316_864.0 + 536_870_912.0);
}

#[test]
fn llama_3_70b_is_shared_by_eight() {
    let whole = share(LLAMA_3_70B, 1);
    assert_eq!(whole.weights, 141_110_050_816);
    let eighth = share(LLAMA_3_70B, 8);
    // An eighth of the matrices, and all norms.
    assert_eq!(eighth.weights, 141_104_775_168 / 8 + 5_275_648);
    assert_eq!((whole.kv_per_token, eighth.kv_per_token), (327_680, 40_960));

    let step = eighth.decode(1, 1);
    assert_eq!(step.collectives, 163);
    // 161 all-reduces of 16 KiB, seven parts of the logits, a token id.
    assert_eq!(step.sent, 161 * 28_672 + 7 * 16_032 * 4 + 4);
}

#[test]
fn what_ranks_hold_is_the_whole_and_what_is_repeated() {
    let whole = share(LLAMA_3_70B, 1);
    let norms = 5_275_648;
    for world_size in [2, 4, 8] {
        let shared = share(LLAMA_3_70B, world_size);
        assert_eq!(shared.all_weights, whole.weights + (world_size - 1) * norms, "{world_size}");
        assert_eq!(shared.kv_per_token * world_size, whole.kv_per_token);
    }
    // With sixteen ranks every KV head is held twice, in the projections as in the cache.
    let sixteen = share(LLAMA_3_70B, 16);
    let kv_projections = 80 * 2 * 8 * 128 * 8192 * 2;
    assert_eq!(sixteen.all_weights, whole.weights + 15 * norms + kv_projections);
    assert_eq!(sixteen.kv_per_token * 16, 2 * whole.kv_per_token);
}

#[test]
fn sizes_that_do_not_fit_are_refused_with_those_that_do() {
    for world_size in [0, 3] {
        let refusal =
            ShardEstimate::new(&spec(LLAMA_3_8B), world_size, DType::BF16, DType::BF16).unwrap_err();
        assert_eq!(refusal.works, [1, 2, 4, 8, 16, 32]);
    }
}

#[test]
fn a_step_takes_the_longer_of_reading_and_computing_and_then_its_collectives() {
    let reading = StepEstimate { read: 8_000_000_000, operations: 3e9, collectives: 0, sent: 0 };
    assert!((reading.seconds(&ROUND).unwrap() - 1.0).abs() < 1e-9);
    let computing = StepEstimate { operations: 12e9, ..reading };
    assert!((computing.seconds(&ROUND).unwrap() - 2.0).abs() < 1e-9);
    let exchanging = StepEstimate { collectives: 10, sent: 40_000_000, ..computing };
    assert!((exchanging.seconds(&ROUND).unwrap() - 2.51).abs() < 1e-9);

    // What is not known cannot be guessed, unless it does not matter.
    let no_link = Hardware { link_bandwidth: None, ..ROUND };
    assert!(exchanging.seconds(&no_link).is_none() && computing.seconds(&no_link).is_some());
    assert!(reading.seconds(&Hardware { compute: None, ..ROUND }).is_none());
    assert!(reading.seconds(&Hardware { memory_bandwidth: None, ..ROUND }).is_none());
}

#[test]
fn memory_bounds_a_decode_step_and_arithmetic_a_prompt() {
    let h200 = GPUS.iter().find(|gpu| gpu.name == "h200").unwrap().hardware(DType::BF16);
    let whole = share(LLAMA_3_8B, 1);
    // 15.01 GB at 3.84 TB/s.
    let decode = whole.decode(1, 0).seconds(&h200).unwrap();
    assert!((decode - 3.909e-3).abs() < 1e-6, "{decode}");
    // 2048 times 13.96 GFLOP, 1.10 TFLOP of attention and one row of the head at 593 TFLOP/s.
    let prefill = whole.prefill(2048).seconds(&h200).unwrap();
    assert!((prefill - 50.03e-3).abs() < 0.02e-3, "{prefill}");
}

#[test]
fn room_for_the_cache_is_what_weights_and_workspace_leave() {
    let load = load(8, 512, &[1024, 8192]);
    let whole = share(LLAMA_3_8B, 1);
    let taken = whole.weights + whole.workspace(&load);
    let memory = |usable: usize| (usable as f64 / MEMORY_SHARE).ceil() as usize;
    assert_eq!(whole.kv_tokens(memory(taken + 100 * 131_072), &load), Some(100));
    assert_eq!(whole.kv_tokens(memory(taken + 100), &load), None);
    assert_eq!(whole.kv_tokens(taken / 2, &load), None);

    // Half of the heads and of the MLP, for 520 tokens; whole rows of logits and half of them, for
    // 8 sequences.
    let half = share(LLAMA_3_8B, 2);
    let activations = 520 * (3 * 4096 + (16 + 2 * 4) * 128 + 16 * 128 + 3 * 7168) + 8 * 4096;
    let logits = 8 * (128_256 + 64_128);
    let (rotary, tables) = (8192 * 128, 8 * (8192 + 8192 / 16 + 1 + 128_256 / 32));
    assert_eq!(half.workspace(&load), 4 * (activations + logits + rotary + tables));
}

/// A decode step reads what is kept: half of the layers' matrices, and a factor for each of their
/// rows.
#[test]
fn matrices_as_fp8_are_read_in_half_the_time() {
    let fp8 = WeightStorage::new(DType::BF16, Some(Quantize::Fp8));
    let (dense, small) =
        (share(LLAMA_3_8B, 1), ShardEstimate::new(&spec(LLAMA_3_8B), 1, fp8, DType::BF16).unwrap());
    let (numbers, rows) = (4096 * (6144 + 4096 + 28_672) + 14_336 * 4096, 6144 + 4096 + 28_672 + 4096);
    let saved = 32 * (numbers - 4 * rows);
    assert_eq!(small.weights, dense.weights - saved);
    assert_eq!(small.decode(1, 1024).read, dense.decode(1, 1024).read - saved);
    assert_eq!(small.decode(1, 1024).operations, dense.decode(1, 1024).operations);
}

#[test]
fn absurd_sizes_do_not_overflow() {
    let share = share(LLAMA_3_8B, 2);
    let step = share.decode(usize::MAX, usize::MAX);
    assert_eq!((step.read, step.sent), (usize::MAX, usize::MAX));
    assert_eq!(share.prefill(usize::MAX).read, usize::MAX);
    let load = load(usize::MAX, usize::MAX, &[usize::MAX]);
    assert_eq!(share.kv_tokens(80 << 30, &load), None);
    let report = EstimateReport { shares: vec![share], hardware: ROUND, load };
    assert!(report.to_string().contains("time "));
}

fn report(hardware: Hardware, load: Workload) -> String {
    let shares = [1, 2, 8].map(|world_size| share(LLAMA_3_70B, world_size)).to_vec();
    EstimateReport { shares, hardware, load }.to_string()
}

/// The values of the first row of this name.
fn row<'a>(text: &'a str, name: &str) -> Vec<&'a str> {
    let row = text.lines().find_map(|line| line.trim_start().strip_prefix(name));
    row.unwrap_or_else(|| panic!("{name} is missing in\n{text}"))
        .split("  ")
        .map(str::trim)
        .filter(|s| !s.is_empty())
        .collect()
}

#[test]
fn the_table_compares_sizes() {
    let h100 = GPUS.iter().find(|gpu| gpu.name == "h100-sxm").unwrap().hardware(DType::BF16);
    let text = report(h100, load(1, 512, &[1024]));
    assert_eq!(row(&text, "shards"), ["1", "2", "8"]);
    assert_eq!(row(&text, "weights"), ["131.42 GiB", "65.71 GiB", "16.43 GiB"]);
    assert_eq!(row(&text, "collectives"), ["0", "163", "163"]);
    // Two: 69.67 GB at 2.68 TB/s, 163 collectives, and 2.89 MB at 360 GB/s.
    assert_eq!(row(&text, "time")[..2], ["does not fit", "27.64ms"]);
    assert_eq!(row(&text, "tokens per second")[..2], ["does not fit", "36"]);
    assert!(text.contains("80% of 3350 GB/s from memory") && text.contains("60% of 989 TFLOP/s"), "{text}");
    assert!(text.contains("80% of 450 GB/s to other shards, and 10 µs per collective"), "{text}");
}

#[test]
fn nothing_is_predicted_from_nothing() {
    let text = report(Hardware::default(), load(2, 1, &[64]));
    assert!(!text.contains("time "), "{text}");
    assert!(text.contains("without --gpu, or --memory-bandwidth and --compute"), "{text}");
    // A single device needs no link.
    let text = report(Hardware { link_bandwidth: None, ..ROUND }, load(2, 1, &[64]));
    assert_eq!(row(&text, "time")[1..], ["unknown", "unknown"], "{text}");
    assert!(text.contains("without --gpu or --link-bandwidth"), "{text}");
    // The peak of single precision is not on the data sheets' line for 16 bits.
    let single = report(GPUS[0].hardware(DType::F32), load(2, 1, &[64]));
    assert!(single.contains("without --compute"), "{single}");
}

#[test]
fn what_is_given_goes_before_what_is_known() {
    let given = Hardware { memory: Some(1), link_latency: Some(2.0), ..Hardware::default() };
    let known = GPUS[0].hardware(DType::BF16);
    let both = given.or(known);
    assert_eq!((both.memory, both.link_latency), (Some(1), Some(2.0)));
    assert_eq!((both.compute, both.memory_bandwidth, both.link_bandwidth), {
        (known.compute, known.memory_bandwidth, known.link_bandwidth)
    });
}

/// Two of four experts of width 6, and nothing else that a second token would not read as well.
#[test]
fn a_step_reads_the_experts_that_it_chooses() {
    let source = Source::Memory(&[(
        "config.json",
        br#"{"model_type": "mixtral", "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4,
        "num_key_value_heads": 2, "intermediate_size": 6, "num_local_experts": 4, "vocab_size": 61,
        "rms_norm_eps": 1e-5, "max_position_embeddings": 64, "torch_dtype": "float32"}"#,
    )]);
    let whole = ShardEstimate::new(&spec(source), 1, DType::F32, DType::F32).unwrap();
    let experts = 4 * 4 * 3 * 6 * 32;
    let kv = 2 * 2 * 8 * 4;
    let read = |batch: usize| whole.decode(batch, 1).read - batch * kv;
    assert_eq!(read(2) - read(1), experts / 4, "a half is read, then three quarters");
    let operations = |batch: usize| whole.decode(batch, 1).operations;
    let attention = 4.0 * 32.0;
    let dense = (32 + 2 * 16) * 32 + 32 * 32 + 4 * 32 + 61 * 32;
    assert_eq!(operations(1), 2.0 * (dense + 2 * 3 * 6 * 32) as f64 + attention);
}

/// An 8B model on a GPU with 8 GB: the device's bytes are used up to less than a layer, and nothing
/// is lost between the sides.
#[test]
fn layers_that_do_not_fit_a_gpu_are_on_the_cpu() {
    let (spec, storage) = (spec(LLAMA_3_8B), WeightStorage::from(DType::BF16));
    let split = |bytes: usize| {
        let load = load(16, 512, &[4096]);
        LayerSplitEstimate::new(&spec, &storage, DType::BF16.into(), bytes, (&load, 1))
    };
    let whole = split(usize::MAX).unwrap();
    assert_eq!(whole.plan.host, None);
    let part = split(8_000_000_000).unwrap();
    let (gpu, host) = (part.plan.footprint, part.plan.host.unwrap());
    let of_layer = (host.footprint.weights + host.footprint.kv_pool) / host.layers;
    assert!((8_000_000_000 - of_layer..=8_000_000_000).contains(&gpu.total()), "{}", gpu.total());
    assert_eq!(gpu.weights + host.footprint.weights, whole.plan.footprint.weights);
    assert_eq!(gpu.kv_pool + host.footprint.kv_pool, whole.plan.footprint.kv_pool);
    let text = part.to_string();
    let layers = format!("  layers        {:>12}{:>12}\n", 32 - host.layers, host.layers);
    assert!(text.contains(&layers), "{text}");
    assert!(text.contains("7.45 GiB may be taken") && text.contains("4096 tokens of KV cache"), "{text}");
    let error = split(1_000_000_000).unwrap_err().to_string();
    assert!(error.contains("--gpu-memory is too small for one layer"), "{error}");
}
