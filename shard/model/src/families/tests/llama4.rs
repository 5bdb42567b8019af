//! Tests of the configuration of Llama 4.

use serde_json::{Value, json};

use super::{changed, llama, spec};
use crate::description::{Attention, DecoderSpec, HeadNormPlan, Positions, QueryScale};

fn llama4(changes: &Value) -> Value {
    let config = json!({
        "model_type": "llama4_text", "architectures": ["Llama4ForCausalLM"], "num_hidden_layers": 8,
        "intermediate_size": 12, "intermediate_size_mlp": 20, "head_dim": 8,
    });
    changed(changed(llama(), &config), changes)
}

fn read(changes: &Value) -> DecoderSpec {
    spec(&llama4(changes)).unwrap()
}

/// Returns which layers are chunked, rotated, and have experts.
fn layers(spec: &DecoderSpec) -> [Vec<bool>; 3] {
    let all = |of: fn(&crate::description::LayerSpec) -> bool| spec.layers.iter().map(of).collect();
    [
        all(|layer| matches!(layer.attention, Attention::Chunked { .. })),
        all(|layer| layer.attention.heads().is_some_and(|heads| heads.positions != Positions::None)),
        all(|layer| layer.mlp.experts().is_some()),
    ]
}

#[test]
fn absent_keys_have_the_values_of_transformers() {
    let found = read(&json!({}));
    let every_fourth: Vec<bool> = (1..=8).map(|layer| layer % 4 != 0).collect();
    assert_eq!(layers(&found), [every_fourth.clone(), every_fourth, vec![true; 8]]);
    assert_eq!(found.query_scale, Some(QueryScale { beta: 0.1, interval: 8192.0, offset: 1 }));
    let heads = |index: usize| found.layers[index].attention.heads().unwrap();
    assert_eq!((heads(0).head_norm, heads(3).head_norm), (HeadNormPlan::Unscaled, HeadNormPlan::None));
    assert!(!heads(0).scales_queries && heads(3).scales_queries);
    let Attention::Chunked { size, .. } = found.layers[0].attention else { panic!("not chunked") };
    let experts = found.layers[0].mlp.experts().unwrap();
    assert_eq!((size, experts.count(), experts.router.top_k), (8192, 16, 1));
    assert!(experts.router.weighs_inputs && experts.shared.is_some_and(|shared| shared.width == 12));
}

#[test]
fn layers_are_listed_or_follow_from_intervals() {
    let lists = json!({
        "num_hidden_layers": 3, "no_rope_layers": [0, 1, 1], "moe_layers": [1],
        "layer_types": ["full_attention", "full_attention", "chunked_attention"],
    });
    let [chunked, rotated, experts] = layers(&read(&lists));
    assert_eq!((chunked, rotated), (vec![false, false, true], vec![false, true, true]));
    assert_eq!(experts, [false, true, false]);
    let steps = json!({"num_hidden_layers": 4, "no_rope_layer_interval": 2, "interleave_moe_layer_step": 3});
    let found = read(&steps);
    assert_eq!(layers(&found)[1..], [vec![true, false, true, false], vec![false, false, true, false]]);
    assert_eq!(found.layers[0].mlp.dense().map(|mlp| mlp.width), Some(20));
}

#[test]
fn temperature_may_be_a_number_and_can_be_off() {
    for (value, is_on) in [(json!(4), true), (json!(0), false), (json!(false), false), (json!(true), true)] {
        let found = read(&json!({"attn_temperature_tuning": value}));
        let scaled = found.layers[3].attention.heads().unwrap().scales_queries;
        assert_eq!((found.query_scale.is_some(), scaled), (is_on, is_on), "{value}");
    }
    let plain = read(&json!({"use_qk_norm": false}));
    assert_eq!(plain.layers[0].attention.heads().unwrap().head_norm, HeadNormPlan::None);
}

#[test]
fn what_llama_4_lacks_is_refused_by_key() {
    let yarn = json!({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16});
    for (changes, message) in [
        (json!({"attention_chunk_size": null}), "attention_chunk_size"),
        (json!({"layer_types": ["full_attention"]}), "layer_types has 1 entries for 8 layers"),
        (json!({"layer_types": vec!["sliding_attention"; 8]}), "has sliding_attention, which is not"),
        (json!({"no_rope_layers": [1, 1]}), "no_rope_layers has 2 entries for 8 layers"),
        (json!({"attn_temperature_tuning": "yes"}), "attn_temperature_tuning"),
        (json!({"rope_scaling": yarn, "use_qk_norm": true}), "a rotation that scales heads"),
    ] {
        let error = spec(&llama4(&changes)).unwrap_err().to_string();
        assert!(error.contains(message), "{changes}: {error}");
    }
}
