//! Tests of configurations of models that also read images.

use serde_json::{Value, json};

use super::{changed, llama, spec};

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
