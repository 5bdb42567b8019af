//! Tests of configurations whose keys contradict each other or the tensors.

use millrace_formats::Source;
use serde_json::{Value, json};

use super::{changed, config_only, golden, llama, load, load_dummy};
use millrace_numbers::DType;

/// Returns the family that a changed Llama is computed as, and the warnings.
fn found(changes: Value) -> (String, Vec<String>) {
    let model = load_dummy(&config_only(&changed(llama(), &changes))).unwrap();
    (model.spec.model_type, model.warnings.configuration)
}

#[test]
fn keys_that_agree_have_no_warnings() {
    for changes in [
        json!({}),
        json!({"architectures": "absent"}),
        json!({"model_type": "absent"}),
        json!({"architectures": ["LlamaModel"]}),
        json!({"architectures": ["LlamaForCausalLM", "LlamaForCausalLM"]}),
        json!({"model_type": "falcon", "architectures": ["RWForCausalLM", "FalconForCausalLM"]}),
    ] {
        let config = changed(llama(), &changes);
        let model = load_dummy(&config_only(&config)).unwrap_or_else(|error| panic!("{changes}: {error}"));
        assert_eq!(model.warnings.configuration, Vec::<String>::new(), "{changes}");
    }
}

/// Early repositories name classes of their own code.
#[test]
fn old_names_have_no_warnings() {
    for (changes, family) in [
        (
            json!({"architectures": ["LLaMAForCausalLM"], "max_position_embeddings": "absent", "max_sequence_length": 48}),
            "llama",
        ),
        (json!({"model_type": "aquila", "architectures": ["AquilaForCausalLM"]}), "llama"),
        (json!({"model_type": "Yi", "architectures": ["YiForCausalLM"]}), "llama"),
        (json!({"model_type": "internlm", "architectures": ["InternLMForCausalLM"]}), "llama"),
        (json!({"model_type": "RefinedWeb", "architectures": ["RWForCausalLM"]}), "falcon"),
        (json!({"model_type": "stablelm_epoch", "architectures": ["StableLMEpochForCausalLM"]}), "stablelm"),
    ] {
        assert_eq!(found(changes), (family.to_owned(), Vec::new()));
    }
}

#[test]
fn the_model_type_decides_among_known_families() {
    let (family, warnings) = found(json!({"model_type": "qwen2"}));
    assert_eq!(family, "qwen2");
    assert_eq!(warnings.len(), 1, "{warnings:?}");
    assert!(
        warnings[0].contains("`model_type` is qwen2, but `architectures` names LlamaForCausalLM")
            && warnings[0].ends_with("computed as Qwen2ForCausalLM, as `model_type` says"),
        "{warnings:?}"
    );
    // The class still says that there is no head.
    let config = changed(llama(), &json!({"model_type": "qwen2", "architectures": ["LlamaModel"]}));
    assert!(load_dummy(&config_only(&config)).unwrap().spec.head.is_absent);
    // An encoder computes something else than a decoder.
    for changes in [
        json!({"architectures": ["BertForMaskedLM"]}),
        json!({"architectures": ["LlamaForSequenceClassification"]}),
        json!({"model_type": "bert"}),
    ] {
        let text = load_dummy(&config_only(&changed(llama(), &changes))).err().unwrap().to_string();
        assert!(text.contains("is not supported; the nearest family is "), "{changes}: {text}");
    }
}

#[test]
fn other_classes_beside_the_used_one_are_named() {
    for (other, result) in [
        ("LlamaForSequenceClassification", "LlamaForCausalLM is used, which generates texts"),
        ("LlamaModel", "LlamaForCausalLM is used, which generates texts"),
        ("Qwen2ForCausalLM", "LlamaForCausalLM is used, which generates texts"),
    ] {
        let (family, warnings) = found(json!({"architectures": [other, "LlamaForCausalLM"]}));
        assert_eq!((family.as_str(), warnings.len()), ("llama", 1), "{warnings:?}");
        assert!(warnings[0].contains(other) && warnings[0].ends_with(result), "{warnings:?}");
    }
}

#[test]
fn an_element_type_that_the_tensors_do_not_have_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let config = std::fs::read_to_string(golden("llama_bf16/config.json")).unwrap();
    std::fs::copy(golden("llama_bf16/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    let loaded = |name: &str| {
        std::fs::write(folder.path().join("config.json"), config.replace("bfloat16", name)).unwrap();
        let model = load(&Source::Directory(folder.path().to_owned())).unwrap();
        (model.dtype, model.warnings.dtype.unwrap_or_default())
    };
    assert_eq!(loaded("bfloat16"), (DType::BF16, String::new()));
    for name in ["float16", "float32"] {
        let (dtype, warning) = loaded(name);
        assert_eq!(dtype, DType::BF16);
        assert!(
            warning.contains(&format!("is {name}, but the tensors are bfloat16: bfloat16 is used")),
            "{warning}"
        );
    }
}
