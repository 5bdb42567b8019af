//! Tests of the configuration of Kimi Linear.

use millrace_backend::Activation;
use serde_json::{Value, json};

use super::configs::assert_refused;
use super::{changed, experts, spec};
use crate::description::{DecoderSpec, RecurrentLayer, RecurrentRule, ResultPlan};

/// A configuration with the keys of published files.
fn published(changes: &Value) -> Value {
    let config = json!({
        "num_key_value_heads": 4, "q_lora_rank": null, "kv_lora_rank": 12, "qk_nope_head_dim": 6,
        "qk_rope_head_dim": 4, "v_head_dim": 5, "head_dim": 72, "max_position_embeddings": "absent",
        "model_max_length": 1000, "num_experts_per_tok": "absent", "num_experts_per_token": 3,
        "n_routed_experts": "absent", "num_local_experts": "absent", "num_shared_experts": 2,
        "moe_renormalize": false, "num_expert_group": 4, "topk_group": 2, "mla_use_nope": true,
        "moe_router_activation_func": "sigmoid", "routed_scaling_factor": 1.5, "rope_theta": 10000.0,
        "linear_attn_config": {
            "head_dim": 6, "num_heads": 3, "short_conv_kernel_size": 5, "full_attn_layers": [3, 4], "kda_layers": [1, 2],
        },
    });
    changed(experts("kimi_linear", "KimiLinearForCausalLM", &config), changes)
}

fn kinds(spec: &DecoderSpec) -> Vec<bool> {
    spec.layers.iter().map(|layer| layer.attention.recurrent().is_some()).collect()
}

fn first(spec: &DecoderSpec) -> &RecurrentLayer {
    spec.layers.iter().find_map(|layer| layer.attention.recurrent()).unwrap()
}

#[test]
fn keys_of_published_files_are_read() {
    let read = spec(&published(&json!({}))).unwrap();
    assert_eq!(kinds(&read), [true, true, false, false]);
    assert_eq!(read.max_positions, 1000);
    let layer = first(&read);
    assert_eq!((layer.heads.key_heads, layer.heads.heads, layer.heads.key_dim, layer.taps), (3, 3, 6, 5));
    assert_eq!(layer.rule, RecurrentRule::ChannelDelta { act: Activation::Silu, rank: 6 });
    assert_eq!(layer.result, ResultPlan::Normed { eps: 1e-5, gated: true });
    assert_eq!([layer.projected_cols(), layer.rate_cols(), layer.channel_rates()], [54, 3, 18]);
    let experts = read.layers[1].mlp.experts().unwrap();
    assert_eq!((experts.router.top_k, experts.router.normalize, experts.router.factor), (3, false, 1.5));
    assert_eq!((experts.shared.unwrap().width, experts.router.groups.unwrap().count), (24, 4));
    assert!(read.layers[0].mlp.experts().is_none());

    // No feature is rotated, whatever the position.
    let heads = read.layers[2].attention.heads().unwrap();
    assert_eq!(heads.latent.unwrap().query_rank, None);
    assert!(read.ropes.iter().all(|rope| rope.values(1000).sin.iter().all(|&sin| sin == 0.0)));
    assert_eq!(heads.score_scale, 10f32.sqrt().recip());
}

#[test]
fn absent_keys_have_the_values_of_transformers() {
    let absent = json!({
        "linear_attn_config": "absent", "q_lora_rank": "absent", "model_max_length": "absent",
        "num_expert_group": "absent", "topk_group": "absent", "moe_renormalize": "absent",
        "routed_scaling_factor": "absent", "num_hidden_layers": 6,
    });
    let read = spec(&published(&absent)).unwrap();
    assert_eq!(kinds(&read), [true, true, true, true, false, true]);
    assert_eq!((first(&read).heads.heads, first(&read).heads.key_dim, first(&read).taps), (32, 128, 4));
    assert_eq!(read.max_positions, 1 << 20);
    let router = read.layers[1].mlp.experts().unwrap().router;
    assert_eq!((router.factor, router.normalize, router.groups), (2.446, true, None));
}

#[test]
fn what_is_not_built_is_refused_by_key() {
    let layers = |full: Value, recurrent: Value| {
        published(&json!({"linear_attn_config": {"full_attn_layers": full, "kda_layers": recurrent}}))
    };
    for (config, expected) in [
        (published(&json!({"mla_use_nope": false})), "mla_use_nope"),
        (published(&json!({"moe_router_activation_func": "softmax"})), "moe_router_activation_func"),
        (published(&json!({"moe_layer_freq": 2})), "moe_layer_freq"),
        (published(&json!({"rope_scaling": {"type": "linear", "factor": 2.0}})), "rope_scaling"),
        (published(&json!({"linear_attn_config": {"num_heads": 0}})), "linear_attn_config.num_heads is 0"),
        (layers(json!([4]), json!([1, 2])), "linear_attn_config.kda_layers must name layer 3"),
        (layers(json!([3, 4]), json!([1, 2, 3])), "linear_attn_config.kda_layers must name layer 3"),
    ] {
        assert_refused(&config, expected);
    }
}
