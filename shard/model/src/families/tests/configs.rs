//! Tests of the meaning of configurations, and of the errors of invalid ones.

use millrace_backend::{
    Activation, ExpertGroups, Gating, GroupScore, KeyWindow, MlpKind, RopeStyle, RouterScores,
};
use millrace_formats::Source;
use proptest::prelude::*;
use serde_json::{Value, json};

use super::minimax_m2::minimax_m2;
use super::{changed, config_only, experts, llama, load_dummy, spec};
use crate::description::{
    ClassifierKind, ClassifierPlan, DecoderSpec, DistanceHeads, LayerSpec, Positions, RopeScaling,
    SharedExpert, WeightSlot,
};
use crate::families::{self, Overrides, RopeKind};
use crate::split::Split;

fn ok(changes: Value) -> DecoderSpec {
    spec(&changed(llama(), &changes)).unwrap_or_else(|error| panic!("{changes}: {error}"))
}

fn mistral(changes: &Value) -> Value {
    let mistral = json!({"model_type": "mistral", "architectures": ["MistralForCausalLM"]});
    changed(changed(llama(), &mistral), changes)
}

fn qwen2(changes: &Value) -> Value {
    let qwen2 = json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "num_hidden_layers": 3});
    changed(changed(llama(), &qwen2), changes)
}

fn baichuan(changes: &Value) -> Value {
    let baichuan = json!({
        "model_type": "baichuan", "architectures": ["BaichuanForCausalLM"], "num_key_value_heads": "absent",
        "hidden_size": 4096,
    });
    changed(changed(llama(), &baichuan), changes)
}

pub(super) fn chatglm(changes: &Value) -> Value {
    let config = json!({
        "model_type": "chatglm", "architectures": ["ChatGLMModel"], "hidden_size": 32, "ffn_hidden_size": 44,
        "num_layers": 2, "num_attention_heads": 4, "multi_query_attention": true, "multi_query_group_num": 2,
        "kv_channels": 8, "seq_length": 64, "padded_vocab_size": 61, "layernorm_epsilon": 1e-5, "add_qkv_bias": true,
    });
    changed(config, changes)
}

fn qwen3_moe(changes: &Value) -> Value {
    experts("qwen3_moe", "Qwen3MoeForCausalLM", changes)
}

fn glm4_moe(changes: &Value) -> Value {
    experts("glm4_moe", "Glm4MoeForCausalLM", changes)
}

#[test]
fn layers_with_experts() {
    let sparse = |config: Value| -> Vec<bool> {
        spec(&config).unwrap().layers.iter().map(|layer| layer.mlp.experts().is_some()).collect()
    };
    assert_eq!(sparse(qwen3_moe(&json!({}))), [true; 4]);
    let changes = json!({"decoder_sparse_step": 2, "mlp_only_layers": [3]});
    assert_eq!(sparse(qwen3_moe(&changes)), [false, true, false, false]);
    assert_eq!(sparse(glm4_moe(&json!({"first_k_dense_replace": 3}))), [false, false, false, true]);
    assert_eq!(sparse(glm4_moe(&json!({"first_k_dense_replace": 0}))), [true; 4]);
    let mixtral = experts("mixtral", "MixtralForCausalLM", &json!({}));
    assert_eq!(spec(&mixtral).unwrap().layers[0].mlp.experts().unwrap().width, 44);
}

#[test]
fn routers_of_families() {
    let mixture = |config: Value| spec(&config).unwrap().layers[3].mlp.experts().unwrap().clone();
    // Version 5 of transformers has one key for the number of experts.
    let renamed = mixture(qwen3_moe(&json!({"num_experts": "absent", "num_local_experts": 5})));
    assert_eq!((renamed.count(), renamed.router.normalize), (5, false));
    assert!(mixture(qwen3_moe(&json!({"norm_topk_prob": true}))).router.normalize);

    let qwen2 = mixture(experts("qwen2_moe", "Qwen2MoeForCausalLM", &json!({})));
    assert_eq!(qwen2.shared, Some(SharedExpert { width: 5632, gated: true }));

    let glm = mixture(glm4_moe(&json!({"routed_scaling_factor": 2.5, "n_shared_experts": 3})));
    assert_eq!((glm.router.scores, glm.router.factor, glm.choice_bias), (RouterScores::Sigmoid, 2.5, true));
    assert_eq!(glm.shared, Some(SharedExpert { width: 36, gated: false }));
    assert_eq!(mixture(glm4_moe(&json!({"n_shared_experts": 0}))).shared, None);
    assert_eq!(glm.router.groups, None);
    assert_eq!(mixture(glm4_moe(&json!({"n_group": 2, "topk_group": 2}))).router.groups, None);
    let groups = mixture(glm4_moe(&json!({"n_group": 4, "topk_group": 2}))).router.groups;
    assert_eq!(groups, Some(ExpertGroups { count: 4, chosen: 2, score: GroupScore::TwoBest }));
}

#[test]
fn windows_of_qwen2_moe_alternate() {
    let of = |changes: Value| {
        let on = json!({"use_sliding_window": true, "sliding_window": 9});
        windows(&changed(experts("qwen2_moe", "Qwen2MoeForCausalLM", &on), &changes))
    };
    assert_eq!(of(json!({})), [Some(9), None, Some(9), None]);
    assert_eq!(of(json!({"max_window_layers": 2})), [Some(9), None, None, None]);
    let named =
        json!({"layer_types": ["full_attention", "sliding_attention", "full_attention", "full_attention"]});
    assert_eq!(of(named), [None, Some(9), None, None]);
}

#[test]
fn factors_of_granite() {
    let granite = |changes: Value| experts("granitemoe", "GraniteMoeForCausalLM", &changes);
    let changes = json!({
        "embedding_multiplier": 12, "residual_multiplier": 0.5, "logits_scaling": 4, "attention_multiplier": 0.25,
    });
    let found = spec(&granite(changes)).unwrap();
    let scale = found.layers[1].attention.heads().unwrap().score_scale;
    assert_eq!(
        (found.embedding.factor, found.branch_factor, found.head.factor, scale),
        (12.0, 0.5, 0.25, 0.25)
    );
    assert_eq!(spec(&granite(json!({}))).unwrap().layers[0].attention.heads().unwrap().score_scale, 1.0);
    assert_refused(&granite(json!({"logits_scaling": 0})), "logits_scaling is 0, but must be at least");
}

#[test]
fn bad_experts_are_refused_by_key() {
    let cases = [
        (
            qwen3_moe(&json!({"num_experts_per_tok": 9})),
            "num_experts_per_tok is 9, more than num_experts = 8",
        ),
        (qwen3_moe(&json!({"num_experts": 0})), "num_experts is 0"),
        (qwen3_moe(&json!({"num_experts": 5000})), "num_experts is 5000, more than the limit of 4096"),
        (qwen3_moe(&json!({"decoder_sparse_step": 0})), "decoder_sparse_step is 0"),
        (qwen3_moe(&json!({"mlp_only_layers": [-1]})), "mlp_only_layers cannot be used"),
        (glm4_moe(&json!({"n_group": 3, "topk_group": 1})), "n_group is 3, which does not divide 8 experts"),
        (glm4_moe(&json!({"n_group": 8, "topk_group": 4})), "n_group is 8, which does not divide 8 experts"),
        (
            glm4_moe(&json!({"n_group": 4, "topk_group": 1, "num_experts_per_tok": 3})),
            "topk_group is 1, but 1 of 4 groups have fewer than 3 experts",
        ),
        (glm4_moe(&json!({"n_shared_experts": 1_000_000})), "n_shared_experts is 1000000, which is too many"),
    ];
    for (config, expected) in cases {
        assert_refused(&config, expected);
    }
}

fn windows(config: &Value) -> Vec<Option<usize>> {
    spec(config).unwrap().layers.iter().map(|layer| layer.attention.window()).collect()
}

#[test]
fn absent_and_null_heads_follow_the_defaults_of_the_type() {
    let heads =
        |config: Value| spec(&config).map(|spec| spec.layers[0].attention.heads().unwrap().layout.kv_heads);
    assert_eq!(heads(changed(llama(), &json!({"num_key_value_heads": "absent"}))).unwrap(), 4);
    assert_eq!(heads(changed(llama(), &json!({"num_key_value_heads": null}))).unwrap(), 4);
    assert_eq!(heads(mistral(&json!({"num_key_value_heads": null}))).unwrap(), 4);
    assert_eq!(
        heads(mistral(&json!({"num_key_value_heads": "absent", "num_attention_heads": 16}))).unwrap(),
        8
    );

    let qwen3 = json!({"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"]});
    let head_dim = |changes: Value| {
        spec(&changed(changed(llama(), &qwen3), &changes)).unwrap().layers[0]
            .attention
            .heads()
            .unwrap()
            .layout
            .head_dim
    };
    assert_eq!(
        (head_dim(json!({})), head_dim(json!({"head_dim": null})), head_dim(json!({"head_dim": 6}))),
        (128, 8, 6)
    );
}

#[test]
fn sliding_windows() {
    assert_eq!(windows(&mistral(&json!({}))), [Some(4096); 2]);
    assert_eq!(windows(&mistral(&json!({"sliding_window": null}))), [None; 2]);
    let kinds = json!(["sliding_attention", "full_attention"]);
    assert_eq!(windows(&mistral(&json!({"sliding_window": 7, "layer_types": kinds}))), [Some(7), None]);
    let on = json!({"use_sliding_window": true, "sliding_window": 5, "max_window_layers": 2});
    assert_eq!(windows(&qwen2(&on)), [None, None, Some(5)]);
    assert_eq!(windows(&qwen2(&changed(on, &json!({"use_sliding_window": false})))), [None; 3]);
    assert_eq!(
        windows(&qwen2(&json!({"use_sliding_window": true, "max_window_layers": 0}))),
        [Some(4096); 3]
    );
}

#[test]
fn rotations_of_both_vintages() {
    let rope = |changes| ok(changes).ropes[0].clone();
    assert_eq!(rope(json!({})).theta, 10_000.0);
    assert_eq!(rope(json!({"rope_theta": 1_000_000})).theta, 1e6);
    assert_eq!(rope(json!({"rope_parameters": {"rope_theta": 5e5, "rope_type": "default"}})).theta, 5e5);
    assert_eq!(rope(json!({"rope_theta": 7e5, "rope_scaling": {"type": "linear", "factor": 2}})).theta, 7e5);
    assert_eq!(rope(json!({"rope_scaling": {}})).scaling, RopeScaling::Default);
    assert_eq!(rope(json!({"partial_rotary_factor": 0.5})).rotary_dim, 4);
    let both =
        json!({"rope_scaling": {"type": "linear", "factor": 2}, "rope_parameters": {"rope_type": "default"}});
    assert_eq!(rope(both).scaling, RopeScaling::Linear { factor: 2.0 });
}

/// The readers of model files say what a converter has changed.
#[test]
fn rotations_of_model_files() {
    let rope = |changes| ok(changes).ropes[0].clone();
    assert_eq!(rope(json!({})).style, RopeStyle::Half);
    assert_eq!(rope(json!({"millrace": {"rope_interleaved": true}})).style, RopeStyle::Interleaved);
    assert_eq!(rope(json!({"millrace": {"rope_interleaved": false}})).style, RopeStyle::Half);
    let divided = |divisors: Value| json!({"rope_scaling": {"rope_type": "divisors", "divisors": divisors}});
    let scaling = rope(divided(json!([1, 1, 2.5, 8]))).scaling;
    assert_eq!(scaling, RopeScaling::Divided { divisors: vec![1.0, 1.0, 2.5, 8.0] });
    for (divisors, reason) in [
        (json!([1, 2]), "rope_scaling.divisors has 2 numbers for 4 pairs of features"),
        (json!([1, 2, 0, 4]), "rope_scaling.divisors has a number that is no positive divisor"),
        (json!(null), "rope_scaling.divisors is missing"),
    ] {
        let error = spec(&changed(llama(), &divided(divisors))).unwrap_err().to_string();
        assert!(error.contains(reason), "{error}");
    }
}

#[test]
fn lengths_are_stretched_only_where_the_key_is_the_unstretched_one() {
    let length = |rope: Value| ok(json!({"rope_scaling": rope})).max_positions;
    assert_eq!(length(json!({"type": "linear", "factor": 2.5})), 160);
    assert_eq!(length(json!({"type": "dynamic", "factor": 2.0})), 128);
    let llama3 = json!({
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    });
    assert_eq!(length(llama3), 64);
    // Qwen2.5 states the short length, DeepSeek the long one.
    let yarn = |original: usize| json!({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": original});
    assert_eq!((length(yarn(64)), length(yarn(16))), (256, 64));
    assert_eq!(length(json!({"type": "yarn", "factor": 4.0})), 256);
}

#[test]
fn yarn_without_a_factor_takes_the_ratio_of_lengths() {
    let rope = json!({"rope_type": "yarn", "factor": null, "original_max_position_embeddings": 16, "mscale": 0, "mscale_all_dim": 1});
    let RopeScaling::Yarn { factor, original, attention_factor, .. } =
        ok(json!({"rope_parameters": rope})).ropes[0].scaling.clone()
    else {
        panic!("not yarn");
    };
    assert_eq!((factor, original), (4.0, 16.0));
    assert!((attention_factor - (0.1 * 4f64.ln() + 1.0)).abs() < 1e-12, "a zero mscale counts as none");
}

#[test]
fn chatglm_switches() {
    let read = |changes: Value| spec(&chatglm(&changes)).unwrap();
    let rope = |spec: &DecoderSpec| (spec.ropes[0].style, spec.ropes[0].rotary_dim, spec.ropes[0].theta);
    use millrace_backend::RopeStyle::{Half, Interleaved};
    assert_eq!(rope(&read(json!({}))), (Interleaved, 4, 1e4));
    assert_eq!(rope(&read(json!({"original_rope": false, "rope_ratio": 50}))), (Half, 4, 5e5));
    let biased = read(json!({"add_bias_linear": true, "add_qkv_bias": false})).layers[0].clone();
    let (heads, mlp) = (biased.attention.heads().unwrap(), biased.mlp.dense().unwrap());
    assert!(heads.qkv_bias && heads.out_bias && mlp.up_bias && mlp.down_bias);
    let harmless =
        json!({"quantization_bit": 0, "pre_seq_len": null, "rmsnorm": true, "post_layer_norm": true});
    assert_eq!(read(harmless), read(json!({})));
}

#[test]
fn baichuan_13b_has_linear_biases_and_baichuan2_a_normalized_head() {
    let large = spec(&baichuan(&json!({"hidden_size": 5120, "num_attention_heads": 40}))).unwrap();
    let positions = large.layers[0].attention.heads().unwrap().positions;
    let Positions::Linear(slopes) = positions else { panic!("{positions:?}") };
    // The slopes of 32 heads, then every second one of 64.
    let slopes = slopes.slopes(40);
    assert_eq!((slopes[3], slopes[31], slopes[35]), (0.5, 2f32.powi(-8), 2f32.powf(-7.0 / 8.0)));
    assert!(large.ropes.is_empty() && !large.head.unit_rows);
    for sign in [json!({"vocab_size": 125_696}), json!({"z_loss_weight": 0})] {
        assert!(spec(&baichuan(&sign)).unwrap().head.unit_rows, "{sign}");
    }
}

#[test]
fn baichuan_7b_is_rotary_in_both_spellings() {
    assert!(spec(&baichuan(&json!({}))).is_ok());
    let first = json!({"architectures": ["BaiChuanForCausalLM"], "hidden_size": 32});
    assert!(spec(&baichuan(&first)).is_ok());
    let length = json!({"max_position_embeddings": "absent", "model_max_length": 99});
    assert_eq!(spec(&baichuan(&length)).unwrap().max_positions, 99);
}

#[test]
fn one_of_type_and_architecture_is_enough() {
    assert_eq!(ok(json!({"model_type": "absent"})).model_type, "");
    assert_eq!(ok(json!({"architectures": "absent"})).model_type, "llama");
    assert_eq!(ok(json!({"architectures": []})).model_type, "llama");
}

/// Pairs of changed keys of a Llama, and a part of the expected error.
const BAD_LLAMAS: &[(&str, &str)] = &[
    (r#"{"hidden_size": "absent"}"#, "hidden_size is missing"),
    (r#"{"hidden_size": null}"#, "hidden_size is missing"),
    (r#"{"hidden_size": 0}"#, "hidden_size is 0"),
    (r#"{"hidden_size": -3}"#, "hidden_size cannot be used: invalid value: integer `-3`, expected u64"),
    (r#"{"hidden_size": "32"}"#, "hidden_size cannot be used: invalid type: string"),
    (
        r#"{"hidden_size": 18446744073709551615}"#,
        "hidden_size is 18446744073709551615, more than the limit of 1048576",
    ),
    (r#"{"num_hidden_layers": 100000000}"#, "num_hidden_layers is 100000000, more than the limit of 1024"),
    (r#"{"vocab_size": 99999999999}"#, "vocab_size is 99999999999, more than"),
    (r#"{"num_attention_heads": 6}"#, "num_attention_heads is 6, which does not divide hidden_size = 32"),
    (
        r#"{"num_key_value_heads": 3}"#,
        "num_key_value_heads is 3, which does not divide num_attention_heads = 4",
    ),
    (
        r#"{"num_key_value_heads": 8}"#,
        "num_key_value_heads is 8, which does not divide num_attention_heads = 4",
    ),
    (
        r#"{"num_attention_heads": 16384, "head_dim": 4096}"#,
        "num_attention_heads is 16384, too many for 4096",
    ),
    (r#"{"head_dim": 7}"#, "partial_rotary_factor = 1 rotates 7 of 7 features per head"),
    (r#"{"head_dim": 0}"#, "head_dim is 0"),
    (r#"{"partial_rotary_factor": 2}"#, "partial_rotary_factor = 2 rotates 16 of 8 features"),
    (
        r#"{"intermediate_size": 1e3}"#,
        "intermediate_size cannot be used: invalid type: floating point `1000.0`",
    ),
    (r#"{"rms_norm_eps": -1e-5}"#, "rms_norm_eps is -0.00001, but must be at least 0"),
    (r#"{"rms_norm_eps": "absent"}"#, "rms_norm_eps is missing"),
    (r#"{"max_position_embeddings": "absent"}"#, "max_position_embeddings is missing"),
    (r#"{"hidden_act": "relu6"}"#, "hidden_act = \"relu6\" is not supported: it must be silu, gelu"),
    (
        r#"{"quantization_config": {"quant_method": "awq", "bits": 3, "group_size": 64}}"#,
        "quantization_config.bits = 3 is not supported: AWQ has 4",
    ),
    (r#"{"attention_bias": "yes"}"#, "attention_bias cannot be used: invalid type: string"),
    (
        r#"{"torch_dtype": "float8_e4m3fn"}"#,
        "torch_dtype = \"float8_e4m3fn\" is not supported: it must be float32",
    ),
    (r#"{"tie_word_embeddings": 1}"#, "tie_word_embeddings cannot be used"),
    (r#"{"rope_theta": 0}"#, "rope_theta is 0, but must be at least 1"),
    (r#"{"rope_theta": 1}"#, "rope_theta is 1, which"),
    (r#"{"rope_scaling": "linear"}"#, "rope_scaling cannot be used: invalid type: string"),
    (r#"{"rope_scaling": {"factor": 2}}"#, "rope_scaling.rope_type is missing"),
    (
        r#"{"rope_scaling": {"type": "ntk", "factor": 2}}"#,
        "rope_scaling.type = \"ntk\" is not supported: known are",
    ),
    (
        r#"{"rope_scaling": {"type": "longrope", "original_max_position_embeddings": 32, "short_factor": [1], "long_factor": [2, 3, 4, 5]}}"#,
        "rope_scaling.short_factor has 1 entries for 4 pairs of features",
    ),
    (
        r#"{"rope_scaling": {"type": "longrope", "factor": 2}}"#,
        "rope_scaling.original_max_position_embeddings is missing",
    ),
    (
        r#"{"rope_parameters": {"rope_type": "su"}}"#,
        "rope_parameters.original_max_position_embeddings is missing",
    ),
    (r#"{"rope_scaling": {"type": "linear"}}"#, "rope_scaling.factor is missing"),
    (
        r#"{"rope_scaling": {"type": "linear", "factor": 0}}"#,
        "rope_scaling.factor is 0, but must be at least 1",
    ),
    (r#"{"rope_scaling": {"type": "linear", "factor": 1e300}}"#, "rope_scaling.factor makes"),
    (
        r#"{"rope_scaling": {"type": "dynamic", "factor": 2}, "head_dim": 2}"#,
        "dynamic needs more than 2 rotated",
    ),
    (
        r#"{"rope_scaling": {"type": "llama3", "factor": 8, "low_freq_factor": 4, "high_freq_factor": 4}}"#,
        "rope_scaling.high_freq_factor is 4, but must be more than low_freq_factor, 4",
    ),
    (r#"{"rope_scaling": {"type": "yarn"}}"#, "rope_scaling.factor is missing"),
    (
        r#"{"rope_scaling": {"type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}}"#,
        "rope_scaling.beta_fast is 1, but must not be less than beta_slow, 2",
    ),
    (
        r#"{"rope_parameters": {"full_attention": {"rope_theta": 1e4}}}"#,
        "rope_parameters.full_attention = {…} is not supported: all layers must have the same rotation",
    ),
    (
        r#"{"model_type": "rwkv", "architectures": ["RwkvForCausalLM"]}"#,
        "a model of type rwkv with architecture RwkvForCausalLM is not supported; the nearest family is ",
    ),
    (
        r#"{"model_type": "mixformer-sequential", "architectures": ["MixFormerSequentialForCausalLM"]}"#,
        "model_type = \"mixformer-sequential\" is not supported: take the newer files of the repository, whose model_type is phi",
    ),
    (
        r#"{"model_type": "internlm", "architectures": ["InternLMForCausalLM"], "rotary": {"type": "spiral"}}"#,
        "rotary.type = \"spiral\" is not supported: it must be origin or dynamic",
    ),
    (
        r#"{"model_type": "stablelm_epoch", "architectures": ["StableLMEpochForCausalLM"], "rotary_scaling_factor": 2}"#,
        "rotary_scaling_factor = 2 is not supported: it must be 1",
    ),
    (
        r#"{"model_type": "qwen4", "architectures": ["Qwen4ForCausalLM"]}"#,
        "a model of type qwen4 with architecture Qwen4ForCausalLM is not supported; the nearest family is qwen3 (Qwen3ForCausalLM)",
    ),
    (
        r#"{"architectures": ["LlamaForSequenceClassification"]}"#,
        "a model of type llama with architecture LlamaForSequenceClassification is not supported; the nearest family is llama (LlamaForCausalLM)",
    ),
    (
        r#"{"architectures": "absent", "model_type": "absent"}"#,
        "a model of type (not given) with architecture (not given) is not supported; the nearest family is ",
    ),
    (r#"{"architectures": "Llama"}"#, "architectures cannot be used: invalid type: string"),
];

#[test]
fn an_operator_stretches_the_rotation() {
    let stretched = |config: &Value, kind| {
        let overrides = Overrides { rope_scaling: Some((kind, 4.0)) };
        families::load_dummy(&config_only(config), &overrides).unwrap().spec
    };
    for (kind, name) in [(RopeKind::Linear, "linear"), (RopeKind::Dynamic, "dynamic")] {
        let scaling = json!({"rope_type": name, "factor": 4.0});
        let base = json!({"rope_theta": 5e5});
        let wanted = ok(changed(base.clone(), &json!({"rope_scaling": scaling})));
        let own = json!({"rope_type": "yarn", "factor": 2.0});
        let nested = json!({"rope_parameters": {"rope_type": "default", "rope_theta": 5e5}});
        for config in [base.clone(), changed(base, &json!({"rope_scaling": own})), nested] {
            assert_eq!(stretched(&changed(llama(), &config), kind), wanted, "{name} {config}");
        }
    }
}

pub(super) fn assert_refused(config: &Value, expected: &str) {
    let text = match load_dummy(&config_only(config)) {
        Ok(_) => panic!("loaded: {config}"),
        Err(error) => error.to_string(),
    };
    assert!(text.starts_with("config.json of the built-in model: "), "{text}");
    assert!(text.contains(expected), "{text}\nshould contain\n{expected}");
}

#[test]
fn bad_configurations_are_refused_by_key() {
    for (changes, expected) in BAD_LLAMAS {
        assert_refused(&changed(llama(), &serde_json::from_str(changes).unwrap()), expected);
    }
}

fn gpt_oss(changes: &Value) -> Value {
    experts("gpt_oss", "GptOssForCausalLM", changes)
}

#[test]
fn switches_of_gpt_oss() {
    let usual = spec(&gpt_oss(&json!({}))).unwrap();
    assert_eq!(windows(&gpt_oss(&json!({}))), [Some(128), None, Some(128), None]);
    let mixture = usual.layers[0].mlp.experts().unwrap();
    assert_eq!(mixture.kind, MlpKind::Gated(Gating::Clamped { alpha: 1.702, limit: 7.0 }));
    assert!(mixture.router_bias && mixture.up_bias && mixture.down_bias && mixture.router.normalize);
    assert!(usual.layers[1].attention.heads().is_some_and(|heads| heads.sinks && heads.qkv_bias));
    let other = spec(&gpt_oss(&json!({"swiglu_limit": 5, "swiglu_alpha": 2}))).unwrap();
    assert_eq!(
        other.layers[0].mlp.experts().unwrap().kind,
        MlpKind::Gated(Gating::Clamped { alpha: 2.0, limit: 5.0 })
    );
}

fn hunyuan(changes: &Value) -> Value {
    let hunyuan = json!({
        "model_type": "hunyuan_v1_moe", "architectures": ["HunYuanMoEV1ForCausalLM"], "num_experts": 4, "moe_topk": 2,
        "head_dim": 8,
    });
    changed(changed(llama(), &hunyuan), changes)
}

fn phimoe(changes: &Value) -> Value {
    changed(experts("phimoe", "PhimoeForCausalLM", &json!({})), changes)
}

fn apertus(changes: &Value) -> Value {
    let apertus = json!({
        "model_type": "apertus", "architectures": ["ApertusForCausalLM"], "hidden_act": "xielu",
        "rope_scaling": {"rope_type": "linear", "factor": 2.0},
    });
    changed(changed(llama(), &apertus), changes)
}

#[test]
fn lengths_of_phimoe_have_a_factor_of_their_own() {
    let rope = |long: f64| {
        let factors = [1.0; 4];
        json!({"rope_scaling": {
            "type": "longrope", "short_factor": factors, "long_factor": factors, "short_mscale": 1.25,
            "long_mscale": long, "original_max_position_embeddings": 16,
        }})
    };
    let found = spec(&phimoe(&rope(1.25))).unwrap();
    let RopeScaling::LongRope { attention_factor, .. } = found.ropes[0].scaling else {
        panic!("no LongRoPE")
    };
    assert_eq!(attention_factor, 1.25);
    assert_refused(&phimoe(&rope(1.5)), "long_mscale = 1.5 is not supported");
}

#[test]
fn factors_of_minicpm3() {
    let minicpm3 = |changes: Value| {
        let own = json!({"model_type": "minicpm3", "architectures": ["MiniCPM3ForCausalLM"]});
        let found = spec(&changed(changed(llama(), &own), &changes)).unwrap();
        (found.embedding.factor, found.branch_factor, found.head.factor)
    };
    assert_eq!(minicpm3(json!({})), (12.0, 1.4 / 2f32.sqrt(), 8.0));
    assert_eq!(
        minicpm3(json!({"scale_emb": 2, "scale_depth": null, "dim_model_base": null})),
        (2.0, 1.0, 1.0)
    );
}

#[test]
fn alpha_of_hunyuan_enlarges_the_base() {
    let rope = json!({"type": "dynamic", "alpha": 16.0, "factor": 1.0});
    let found = spec(&hunyuan(&json!({"rope_theta": 100, "rope_scaling": rope}))).unwrap();
    assert_eq!(found.ropes[0].scaling, RopeScaling::Default);
    assert!((found.ropes[0].theta / (100.0 * 16f64.powf(8.0 / 6.0)) - 1.0).abs() < 1e-12);
    let top_k = |index: usize| {
        let config = hunyuan(&json!({"moe_topk": [2, 1, 3, 4]}));
        spec(&config).unwrap().layers[index].mlp.experts().unwrap().router.top_k
    };
    assert_eq!([0, 1].map(top_k), [2, 1]);
}

fn gemma3(changes: &Value) -> Value {
    let gemma3 = json!({
        "model_type": "gemma3_text", "architectures": ["Gemma3TextModel"], "sliding_window": 9,
        "layer_types": ["sliding_attention", "full_attention"],
    });
    changed(changed(llama(), &gemma3), changes)
}

#[test]
fn an_encoder_has_half_of_its_window_on_each_side() {
    let windows = |spec: &DecoderSpec| -> Vec<Option<KeyWindow>> {
        spec.layers.iter().map(|layer| layer.attention.key_window()).collect()
    };
    let decoder = spec(&gemma3(&json!({}))).unwrap();
    assert_eq!(windows(&decoder), [Some(KeyWindow::Last(9)), None]);
    assert!(decoder.head.is_absent && !decoder.is_bidirectional() && decoder.cpu_only_part().is_none());
    let encoder = spec(&gemma3(&json!({"use_bidirectional_attention": true}))).unwrap();
    assert_eq!(windows(&encoder), [Some(KeyWindow::Around(5)), None]);
    assert!(encoder.head.is_absent && encoder.is_bidirectional());
    assert_eq!(encoder.cpu_only_part(), Some("attention windows in both directions"));
    // A query at position 6 sees the keys 2 to 10.
    let window = KeyWindow::Around(5);
    assert_eq!((window.first(6), window.end(6, 40), window.end(6, 8), window.len()), (2, 11, 8, 9));
}

fn modernbert(changes: &Value) -> Value {
    let config = json!({
        "model_type": "modernbert", "architectures": ["ModernBertForSequenceClassification"], "vocab_size": 61,
        "hidden_size": 32, "intermediate_size": 44, "num_attention_heads": 4, "num_hidden_layers": 5,
        "max_position_embeddings": 64, "id2label": {"0": "LABEL_0"},
    });
    changed(config, changes)
}

#[test]
fn modernbert_has_windows_and_a_classifier() {
    let found = spec(&modernbert(&json!({}))).unwrap();
    let windows: Vec<Option<usize>> = found.layers.iter().map(|layer| layer.attention.window()).collect();
    assert_eq!(windows, [None, Some(65), Some(65), None, Some(65)]);
    let reads_residual: Vec<bool> = found.layers.iter().map(LayerSpec::reads_residual).collect();
    assert_eq!(reads_residual, [true, false, false, false, false]);
    assert_eq!((found.ropes[0].theta, found.ropes[1].theta), (160_000.0, 10_000.0));
    let kind = ClassifierKind::NormedGelu { averages: false, dense_bias: false };
    assert_eq!(found.head.classifier, Some(ClassifierPlan { classes: 1, kind }));
    // A base of `null` is that of the layers without a window.
    let changes = json!({"global_rope_theta": 500.0, "local_rope_theta": null, "classifier_pooling": "mean"});
    let found = spec(&modernbert(&changes)).unwrap();
    assert_eq!((found.ropes[0].theta, found.ropes[1].theta), (500.0, 500.0));
    assert!(found.head.classifier.unwrap().kind.averages());
    let found = spec(&modernbert(&json!({"architectures": ["ModernBertModel"]}))).unwrap();
    assert!(found.head.classifier.is_none() && found.head.is_absent);
}

fn nomic_bert(changes: &Value) -> Value {
    let config = json!({
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": 61, "n_embd": 32, "n_head": 4,
        "n_layer": 2, "n_inner": 44, "n_positions": 192, "max_trained_positions": 48, "layer_norm_epsilon": 1e-12,
        "activation_function": "swiglu", "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0, "num_experts": 0,
        "type_vocab_size": 3, "rotary_emb_scale_base": null, "prenorm": false, "qkv_proj_bias": false,
    });
    changed(config, changes)
}

#[test]
fn nomic_bert_has_two_kinds_of_keys() {
    let own = spec(&nomic_bert(&json!({}))).unwrap();
    assert_eq!((own.max_positions, own.ropes[0].theta), (48, 1000.0));
    assert_eq!((own.embedding.token_types, own.embedding.positions), (Some(3), None));
    assert!(own.is_bidirectional() && own.head.is_absent && own.norm.place.is_of_sums());
    assert_eq!(own.cpu_only_part(), None);
    let usual = json!({
        "model_type": "nomic_bert", "architectures": ["NomicBertModel"], "vocab_size": 61, "hidden_size": 32,
        "num_attention_heads": 4, "num_hidden_layers": 2, "intermediate_size": 44, "max_position_embeddings": 48,
        "type_vocab_size": 3,
    });
    assert_eq!(spec(&usual).unwrap(), own);
    let gelu = spec(&nomic_bert(&json!({"activation_function": "geglu"}))).unwrap();
    assert_eq!(gelu.layers[0].mlp.dense().unwrap().act, Activation::Gelu);
}

fn mpnet(changes: &Value) -> Value {
    let config = json!({
        "model_type": "mpnet", "architectures": ["MPNetModel"], "vocab_size": 61, "hidden_size": 32,
        "intermediate_size": 44, "num_attention_heads": 4, "num_hidden_layers": 2, "max_position_embeddings": 50,
        "relative_attention_num_buckets": 32,
    });
    changed(config, changes)
}

#[test]
fn mpnet_has_one_table_of_biases_by_distance() {
    let found = spec(&mpnet(&json!({"pad_token_id": 3}))).unwrap();
    let heads = found.layers[1].attention.heads().unwrap();
    assert_eq!(heads.positions, Positions::Distance(DistanceHeads { all: 4, first: 0 }));
    assert_eq!(found.shape(WeightSlot::DistanceBias), (32, 4));
    // Positions are counted from behind token 1, whatever the configuration says.
    assert_eq!((found.max_positions, found.embedding.token_types), (48, None));
    assert_eq!(found.cpu_only_part(), Some("biases of scores by distance"));
    let share = Split { rank: 1, world_size: 2 }.spec(&found).unwrap();
    let heads = share.layers[1].attention.heads().unwrap();
    assert_eq!(heads.positions, Positions::Distance(DistanceHeads { all: 4, first: 2 }));
}

#[test]
fn what_families_lack_is_refused_by_key() {
    let cases = [
        (
            mistral(&json!({"num_key_value_heads": "absent"})),
            "num_key_value_heads is 8, which does not divide",
        ),
        (mistral(&json!({"sliding_window": 0})), "sliding_window is 0"),
        (
            modernbert(&json!({"classifier_pooling": "max"})),
            "classifier_pooling = \"max\" is not supported: it must be cls or mean",
        ),
        (modernbert(&json!({"classifier_activation": "relu"})), "classifier_activation"),
        (
            mpnet(&json!({"relative_attention_num_buckets": 16})),
            "relative_attention_num_buckets = 16 is not supported: 32 buckets",
        ),
        (
            modernbert(
                &json!({"id2label": (0..1001).map(|n| (n.to_string(), json!("x"))).collect::<Value>()}),
            ),
            "id2label has 1001 entries, more than the limit of 1000",
        ),
        (nomic_bert(&json!({"prenorm": true})), "prenorm = true is not supported"),
        (nomic_bert(&json!({"qkv_proj_bias": true})), "qkv_proj_bias = true"),
        (nomic_bert(&json!({"num_experts": 8})), "num_experts = 8 is not supported: a mixture of experts"),
        (nomic_bert(&json!({"rotary_emb_scale_base": 512})), "rotary_emb_scale_base = 512"),
        (nomic_bert(&json!({"activation_function": "gelu"})), "it must be swiglu or geglu"),
        (nomic_bert(&json!({"rotary_emb_fraction": 0.0})), "positions must be rotary"),
        (modernbert(&json!({"global_attn_every_n_layers": 0})), "global_attn_every_n_layers is 0"),
        (mistral(&json!({"layer_types": ["full_attention"]})), "layer_types has 1 entries for 2 layers"),
        (
            mistral(&json!({"layer_types": ["full_attention", "chunked_attention"]})),
            "layer_types has chunked_attention, which is not supported",
        ),
        (
            qwen2(&json!({"layer_types": ["full_attention", "full_attention", "sliding_attention"]})),
            "layer_types has sliding_attention, but no sliding_window is on",
        ),
        (qwen2(&json!({"use_mrope": true})), "use_mrope = true is not supported"),
        (
            chatglm(&json!({"inner_hidden_size": 128, "position_encoding_2d": false})),
            "position_encoding_2d = false is not supported: positions on one axis",
        ),
        (
            chatglm(&json!({"inner_hidden_size": 128, "pre_seq_len": 8})),
            "pre_seq_len = 8 is not supported: the prefix of p-tuning",
        ),
        (chatglm(&json!({"rmsnorm": false})), "rmsnorm = false is not supported: layer norms"),
        (chatglm(&json!({"post_layer_norm": false})), "post_layer_norm = false is not supported"),
        (
            chatglm(&json!({"apply_residual_connection_post_layernorm": true})),
            "apply_residual_connection_post_layernorm = true is not supported",
        ),
        (chatglm(&json!({"pre_seq_len": 128})), "pre_seq_len = 128 is not supported: the prefix of p-tuning"),
        (chatglm(&json!({"multi_query_attention": false})), "multi_query_attention = false is not supported"),
        (chatglm(&json!({"num_layers": "absent"})), "num_layers is missing"),
        (chatglm(&json!({"rope_ratio": 0})), "rope_ratio is 0, but must be at least"),
        (gpt_oss(&json!({"swiglu_limit": 0})), "swiglu_limit is 0, but must be at least"),
        (gpt_oss(&json!({"swiglu_alpha": -1})), "swiglu_alpha is -1, but must be at least"),
        (gpt_oss(&json!({"hidden_act": "gelu"})), "hidden_act = \"gelu\" is not supported"),
        (minimax_m2(&json!({"use_qk_norm": false})), "use_qk_norm = false is not supported"),
        (minimax_m2(&json!({"scoring_func": "softmax"})), "scoring_func = \"softmax\" is not supported"),
        (minimax_m2(&json!({"attn_type_list": [1, 0]})), "attn_type_list = [1,0] is not supported"),
        (minimax_m2(&json!({"shared_intermediate_size": 8})), "shared_intermediate_size = 8 is not"),
        (
            minimax_m2(&json!({"rotary_dim": 9})),
            "partial_rotary_factor = 0.0703125 rotates 9 of 128 features",
        ),
        (hunyuan(&json!({"use_qk_norm": false})), "use_qk_norm = false is not supported"),
        (hunyuan(&json!({"use_cla": true})), "use_cla = true is not supported"),
        (apertus(&json!({"hidden_act": "silu"})), "hidden_act = \"silu\" is not supported"),
        (apertus(&json!({"qk_norm": false})), "qk_norm = false is not supported"),
        (apertus(&json!({"rope_scaling": "absent"})), "rope_parameters is missing"),
        (phimoe(&json!({"num_experts_per_tok": 3})), "num_experts_per_tok = 3 is not supported"),
        (hunyuan(&json!({"moe_topk": [2]})), "moe_topk has no entry for layer 1"),
        (
            hunyuan(&json!({"rope_scaling": {"rope_type": "yarn", "factor": 4}})),
            "is not supported: heads are normalized after the rotation",
        ),
    ];
    for (config, expected) in &cases {
        assert_refused(config, expected);
    }
}

#[test]
fn text_that_is_no_json_is_refused() {
    for text in ["", "{", "[]", "7", "{\"rope_theta\": Infinite}"] {
        let files: &'static [(&str, &[u8])] = vec![("config.json", text.as_bytes())].leak();
        let error = load_dummy(&Source::Memory(files)).err().unwrap().to_string();
        assert!(error.starts_with("config.json of the built-in model is not valid JSON: "), "{error}");
    }
    // Python writes infinities into JSON, but no number of most configurations may be one.
    let text = changed(llama(), &json!({"rope_theta": "X"})).to_string().replace("\"X\"", "Infinity");
    let files: &'static [(&str, &[u8])] = vec![("config.json", &*text.into_bytes().leak())].leak();
    let error = load_dummy(&Source::Memory(files)).err().unwrap().to_string();
    assert!(error.contains("rope_theta"), "{error}");
}

proptest! {
    /// Whatever value a key has, there is a model or an error that names the file.
    #[test]
    fn no_value_panics(key in prop::sample::select(keys()), value in value()) {
        for base in [llama(), mistral(&json!({})), chatglm(&json!({}))] {
            let mut config = base;
            match key.strip_prefix("rope.") {
                Some(key) => {
                    let mut rope = json!({
                        "rope_type": "yarn", "factor": 2.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                    });
                    rope[key] = value.clone();
                    config["rope_parameters"] = rope;
                }
                None => config[key] = value.clone(),
            }
            match spec(&config) {
                Ok(spec) => prop_assert!(spec.parameters() > 0),
                Err(error) => prop_assert!(error.to_string().contains("config.json"), "{error}"),
            }
        }
    }
}

fn keys() -> Vec<&'static str> {
    vec![
        "hidden_size",
        "intermediate_size",
        "num_hidden_layers",
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
        "vocab_size",
        "max_position_embeddings",
        "rms_norm_eps",
        "rope_theta",
        "sliding_window",
        "layer_types",
        "partial_rotary_factor",
        "tie_word_embeddings",
        "num_layers",
        "kv_channels",
        "multi_query_group_num",
        "rope_ratio",
        "seq_length",
        "original_max_position_embeddings",
        "rope.rope_type",
        "rope.factor",
        "rope.beta_fast",
        "rope.beta_slow",
        "rope.original_max_position_embeddings",
        "rope.attention_factor",
        "rope.rope_theta",
        "rope.mscale",
        "rope.partial_rotary_factor",
    ]
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<i64>().prop_map(Value::from),
        any::<u64>().prop_map(Value::from),
        (0u64..70_000).prop_map(Value::from),
        any::<f64>().prop_map(Value::from),
        (0.0..10.0).prop_map(Value::from),
        prop::sample::select(vec!["", "linear", "dynamic", "llama3", "yarn", "default", "7"])
            .prop_map(Value::from),
        any::<bool>().prop_map(Value::from),
        Just(Value::Null),
        Just(json!([])),
        Just(json!({})),
        Just(json!(["full_attention", "sliding_attention"])),
    ]
}
