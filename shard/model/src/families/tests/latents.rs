//! Tests of the configurations of models with latent attention.

use millrace_backend::{ExpertGroups, GroupScore, RopeStyle, RouterScores};
use serde_json::{Value, json};

use super::configs::assert_refused;
use super::{changed, experts, spec};
use crate::description::{DecoderSpec, LatentPlan};

/// A small DeepSeek model.
fn deepseek(version: &str, changes: &Value) -> Value {
    let config = json!({
        "num_key_value_heads": 4, "q_lora_rank": 6, "kv_lora_rank": 12, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4, "v_head_dim": 5, "n_group": 4, "topk_group": 2,
    });
    let base = experts(version, &format!("Deepseek{}ForCausalLM", version[9..].to_uppercase()), &config);
    changed(base, changes)
}

#[test]
fn latents_of_deepseek() {
    let v3 = spec(&deepseek("deepseek_v3", &json!({}))).unwrap();
    let heads = v3.layers[0].attention.heads().unwrap();
    assert_eq!((heads.layout.heads, heads.layout.kv_heads, heads.layout.head_dim), (4, 1, 16));
    let latent = heads.latent.unwrap();
    assert_eq!(
        latent,
        LatentPlan {
            query_rank: Some(6),
            plain_dim: 6,
            rotary_dim: 4,
            rank: 12,
            value_dim: 5,
            norm_eps: 1e-6,
        }
    );
    assert_eq!(heads.score_scale, 10f32.sqrt().recip());
    assert_eq!((v3.ropes[0].style, v3.ropes[0].rotary_dim), (RopeStyle::Interleaved, 4));
    let sparse: Vec<bool> = v3.layers.iter().map(|layer| layer.mlp.experts().is_some()).collect();
    assert_eq!(sparse, [false, false, false, true]);
    let router = v3.layers[3].mlp.experts().unwrap().router;
    assert_eq!(router.groups, Some(ExpertGroups { count: 4, chosen: 2, score: GroupScore::TwoBest }));

    // Kimi K2 has the same architecture under another type.
    let kimi = spec(&deepseek("deepseek_v3", &json!({"model_type": "kimi_k2"}))).unwrap();
    assert_eq!(DecoderSpec { model_type: v3.model_type.clone(), ..kimi }, v3);

    let lite = deepseek("deepseek_v2", &json!({"q_lora_rank": null, "topk_method": "group_limited_greedy"}));
    let lite = spec(&lite).unwrap();
    assert_eq!(lite.layers[0].attention.heads().unwrap().latent.unwrap().query_rank, None);
    let router = lite.layers[0].mlp.experts().unwrap().router;
    assert_eq!((router.scores, router.normalize), (RouterScores::Softmax, false));
    assert_eq!(router.groups, Some(ExpertGroups { count: 4, chosen: 2, score: GroupScore::Best }));

    // The scale grows with YaRN: 1 + 0.1 * 0.5 * ln(4), squared.
    let yarn = json!({"rope_scaling": {
        "type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 0.5, "original_max_position_embeddings": 16,
    }});
    let scale =
        spec(&deepseek("deepseek_v3", &yarn)).unwrap().layers[0].attention.heads().unwrap().score_scale;
    let expected = (1.0 + 0.05 * 4f32.ln()).powi(2) / 10f32.sqrt();
    assert!((scale - expected).abs() < 1e-6, "{scale}");
}

#[test]
fn what_deepseek_lacks_is_refused_by_key() {
    let (v2, v3) = (|changes| deepseek("deepseek_v2", &changes), |changes| deepseek("deepseek_v3", &changes));
    for (config, expected) in [
        (v3(json!({"attention_bias": true})), "attention_bias"),
        (v3(json!({"scoring_func": "softmax"})), "scoring_func"),
        (v3(json!({"topk_method": "greedy"})), "topk_method"),
        (v3(json!({"moe_layer_freq": 2})), "moe_layer_freq"),
        (v3(json!({"n_group": "absent"})), "n_group"),
        (v3(json!({"kv_lora_rank": 0})), "kv_lora_rank is 0"),
        (v3(json!({"kv_lora_rank": 1_000_000})), "kv_lora_rank is 1000000, more than the limit"),
        (v3(json!({"qk_rope_head_dim": 5})), "even number"),
        (v2(json!({"norm_topk_prob": true})), "norm_topk_prob"),
        (v2(json!({"topk_method": "noaux_tc"})), "topk_method"),
    ] {
        assert_refused(&config, expected);
    }
    let many = v3(json!({"num_attention_heads": 16384, "num_key_value_heads": 16384, "kv_lora_rank": 4096}));
    assert_refused(&many, "num_attention_heads is 16384, too many");
}
