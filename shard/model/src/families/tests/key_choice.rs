//! Tests of models that choose the keys of each query, whose context ends where the choice begins.

use std::fs;

use millrace_backend::{Gating, MlpKind};
use millrace_formats::Source;
use serde_json::{Value, json};

use super::configs::assert_refused;
use super::{changed, config_only, experts, golden, load, load_dummy, spec};
use crate::description::{DecoderSpec, KeyChoice};

/// Keys of small latents.
fn latents() -> Value {
    json!({
        "num_key_value_heads": 4, "q_lora_rank": 6, "kv_lora_rank": 12, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4, "v_head_dim": 5, "max_position_embeddings": 5000, "n_routed_experts": 16,
    })
}

fn deepseek_v32(changes: &Value) -> Value {
    changed(experts("deepseek_v32", "DeepseekV32ForCausalLM", &latents()), changes)
}

fn glm_moe_dsa(changes: &Value) -> Value {
    changed(experts("glm_moe_dsa", "GlmMoeDsaForCausalLM", &latents()), changes)
}

fn minimax_m3(changes: &Value) -> Value {
    let config = json!({
        "intermediate_size": 12, "shared_intermediate_size": 8, "head_dim": 16, "rotary_dim": 8,
        "max_position_embeddings": 5000,
    });
    changed(experts("minimax_m3_vl_text", "MiniMaxM3VLForCausalLM", &config), changes)
}

#[test]
fn the_context_ends_where_the_choice_begins() {
    let sparse = |freq: Value| json!({"sparse_attention_config": {"sparse_attention_freq": freq}});
    let blocks = json!({"sparse_attention_config": {
        "sparse_attention_freq": [0, 1, 1, 1], "sparse_block_size": 16, "sparse_topk_blocks": 5,
    }});
    let listed = json!({"layer_types": ["minimax_m3_sparse", "full_attention", "full_attention", "full_attention"],
        "index_block_size": 32, "index_topk_blocks": 4});
    for (config, keys) in [
        (deepseek_v32(&json!({})), Some(2048)),
        (deepseek_v32(&json!({"index_topk": 100})), Some(100)),
        (deepseek_v32(&json!({"index_topk": 5000})), None),
        (glm_moe_dsa(&json!({})), Some(2048)),
        (minimax_m3(&json!({})), None),
        (minimax_m3(&sparse(json!([0, 0, 0, 0]))), None),
        (minimax_m3(&sparse(json!([0, 0, 0, 1]))), Some(2048)),
        (minimax_m3(&blocks), Some(80)),
        (minimax_m3(&listed), Some(128)),
    ] {
        let model = load_dummy(&config_only(&config)).unwrap_or_else(|error| panic!("{config}: {error}"));
        assert_eq!(model.spec.max_positions, keys.unwrap_or(5000), "{config}");
        let choice = keys.map(|keys| KeyChoice { keys, positions: 5000 });
        assert_eq!(model.spec.key_choice, choice, "{config}");
        let warnings = model.warnings.configuration;
        assert_eq!(warnings.len(), usize::from(keys.is_some()), "{config}: {warnings:?}");
        if let Some(keys) = keys {
            let end = format!("the same up to {keys} tokens, and the context ends there instead of at 5000");
            assert!(warnings[0].contains("chooses") && warnings[0].ends_with(&end), "{warnings:?}");
        }
    }
}

#[test]
fn absent_keys_have_the_values_of_the_family() {
    let [v32, glm] = [deepseek_v32(&json!({})), glm_moe_dsa(&json!({}))].map(|config| spec(&config).unwrap());
    for spec in [&v32, &glm] {
        let sparse: Vec<bool> = spec.layers.iter().map(|layer| layer.mlp.experts().is_some()).collect();
        assert_eq!(sparse, [false, false, false, true]);
        assert_eq!(spec.layers[3].mlp.experts().unwrap().router.factor, 2.5);
    }
    let groups = |spec: &DecoderSpec| spec.layers[3].mlp.experts().unwrap().router.groups;
    assert_eq!(groups(&glm), None);
    assert_refused(
        &deepseek_v32(&json!({"n_routed_experts": 9})),
        "n_group is 8, which does not divide 9 experts",
    );
    assert_eq!(groups(&v32).map(|groups| (groups.count, groups.chosen)), Some((8, 4)));

    let m3 = spec(&minimax_m3(&json!({"moe_layer_freq": [0, 1, 1, 1], "hidden_act": "swigluoai"}))).unwrap();
    let gating = Gating::Clamped { alpha: 1.702, limit: 7.0 };
    let dense = m3.layers[0].mlp.dense().unwrap();
    assert_eq!((dense.width, dense.gating()), (12_288, gating));
    let mixture = m3.layers[1].mlp.experts().unwrap();
    assert_eq!((mixture.kind, mixture.router.factor), (MlpKind::Gated(gating), 2.0));
    assert_eq!(m3.ropes[0].rotary_dim, 8);
}

#[test]
fn what_is_not_built_is_refused_by_key() {
    for (config, expected) in [
        (deepseek_v32(&json!({"rope_interleave": false})), "rope_interleave"),
        (deepseek_v32(&json!({"scoring_func": "softmax"})), "scoring_func"),
        (deepseek_v32(&json!({"topk_method": "greedy"})), "topk_method"),
        (deepseek_v32(&json!({"index_topk": 0})), "index_topk is 0"),
        (glm_moe_dsa(&json!({"attention_bias": true})), "attention_bias"),
        (minimax_m3(&json!({"hidden_act": "gelu"})), "hidden_act"),
        (minimax_m3(&json!({"use_gemma_norm": false})), "use_gemma_norm"),
        (minimax_m3(&json!({"n_shared_experts": 2})), "n_shared_experts"),
        (minimax_m3(&json!({"layer_types": ["a", "b", "c", "d"]})), "layer_types has a, which"),
        (
            minimax_m3(&json!({"sparse_attention_config": {"sparse_attention_freq": [1, 1, 1, 1],
                "sparse_block_size": 0}})),
            "sparse_attention_config.sparse_block_size is 0",
        ),
    ] {
        assert_refused(&config, expected);
    }
}

/// Weights of an indexer may be left out. Other weights that the decoder does not know may not.
#[test]
fn only_the_weights_of_indexers_are_left_out() {
    for (name, known, unknown) in [
        ("deepseek_v32", "self_attn.indexer.wk.", "self_attn.chooser.wk."),
        ("glm_moe_dsa", "self_attn.indexer.wk.", "self_attn.chooser.wk."),
        ("minimax_m3", "self_attn.index_q_proj.", "self_attn.index_v_proj."),
    ] {
        let bytes = fs::read(golden(name).join("model.safetensors")).unwrap();
        let config: &'static [u8] = fs::read(golden(name).join("config.json")).unwrap().leak();
        let source = |bytes: Vec<u8>| {
            Source::Memory(vec![("config.json", config), ("model.safetensors", bytes.leak())].leak())
        };
        load(&source(bytes.clone())).unwrap_or_else(|error| panic!("{name}: {error}"));
        let renamed = bytes_replaced(&bytes, known, unknown);
        let text = load(&source(renamed)).err().unwrap().to_string();
        assert!(text.contains(unknown.trim_end_matches('.')), "{name}: {text}");
    }
}

/// Replaces a part of all names of a safetensors file by one of the same length.
fn bytes_replaced(bytes: &[u8], from: &str, to: &str) -> Vec<u8> {
    assert_eq!(from.len(), to.len());
    let mut bytes = bytes.to_vec();
    let places: Vec<usize> =
        (0..bytes.len() - from.len()).filter(|&at| bytes[at..].starts_with(from.as_bytes())).collect();
    assert!(!places.is_empty());
    places.iter().for_each(|&at| bytes[at..at + to.len()].copy_from_slice(to.as_bytes()));
    bytes
}
