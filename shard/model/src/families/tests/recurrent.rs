//! Tests of the configurations of models with recurrent layers.

use millrace_backend::{Activation, KeySharing, MlpKind, RecurrentHeads};
use millrace_formats::Source;
use serde_json::{Value, json};

use super::configs::assert_refused;
use super::{changed, config_only, llama, load_dummy, spec};
use crate::description::{
    DecoderSpec, LayerSlot, ProjectionFactors, RecurrentLayer, RecurrentRule, ResultPlan, WeightSlot,
};
use crate::split::{Split, sizes};

/// A small Qwen3.5.
fn qwen(changes: &Value) -> Value {
    let sizes = json!({
        "model_type": "qwen3_5_text", "architectures": ["Qwen3_5ForCausalLM"], "num_hidden_layers": 8,
        "head_dim": 16, "linear_num_key_heads": 4, "linear_num_value_heads": 8, "linear_key_head_dim": 6,
        "linear_value_head_dim": 10,
    });
    changed(changed(llama(), &sizes), changes)
}

/// A small LFM2.
fn lfm2(changes: &Value) -> Value {
    let sizes = json!({
        "model_type": "lfm2", "architectures": ["Lfm2ForCausalLM"], "full_attn_idxs": [1], "norm_eps": 1e-5,
        "intermediate_size": 96, "block_multiple_of": 8,
    });
    changed(changed(llama(), &sizes), changes)
}

/// A small Granite 4.
fn granite(changes: &Value) -> Value {
    let sizes = json!({
        "model_type": "granitemoehybrid", "architectures": ["GraniteMoeHybridForCausalLM"],
        "layer_types": ["mamba", "attention"], "shared_intermediate_size": 12, "num_local_experts": 0,
        "mamba_n_heads": 8, "mamba_n_groups": 2, "mamba_d_state": 6,
    });
    changed(changed(llama(), &sizes), changes)
}

/// A small Falcon-H1.
fn falcon(changes: &Value) -> Value {
    let sizes = json!({
        "model_type": "falcon_h1", "architectures": ["FalconH1ForCausalLM"], "mamba_d_ssm": 24,
        "mamba_n_heads": 6, "mamba_n_groups": 2, "mamba_d_state": 5,
    });
    changed(changed(llama(), &sizes), changes)
}

/// A small Nemotron-H.
fn nemotron(changes: &Value) -> Value {
    let sizes = json!({
        "model_type": "nemotron_h", "architectures": ["NemotronHForCausalLM"], "num_hidden_layers": 4,
        "hybrid_override_pattern": "M-*E", "mamba_num_heads": 6, "mamba_head_dim": 4, "n_groups": 2,
        "ssm_state_size": 5, "head_dim": 16, "n_routed_experts": 4, "moe_intermediate_size": 8,
        "moe_shared_expert_intermediate_size": 12,
    });
    changed(changed(llama(), &sizes), changes)
}

fn recurrent(spec: &DecoderSpec) -> Vec<bool> {
    spec.layers.iter().map(|layer| layer.attention.recurrent().is_some()).collect()
}

fn first(spec: &DecoderSpec) -> &RecurrentLayer {
    spec.layers.iter().find_map(|layer| layer.attention.recurrent()).unwrap()
}

/// Returns heads of which neighbors share a key head.
fn neighbors(key_heads: usize, heads: usize, key_dim: usize, value_dim: usize) -> RecurrentHeads {
    RecurrentHeads { key_heads, heads, key_dim, value_dim, sharing: KeySharing::Neighbors }
}

/// A rank would need value heads that do not follow each other in the stored weights.
#[test]
fn reordered_value_heads_are_not_split() {
    let strided = spec(&qwen(&json!({"millrace": {"strided_value_heads": true}}))).unwrap();
    assert_eq!(first(&strided).heads.sharing, KeySharing::Strided);
    assert_eq!(sizes(&strided), [1]);
    let reason = Split { rank: 0, world_size: 2 }.spec(&strided).unwrap_err().reason;
    assert!(reason.contains("GGUF"), "{reason}");
    // If each value head has a key head of its own, there is only one order.
    let own = json!({"millrace": {"strided_value_heads": true}, "linear_num_value_heads": 4});
    assert_eq!(sizes(&spec(&qwen(&own)).unwrap()), [1, 2, 4]);
}

#[test]
fn gated_delta_nets_of_qwen() {
    let usual = spec(&qwen(&json!({}))).unwrap();
    assert_eq!(recurrent(&usual), [true, true, true, false, true, true, true, false]);
    assert!(usual.is_recurrent() && !usual.is_bidirectional());
    let layer = first(&usual);
    assert_eq!(layer.heads, neighbors(4, 8, 6, 10));
    assert_eq!((layer.taps, layer.channels(), layer.projected_cols()), (4, 128, 208));
    assert_eq!(layer.result, ResultPlan::Normed { eps: 1e-5, gated: true });
    assert_eq!(layer.state_spec(3, 0).slot_elements(), 3 * 128 + 8 * 6 * 10);
    assert!(usual.layers[3].attention.heads().is_some_and(|heads| heads.out_gate));
    assert_eq!(usual.ropes[0].rotary_dim, 4, "a quarter of each head is rotated");

    let pairs = spec(&qwen(&json!({"full_attention_interval": 2}))).unwrap();
    assert_eq!(recurrent(&pairs), [true, false, true, false, true, false, true, false]);
    let kinds = json!({"num_hidden_layers": 2, "layer_types": ["full_attention", "linear_attention"]});
    assert_eq!(recurrent(&spec(&qwen(&kinds)).unwrap()), [false, true]);
    // A model without recurrent layers may share its prompts.
    let kinds = json!({"num_hidden_layers": 1, "layer_types": ["full_attention"]});
    assert!(!spec(&qwen(&kinds)).unwrap().is_recurrent());
}

#[test]
fn convolutions_of_lfm2() {
    let usual = spec(&lfm2(&json!({}))).unwrap();
    assert_eq!(recurrent(&usual), [true, false]);
    let layer = first(&usual);
    assert_eq!((layer.rule, layer.taps, layer.channels()), (RecurrentRule::Convolution, 3, 32));
    assert_eq!(layer.state_spec(2, 3).bytes(), (2 + 3) * 2 * 32 * 4);
    assert!(usual.tied_head);
    let width = |changes| spec(&lfm2(&changes)).unwrap().layers[0].mlp.dense().unwrap().width;
    assert_eq!(width(json!({})), 64);
    assert_eq!(width(json!({"block_ff_dim": 100})), 72);
    assert_eq!(width(json!({"block_ffn_dim_multiplier": 0.7})), 48);
    assert_eq!(width(json!({"block_ffn_dim_multiplier": null, "intermediate_size": 100})), 66);
    assert_eq!(width(json!({"block_auto_adjust_ff_dim": false})), 96);
    assert!(!spec(&lfm2(&json!({"tie_embedding": false}))).unwrap().tied_head);
    // Without a list, all layers have attention.
    let all = spec(&lfm2(&json!({"full_attn_idxs": "absent"}))).unwrap();
    assert_eq!(recurrent(&all), [false, false]);
}

#[test]
fn state_spaces_of_granite() {
    let dense = spec(&granite(&json!({}))).unwrap();
    assert_eq!(recurrent(&dense), [true, false]);
    let layer = first(&dense);
    assert_eq!(layer.heads, neighbors(2, 8, 6, 8));
    let RecurrentRule::StateSpace { step_limits, .. } = layer.rule else { panic!("{:?}", layer.rule) };
    assert_eq!(step_limits, (0.0, f32::INFINITY));
    assert!(dense.ropes.is_empty() && layer.conv_bias);
    assert_eq!(dense.layers[0].mlp.dense().unwrap().width, 12);
    let experts =
        spec(&granite(&json!({"num_local_experts": 4, "position_embedding_type": "rope"}))).unwrap();
    let of_layer = experts.layers[0].mlp.experts().unwrap();
    assert_eq!((of_layer.count(), of_layer.width, of_layer.shared.unwrap().width), (4, 44, 12));
    assert_eq!(experts.ropes.len(), 1);
    let limited = spec(&granite(&json!({"time_step_limit": [0.001, 0.1]}))).unwrap();
    let RecurrentRule::StateSpace { step_limits, .. } = first(&limited).rule else { panic!() };
    assert_eq!(step_limits, (0.001, 0.1));
    let written = spec(&granite(&json!({"time_step_limit": [0.0, {"__float__": "Infinity"}]}))).unwrap();
    assert_eq!(first(&written).rule, layer.rule);
    // Older files have the number as Python writes it.
    let text = granite(&json!({"time_step_limit": [0.0, "X"]})).to_string().replace("\"X\"", "Infinity");
    let file: &'static [u8] = text.into_bytes().leak();
    let older = crate::families::spec(&Source::Memory(vec![("config.json", file)].leak())).unwrap();
    assert_eq!(first(&older).rule, layer.rule);
}

#[test]
fn attention_beside_state_spaces_of_falcon() {
    let plain = spec(&falcon(&json!({}))).unwrap();
    assert_eq!(recurrent(&plain), [true, true]);
    assert!(plain.is_recurrent());
    let layer = first(&plain);
    assert_eq!(layer.heads, neighbors(2, 6, 5, 4));
    assert_eq!((layer.result, layer.factors), (ResultPlan::Gated, ProjectionFactors::NONE));
    let heads = plain.layers[0].attention.heads().unwrap();
    assert_eq!((heads.out_factor, heads.layout.heads), (1.0, 4));
    let result = |changes| first(&spec(&falcon(&changes)).unwrap()).result;
    let normed = json!({"mamba_rms_norm": true});
    assert_eq!(result(normed), ResultPlan::NormedGroups { eps: 1e-5 });
    let gated = json!({"mamba_rms_norm": true, "mamba_norm_before_gate": false});
    assert_eq!(result(gated), ResultPlan::GatedGroups { eps: 1e-5 });
    let expanded = json!({"mamba_d_ssm": null, "mamba_n_heads": 8});
    assert_eq!(first(&spec(&falcon(&expanded)).unwrap()).heads.value_cols(), 64);
}

#[test]
fn factors_of_falcon() {
    let factors = json!({
        "attention_in_multiplier": 2.0, "key_multiplier": 0.25, "attention_out_multiplier": 3.0,
        "mlp_multipliers": [4.0, 2.0], "ssm_in_multiplier": 2.0, "ssm_out_multiplier": 5.0,
        "ssm_multipliers": [1.0, 2.0, 3.0, 4.0, 5.0], "embedding_multiplier": 6.0, "lm_head_multiplier": 7.0,
    });
    let spec = spec(&falcon(&factors)).unwrap();
    let heads = spec.layers[1].attention.heads().unwrap();
    let usual = 1.0 / (heads.layout.head_dim as f32).sqrt();
    assert_eq!((heads.score_scale, heads.out_factor), (usual, 6.0));
    let mlp = spec.layers[1].mlp.dense().unwrap();
    assert_eq!((mlp.up_factor, mlp.out_factor), (4.0, 0.5));
    let wanted = ProjectionFactors { gate: 2.0, value: 4.0, key: 6.0, query: 8.0, rate: 10.0, out: 5.0 };
    assert_eq!(first(&spec).factors, wanted);
    assert_eq!((spec.embedding.factor, spec.head.factor), (6.0, 7.0));
    let of_channels: Vec<f32> = first(&spec).channel_factors().collect();
    assert_eq!(of_channels, [[8.0; 10].as_slice(), &[6.0; 10], &[4.0; 24]].concat());
}

#[test]
fn layers_of_one_branch_of_nemotron() {
    let usual = spec(&nemotron(&json!({}))).unwrap();
    let branches = |spec: &DecoderSpec| -> Vec<(bool, bool)> {
        spec.layers.iter().map(|layer| (!layer.attention.is_none(), !layer.mlp.is_none())).collect()
    };
    assert_eq!(branches(&usual), [(true, false), (false, true), (true, false), (false, true)]);
    assert_eq!(recurrent(&usual), [true, false, false, false]);
    assert!(usual.ropes.is_empty());
    assert_eq!(first(&usual).heads, neighbors(2, 6, 5, 4));
    let mlp = usual.layers[1].mlp.dense().unwrap();
    assert_eq!((mlp.width, mlp.act), (44, Activation::ReluSquared));
    let experts = usual.layers[3].mlp.experts().unwrap();
    assert_eq!((experts.count(), experts.width, experts.shared.unwrap().width), (4, 8, 12));
    assert_eq!(experts.kind, MlpKind::Plain(Activation::ReluSquared));
    let kinds = ["full_attention", "linear_attention", "attention", "mlp"];
    let listed = json!({"layers_block_type": kinds, "hybrid_override_pattern": "absent"});
    let listed = spec(&nemotron(&listed)).unwrap();
    assert_eq!(branches(&listed), [(true, false), (true, false), (true, false), (false, true)]);
    assert_eq!(recurrent(&listed), [false, true, false, false]);
    assert_eq!(usual.cpu_only_part(), Some("MLPs with the square of ReLU"));
    let mixed = json!({"hybrid_override_pattern": "M*EM"});
    assert_eq!(spec(&nemotron(&mixed)).unwrap().cpu_only_part(), Some("experts without gates"));
    let other = json!({"hybrid_override_pattern": "M*-M", "mlp_hidden_act": "relu"});
    assert_eq!(spec(&nemotron(&other)).unwrap().cpu_only_part(), None);
    // A layer has the weights of one branch, and one norm.
    let norms = usual
        .slots()
        .into_iter()
        .filter(|slot| matches!(slot, WeightSlot::Layer(_, LayerSlot::AttentionNorm | LayerSlot::MlpNorm)));
    assert_eq!(norms.count(), 4);
}

#[test]
fn what_recurrent_layers_lack_is_refused_by_key() {
    for (config, problem) in [
        (qwen(&json!({"attention_bias": true})), "attention_bias"),
        (qwen(&json!({"attn_output_gate": false})), "attn_output_gate"),
        (qwen(&json!({"linear_num_key_heads": 3})), "linear_num_key_heads is 3, which does not divide"),
        (qwen(&json!({"linear_num_value_heads": 16000, "linear_value_head_dim": 4000})), "too many for 4000"),
        (qwen(&json!({"layer_types": ["linear_attention"]})), "layer_types has 1 entries for 8 layers"),
        (
            qwen(&json!({"num_hidden_layers": 1, "layer_types": ["sliding_attention"]})),
            "layer_types has sliding_attention, which is not supported",
        ),
        (qwen(&json!({"linear_conv_kernel_dim": 65})), "linear_conv_kernel_dim"),
        (
            lfm2(&json!({"block_multiple_of": 1 << 20, "block_ffn_dim_multiplier": 1e9})),
            "block_ffn_dim_multiplier",
        ),
        (granite(&json!({"mamba_n_heads": 7})), "mamba_n_heads is 7, which does not divide the 64 features"),
        (granite(&json!({"mamba_n_groups": 3})), "mamba_n_groups is 3, which does not divide mamba_n_heads"),
        (granite(&json!({"mamba_d_head": 9})), "mamba_d_head is 9, but 8 heads of 64 features have 8"),
        (granite(&json!({"mamba_proj_bias": true})), "mamba_proj_bias"),
        (granite(&json!({"time_step_limit": [0.2, 0.1]})), "time_step_limit"),
        (falcon(&json!({"mamba_n_heads": 5})), "mamba_n_heads is 5, which does not divide the 24 features"),
        (falcon(&json!({"ssm_multipliers": [1.0]})), "ssm_multipliers must be 5 numbers above 0"),
        (falcon(&json!({"mlp_multipliers": [1.0, 0.0]})), "mlp_multipliers must be 2 numbers above 0"),
        (falcon(&json!({"key_multiplier": -1.0})), "key_multiplier is -1, but must be at least"),
        (
            falcon(&json!({"attention_bias": true, "attention_in_multiplier": 0.5})),
            "attention_in_multiplier = 0.5 is not supported: it must be 1 if attention_bias is true",
        ),
        (falcon(&json!({"mlp_bias": true, "mlp_multipliers": [0.5, 1.0]})), "mlp_multipliers"),
        (nemotron(&json!({"hybrid_override_pattern": "M-*"})), "hybrid_override_pattern has 3 entries for 4"),
        (nemotron(&json!({"hybrid_override_pattern": "M-*X"})), "hybrid_override_pattern has X"),
        (nemotron(&json!({"hybrid_override_pattern": "absent"})), "hybrid_override_pattern"),
        (nemotron(&json!({"moe_latent_size": 8})), "moe_latent_size"),
        (nemotron(&json!({"use_bias": true})), "use_bias"),
        (nemotron(&json!({"mlp_hidden_act": "tanh"})), "mlp_hidden_act"),
        (granite(&json!({"position_embedding_type": "alibi"})), "position_embedding_type"),
    ] {
        assert_refused(&config, problem);
    }
}

/// The norm of a state space may be longer than the residual stream.
#[test]
fn dummy_weights_are_as_long_as_every_norm() {
    for config in [granite(&json!({})), falcon(&json!({"mamba_rms_norm": true})), nemotron(&json!({}))] {
        let model = load_dummy(&config_only(&config)).unwrap();
        for slot in model.spec.slots() {
            let (rows, cols) = model.spec.shape(slot);
            let elements: usize = model.weights.parts(slot).unwrap().iter().map(|part| part.elements()).sum();
            assert_eq!(elements, rows * cols, "{slot:?}");
        }
    }
}

/// A rank takes key heads with all of their value heads.
#[test]
fn recurrent_layers_are_shared_by_key_heads() {
    let qwen = spec(&qwen(&json!({"num_key_value_heads": 4}))).unwrap();
    assert_eq!(sizes(&qwen), [1, 2, 4]);
    let share = Split { rank: 1, world_size: 2 }.spec(&qwen).unwrap();
    let heads = first(&share).heads;
    assert_eq!((heads.key_heads, heads.heads, heads.key_dim, heads.value_dim), (2, 4, 6, 10));
    let one_group = spec(&granite(&json!({"mamba_n_groups": 1}))).unwrap();
    let error = Split { rank: 0, world_size: 2 }.spec(&one_group).unwrap_err().to_string();
    assert!(error.contains("its 1 key heads of recurrent layers cannot be shared evenly"), "{error}");
    assert!(error.ends_with("Sizes that work: 1"), "{error}");
}
