//! Tests of configurations of models that also read images.

use serde_json::{Value, json};

use super::{changed, llama, spec};
use crate::description::{DecoderSpec, QueryScale};

/// The configuration of a model with images whose text part has these keys.
fn with_text(model_type: &str, text: &Value) -> Value {
    json!({
        "model_type": model_type, "architectures": ["ModelForConditionalGeneration"], "hidden_size": 7,
        "text_config": text, "vision_config": {"hidden_size": 9},
    })
}

#[test]
fn keys_of_the_whole_model_do_not_hide_those_of_the_text_part() {
    let text = changed(llama(), &json!({"model_type": "mistral", "architectures": "absent"}));
    let of_part = spec(&with_text("mistral3", &text)).unwrap();
    let alone = spec(&text).unwrap();
    assert_eq!(of_part, alone);
}

#[test]
fn older_files_have_the_keys_of_the_text_part_beside_the_others() {
    let changes = json!({
        "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    });
    let flat = spec(&changed(llama(), &changes)).unwrap();
    let qwen2 = json!({"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"]});
    assert_eq!(flat, spec(&changed(llama(), &qwen2)).unwrap());
}

#[test]
fn queries_of_ministral_3_are_scaled() {
    let rope = json!({
        "rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 16384,
        "mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1,
    });
    let changes = json!({"model_type": "ministral3", "architectures": "absent", "rope_parameters": rope});
    let text = changed(llama(), &changes);
    let found = spec(&with_text("mistral3", &text)).unwrap();
    let scale = QueryScale { beta: 0.1, interval: 16384.0, offset: 0 };
    assert_eq!((found.ropes.len(), found.query_scale), (1, Some(scale)));
    let scaled = |spec: &DecoderSpec| {
        spec.layers.iter().all(|layer| layer.attention.heads().is_some_and(|heads| heads.scales_queries))
    };
    assert!(scaled(&found));
    assert_eq!(found.max_positions, 262_144);
    assert!(found.layers.iter().all(|layer| layer.attention.window().is_none()));
    let unscaled = changed(text.clone(), &json!({"rope_parameters": {"rope_theta": 1e6}}));
    let unscaled = spec(&unscaled).unwrap();
    assert!(unscaled.query_scale.is_none() && !scaled(&unscaled));

    let refused = |rope: Value| {
        spec(&changed(text.clone(), &json!({"rope_parameters": rope}))).unwrap_err().to_string()
    };
    assert!(refused(json!("absent")).contains("rope_parameters"));
    let error = refused(json!({"llama_4_scaling_beta": 0.1}));
    assert!(error.contains("rope_parameters.original_max_position_embeddings"), "{error}");
    let error = refused(json!({"llama_4_scaling_beta": -1, "original_max_position_embeddings": 8}));
    assert!(error.contains("rope_parameters.llama_4_scaling_beta is -1"), "{error}");
}

#[test]
fn weights_of_experts_of_qwen3_vl_are_always_normalized() {
    let changes = json!({"model_type": "qwen3_vl_moe_text", "architectures": "absent", "num_experts": 6});
    let text = changed(llama(), &changes);
    let found = spec(&with_text("qwen3_vl_moe", &text)).unwrap();
    let experts = found.layers[0].mlp.experts().unwrap();
    assert_eq!((experts.count(), experts.width, experts.router.top_k), (6, 1408, 4));
    assert!(experts.router.normalize);
    let changes = json!({"norm_topk_prob": false});
    let error = spec(&with_text("qwen3_vl_moe", &changed(text, &changes))).unwrap_err().to_string();
    assert!(error.contains("text_config.norm_topk_prob"), "{error}");
}

/// The file of Gemma 3 4B has no more keys than these.
#[test]
fn absent_keys_of_gemma_3_have_its_defaults() {
    let text = json!({
        "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
        "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
    });
    let spec = spec(&with_text("gemma3", &text)).unwrap();
    let layout = spec.layers[0].attention.heads().unwrap().layout;
    assert_eq!((layout.heads, layout.kv_heads, layout.head_dim), (8, 4, 256));
    assert_eq!((spec.vocab, spec.max_positions), (262_208, 8 * 131_072));
}

#[test]
fn an_error_in_the_text_part_names_the_whole_path() {
    let text =
        changed(llama(), &json!({"model_type": "mistral", "architectures": "absent", "hidden_size": 0}));
    let error = spec(&with_text("mistral3", &text)).unwrap_err().to_string();
    assert!(error.contains("text_config.hidden_size"), "{error}");
}

#[test]
fn a_text_part_of_an_unknown_family_is_refused_by_name() {
    let error = spec(&with_text("mistral3", &json!({"model_type": "t5"}))).unwrap_err().to_string();
    assert!(error.contains("t5"), "{error}");
}
