//! Tests that the golden checkpoints load with the specifications that their configurations
//! describe.

use millrace_backend::{QkvLayout, RopeStyle};
use millrace_formats::Source;
use millrace_numbers::DType;

use super::{golden, load};
use crate::description::{
    AttentionHeads, DecoderSpec, HeadNormPlan, LayerSpec, NormPlan, RopeScaling, RopeTable,
};

/// The sizes of a checkpoint.
struct Sizes {
    vocab: usize,
    hidden: usize,
    layers: usize,
    heads: [usize; 3], // query heads, key/value heads, features of each
    width: usize,
    positions: usize,
}

/// Returns a plain Llama of these sizes, with a head of its own.
fn plain(model_type: &str, sizes: Sizes) -> DecoderSpec {
    let [heads, kv_heads, head_dim] = sizes.heads;
    let heads = AttentionHeads::plain(QkvLayout { heads, kv_heads, head_dim });
    let layers = vec![LayerSpec::plain(heads, sizes.width); sizes.layers];
    DecoderSpec {
        model_type: model_type.to_owned(),
        max_positions: sizes.positions,
        ropes: vec![RopeTable::plain(head_dim)],
        ..DecoderSpec::plain(sizes.vocab, sizes.hidden, layers)
    }
}

/// Compares two specifications. Numbers that were computed in another order may differ in the last
/// digit.
fn assert_same(name: &str, found: &DecoderSpec, expected: &DecoderSpec) {
    let mut found = found.clone();
    for (layer, expected) in found.layers.iter_mut().zip(&expected.layers) {
        let (heads, expected) = (layer.attention.heads_mut().unwrap(), expected.attention.heads().unwrap());
        assert!((heads.score_scale / expected.score_scale - 1.0).abs() < 1e-6, "{name}");
        heads.score_scale = expected.score_scale;
    }
    for (rope, expected) in found.ropes.iter_mut().zip(&expected.ropes) {
        if let (
            RopeScaling::Yarn { attention_factor, .. },
            RopeScaling::Yarn { attention_factor: expected, .. },
        ) = (&mut rope.scaling, &expected.scaling)
        {
            assert!((*attention_factor / expected - 1.0).abs() < 1e-12, "{name}: {attention_factor}");
            *attention_factor = *expected;
        }
    }
    assert_eq!(&found, expected, "{name}");
}

fn check(name: &str, expected: &DecoderSpec) {
    let model = load(&Source::Directory(golden(name))).unwrap_or_else(|error| panic!("{name}: {error}"));
    assert_same(name, &model.spec, expected);
    let dtype = match name {
        "llama_bf16" => DType::BF16,
        "llama_f16" => DType::F16,
        _ => DType::F32,
    };
    assert_eq!(model.dtype, dtype, "{name}");
    for slot in model.spec.slots() {
        let parts = model.weights.parts(slot).unwrap();
        let count: usize = parts.iter().map(|part| part.rows.len() * part.cols.len()).sum();
        let (rows, cols) = model.spec.shape(slot);
        assert_eq!(count, rows * cols, "{name} {slot:?}");
        assert!(parts.iter().all(|part| part.tensor.encoding.dense() == Some(dtype)), "{name} {slot:?}");
    }
}

#[test]
fn llamas() {
    let llama = |vocab, hidden, layers, heads, width| {
        plain("llama", Sizes { vocab, hidden, layers, heads, width, positions: 64 })
    };
    check("llama_gqa", &llama(61, 48, 2, [6, 2, 8], 36));
    check("llama_mqa", &llama(97, 32, 2, [8, 1, 4], 44));
    check("llama_head_dim", &llama(59, 32, 2, [4, 2, 16], 36));
    check("llama_sharded", &llama(61, 32, 2, [4, 2, 8], 44));
    for name in ["llama_mha", "llama_mha_v4"] {
        check(name, &llama(61, 32, 3, [4, 4, 8], 28));
    }
    for name in ["llama_bf16", "llama_f16"] {
        check(name, &llama(97, 48, 2, [6, 2, 8], 76));
    }
    check("llama_tied", &DecoderSpec { tied_head: true, ..llama(97, 32, 2, [4, 2, 8], 80) });
    let mut bias = llama(61, 32, 2, [4, 2, 8], 44);
    for layer in &mut bias.layers {
        let heads = layer.attention.heads_mut().unwrap();
        (heads.qkv_bias, heads.out_bias) = (true, true);
        let mlp = layer.mlp.dense_mut().unwrap();
        (mlp.up_bias, mlp.down_bias) = (true, true);
    }
    check("llama_bias", &bias);
}

#[test]
fn scaled_rotations() {
    let scaled = |names: &[&str], theta, positions, scaling: RopeScaling| {
        let sizes = Sizes { vocab: 53, hidden: 32, layers: 2, heads: [4, 1, 16], width: 28, positions };
        let mut spec = plain("llama", sizes);
        (spec.ropes[0].theta, spec.ropes[0].scaling) = (theta, scaling);
        names.iter().for_each(|name| check(name, &spec));
    };
    // `linear` and `dynamic` stretch the length. `llama3` and `yarn` state the final one.
    scaled(&["llama_linear", "llama_linear_v4"], 1e4, 256, RopeScaling::Linear { factor: 4.0 });
    let dynamic = RopeScaling::Dynamic { factor: 2.0, original: 40 };
    scaled(&["llama_dynamic", "llama_dynamic_v4"], 1e4, 80, dynamic);
    let llama3 = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 32.0 };
    scaled(&["llama_llama3", "llama_llama3_v4"], 500.0, 64, llama3);

    let yarn = |betas: [f64; 2], truncate, attention_factor| RopeScaling::Yarn {
        factor: 4.0,
        original: 24.0,
        beta_fast: betas[0],
        beta_slow: betas[1],
        truncate,
        attention_factor,
    };
    let m = |scale: f64| 1.0 + scale * 4f64.ln() / 10.0;
    scaled(&["llama_yarn", "llama_yarn_v4"], 500.0, 96, yarn([32.0, 1.0], true, m(1.0)));
    scaled(&["llama_yarn_attention_factor"], 500.0, 96, yarn([2.0, 0.5], true, 1.3));
    scaled(&["llama_yarn_no_truncate"], 500.0, 96, yarn([2.0, 1.0], false, m(1.0)));
    scaled(&["llama_yarn_mscale"], 500.0, 96, yarn([32.0, 1.0], true, m(1.0) / m(0.5)));
}

#[test]
fn mistral_and_qwen() {
    let sizes = |vocab, layers, head_dim, width| Sizes {
        vocab,
        hidden: 32,
        layers,
        heads: [4, 2, head_dim],
        width,
        positions: 64,
    };
    let mut mistral = plain("mistral", sizes(67, 2, 8, 44));
    mistral.layers.iter_mut().for_each(|layer| layer.attention.slide(11));
    check("mistral_sliding", &mistral);

    let mut qwen2 = plain("qwen2", sizes(61, 2, 8, 44));
    qwen2.norm = NormPlan::rms_before_branches(1e-6);
    qwen2.layers.iter_mut().for_each(|layer| layer.attention.heads_mut().unwrap().qkv_bias = true);
    check("qwen2", &qwen2);
    check("qwen2_v4", &qwen2);

    let mut sliding = plain("qwen2", sizes(61, 3, 8, 28));
    sliding.layers.iter_mut().for_each(|layer| layer.attention.heads_mut().unwrap().qkv_bias = true);
    sliding.layers.iter_mut().skip(1).for_each(|layer| layer.attention.slide(9));
    check("qwen2_sliding", &sliding);
    check("qwen2_sliding_v4", &sliding);

    let mut qwen3 = plain("qwen3", sizes(61, 2, 16, 36));
    qwen3.norm = NormPlan::rms_before_branches(1e-6);
    qwen3
        .layers
        .iter_mut()
        .for_each(|layer| layer.attention.heads_mut().unwrap().head_norm = HeadNormPlan::Shared);
    check("qwen3", &qwen3);
}

#[test]
fn fused_layouts() {
    let sizes = |vocab, hidden, heads, width| Sizes { vocab, hidden, layers: 2, heads, width, positions: 64 };
    let mut baichuan = plain("baichuan", sizes(64, 32, [4, 4, 8], 44));
    baichuan.norm = NormPlan::rms_before_branches(1e-6);
    check("baichuan_7b", &baichuan);

    let half_rotated = |mut spec: DecoderSpec| {
        spec.layers.iter_mut().for_each(|layer| layer.attention.heads_mut().unwrap().qkv_bias = true);
        spec.ropes[0].style = RopeStyle::Interleaved;
        spec.ropes[0].rotary_dim /= 2;
        spec
    };
    let glm = half_rotated(plain("glm", sizes(61, 32, [4, 2, 16], 36)));
    check("glm", &glm);
    check("glm_v4", &glm);
    check("chatglm2", &half_rotated(plain("chatglm", sizes(65, 48, [6, 2, 8], 36))));
    let mut glm4 = half_rotated(plain("chatglm", sizes(61, 32, [4, 2, 8], 44)));
    glm4.norm = NormPlan::rms_before_branches(1.5625e-7);
    glm4.ropes[0].theta = 5e6;
    check("glm4", &glm4);
}

#[test]
fn every_golden_checkpoint_loads() {
    let mut count = 0;
    for folder in std::fs::read_dir(golden("")).unwrap() {
        let path = folder.unwrap().path();
        if path.join("config.json").exists() {
            load(&Source::Directory(path.clone())).unwrap_or_else(|error| panic!("{error}"));
            count += 1;
        }
    }
    assert!(count >= 31, "only {count} golden checkpoints");
}

#[test]
#[ignore = "needs the published checkpoints of MILLRACE_TEST_DATA"]
fn published_weights_load() {
    let data =
        std::env::var_os("MILLRACE_TEST_DATA").expect("MILLRACE_TEST_DATA names the folder of the test data");
    let folder = std::path::Path::new(&data).join("stories260k");
    let model = load(&Source::Directory(folder)).unwrap();
    let sizes = Sizes { vocab: 512, hidden: 64, layers: 5, heads: [8, 4, 8], width: 172, positions: 512 };
    assert_same("stories260k", &model.spec, &DecoderSpec { tied_head: true, ..plain("llama", sizes) });
    assert_eq!(model.dtype, DType::F32);
    assert_eq!(model.spec.parameters(), 260_032);
}
