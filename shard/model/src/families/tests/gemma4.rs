//! Tests of the configuration of Gemma 4.

use millrace_backend::{Activation, MlpKind};
use millrace_numbers::DType;
use serde_json::{Value, json};

use super::{changed, llama, spec};
use crate::description::{
    DecoderSpec, LayerSlot, NormPlace, PerLayerEmbedding, Positions, RopeScaling, SharedExpert, WeightSlot,
};
use crate::memory_plan::{UnpaddedDevice, kv_bytes_per_token};
use crate::split::LayerShare;

/// A file as the published ones are, of seven layers.
fn gemma4(changes: &Value) -> Value {
    let config = json!({
        "model_type": "gemma4_text", "architectures": ["Gemma4ForCausalLM"], "num_hidden_layers": 7,
        "hidden_size": 5376, "num_attention_heads": 32, "num_key_value_heads": 16, "head_dim": 256,
        "global_head_dim": 512, "num_global_key_value_heads": 4, "attention_k_eq_v": true,
        "hidden_size_per_layer_input": 0, "sliding_window": 1024, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": "absent", "rope_theta": "absent", "rope_scaling": "absent",
    });
    changed(changed(llama(), &config), changes)
}

fn read(changes: &Value) -> DecoderSpec {
    spec(&gemma4(changes)).unwrap()
}

/// Returns the window of each layer, its key heads and their features, and its rotary table.
fn layers(spec: &DecoderSpec) -> Vec<(Option<usize>, usize, usize, usize)> {
    let of_layer = |layer: &crate::description::LayerSpec| {
        let heads = layer.attention.heads().unwrap();
        let Positions::Rotary { table } = heads.positions else { panic!("not rotated") };
        (layer.attention.window(), heads.layout.kv_heads, heads.layout.head_dim, table)
    };
    spec.layers.iter().map(of_layer).collect()
}

#[test]
fn layers_without_a_window_have_other_heads() {
    let found = read(&json!({}));
    let (windowed, full) = ((Some(1024), 16, 256, 1), (None, 4, 512, 0));
    // The last layer never has a window.
    assert_eq!(layers(&found), [vec![windowed; 5], vec![full; 2]].concat());
    let scaling = RopeScaling::Proportional { pairs: 64, factor: 1.0 };
    assert_eq!((found.ropes[0].rotary_dim, &found.ropes[0].scaling), (512, &scaling));
    assert_eq!((found.ropes[0].theta, found.ropes[1].theta, found.ropes[1].rotary_dim), (1e6, 1e4, 256));
    let keys_are_values: Vec<bool> =
        found.layers.iter().map(|layer| layer.attention.heads().unwrap().values_are_keys).collect();
    assert_eq!(keys_are_values, [vec![false; 5], vec![true; 2]].concat());
    assert!(found.layer_scalars && found.tied_head && found.norm.place == NormPlace::AroundBranches);
    let heads = found.layers[0].attention.heads().unwrap();
    assert!(heads.value_norm && heads.score_scale == 1.0);
    assert_eq!((found.head.soft_cap, found.embedding.factor), (None, 5376f32.sqrt()));
}

#[test]
fn heads_of_each_layer_may_be_listed() {
    let list = json!({"5": {"head_dim": 512, "num_key_value_heads": 4}, "6": {"head_dim": 512, "num_key_value_heads": 4}});
    let listed = json!({
        "per_layer_config": list, "global_head_dim": "absent", "num_global_key_value_heads": "absent",
    });
    assert_eq!(read(&listed), read(&json!({})));
    // Without an entry, a layer has the usual heads.
    let unlisted = json!({"per_layer_config": {}, "layer_types": vec!["full_attention"; 7]});
    assert_eq!(layers(&read(&unlisted)), vec![(None, 16, 256, 0); 7]);
}

#[test]
fn projections_to_values_keep_the_number_of_key_heads() {
    let found = read(&json!({"attention_k_eq_v": false, "layer_types": vec!["sliding_attention"; 7]}));
    assert_eq!(layers(&found)[5..], [(Some(1024), 16, 256, 1), (None, 16, 512, 0)]);
    assert!(!found.layers[6].attention.heads().unwrap().values_are_keys);
    // A projection that is used twice counts once.
    let shared =
        read(&json!({"layer_types": vec!["sliding_attention"; 7], "num_global_key_value_heads": 16}));
    assert_eq!(found.parameters() - shared.parameters(), 16 * 512 * 5376);
}

#[test]
fn the_mlp_is_the_shared_expert_of_experts() {
    let keys = json!({
        "enable_moe_block": true, "num_experts": 128, "top_k_experts": 8, "moe_intermediate_size": 704,
        "intermediate_size": 2112,
    });
    let found = read(&keys);
    for layer in &found.layers {
        let experts = layer.mlp.experts().unwrap();
        assert_eq!((experts.count(), experts.router.top_k, experts.width), (128, 8, 704));
        assert_eq!(experts.shared, Some(SharedExpert { width: 2112, gated: false }));
        assert_eq!(experts.kind, MlpKind::Gated(Activation::GeluTanh.into()));
        assert!(experts.router.normalize && experts.scales && experts.own_norms);
    }
    // Transformers has no defaults for these.
    for key in ["num_experts", "top_k_experts", "moe_intermediate_size"] {
        let error = spec(&gemma4(&changed(keys.clone(), &json!({ key: "absent" })))).unwrap_err();
        assert!(error.to_string().contains(key), "{error}");
    }
}

/// E2B has 15 layers with caches, and 20 that read the caches of layers 13 and 14.
#[test]
fn the_last_layers_read_the_caches_of_earlier_ones() {
    let kinds = [
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "sliding_attention",
        "full_attention",
    ];
    let kinds: Vec<&str> = kinds.into_iter().cycle().take(35).collect();
    let e2b = json!({
        "num_hidden_layers": 35, "hidden_size": 1536, "num_attention_heads": 8, "num_key_value_heads": 1,
        "intermediate_size": 6144, "attention_k_eq_v": false, "layer_types": kinds, "sliding_window": 512,
        "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
    });
    let found = read(&e2b);
    let sources: Vec<Option<usize>> =
        found.layers.iter().map(|layer| layer.attention.heads().unwrap().kv_source).collect();
    let of_five = [vec![Some(13); 4], vec![Some(14)]].concat();
    assert_eq!(sources, [vec![None; 15], of_five.repeat(4)].concat());
    let widths: Vec<usize> = found.layers.iter().map(|layer| layer.mlp.dense().unwrap().width).collect();
    assert_eq!(widths, [vec![6144; 15], vec![12_288; 20]].concat());
    // Layers that read have no weights of keys and values, and no memory for them.
    let (own, none) = (WeightSlot::Layer(14, LayerSlot::Qkv), WeightSlot::Layer(34, LayerSlot::Qkv));
    assert_eq!((found.shape(own), found.shape(none)), ((10 * 512, 1536), (8 * 512, 1536)));
    assert!(!found.slots().contains(&WeightSlot::Layer(34, LayerSlot::KNorm)));
    let per_token = kv_bytes_per_token(&found, DType::BF16.into(), &UnpaddedDevice);
    assert_eq!(per_token, 2 * 2 * (12 * 256 + 3 * 512));
    let narrow = read(&changed(e2b, &json!({"use_double_wide_mlp": false})));
    assert!(narrow.layers.iter().all(|layer| layer.mlp.dense().unwrap().width == 6144));
    // Such layers stay on one device.
    let share = LayerShare { rank: 1, world_size: 2 };
    let error = share.layers(&found).unwrap_err().to_string();
    assert!(error.contains("has layers that read the KV cache of others"), "{error}");
    assert_eq!(LayerShare { rank: 0, world_size: 1 }.layers(&found), Ok(0..35));
    assert!(share.layers(&read(&json!({}))).is_ok());
}

#[test]
fn layers_have_embeddings_of_their_own_unless_their_width_is_zero() {
    let read = |width: Value| read(&json!({"hidden_size_per_layer_input": width})).per_layer;
    let usual = PerLayerEmbedding { rows: 262_144, width: 256, act: Activation::GeluTanh };
    assert_eq!([json!(0), Value::Null].map(read), [None, None]);
    assert_eq!([json!("absent"), json!(256)].map(read), [Some(usual), Some(usual)]);
    let found = self::read(&json!({
        "hidden_size_per_layer_input": 32, "vocab_size_per_layer_input": 262_208, "hidden_activation": "silu",
    }));
    let expected = PerLayerEmbedding { rows: 262_208, width: 32, act: Activation::Silu };
    assert_eq!(found.per_layer, Some(expected));
    assert_eq!(found.shape(WeightSlot::PerLayerEmbedding), (262_208, 7 * 32));
    assert_eq!(found.shape(WeightSlot::PerLayerProjection), (7 * 32, 5376));
    assert_eq!(found.indivisible_layers(), Some("embeddings for each layer"));
}

#[test]
fn what_is_not_computed_is_refused_by_key() {
    for (changes, message) in [
        (json!({"use_bidirectional_attention": "all"}), "use_bidirectional_attention"),
        (
            json!({"num_kv_shared_layers": 2}),
            "num_kv_shared_layers is 2, which leaves layer 5 no earlier cache",
        ),
        (json!({"num_kv_shared_layers": 8}), "num_kv_shared_layers is 8, but there are 7 layers"),
        (
            json!({"num_kv_shared_layers": 1, "per_layer_config": {"6": {"num_key_value_heads": 8}}}),
            "lets layer 6 read the cache of layer 5, which has other heads",
        ),
        (json!({"enable_moe_block": true, "use_double_wide_mlp": true}), "use_double_wide_mlp"),
        (
            json!({"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 7}),
            "vocab_size_per_layer_input is 7, but each of the",
        ),
        (json!({"hidden_size_per_layer_input": 1 << 21}), "hidden_size_per_layer_input"),
        (json!({"sliding_window": null}), "sliding_window"),
        (json!({"num_global_key_value_heads": 5}), "5 key/value heads of layer 5 do not divide"),
        (json!({"per_layer_config": {"9": {}}}), "per_layer_config has 9, which is no number of a layer"),
        (json!({"per_layer_config": {"1": {"hidden_size": 8}}}), "per_layer_config.1.hidden_size"),
        (json!({"per_layer_config": {"1": {"head_dim": 128}}}), "heads of different lengths"),
        (json!({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}), "rope_scaling"),
    ] {
        let error = spec(&gemma4(&changes)).unwrap_err().to_string();
        assert!(error.contains(message), "{changes}: {error}");
    }
    // Texts attend causally where only images do not.
    assert_eq!(read(&json!({"use_bidirectional_attention": "vision"})), read(&json!({})));
}
