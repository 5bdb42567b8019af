//! Folders that are refused, and spellings of names that are accepted.

use std::path::Path;

use safetensors::tensor::Dtype;
use serde_json::json;

use super::{Files, data, llama, merge, open};
use crate::adapters::adaptable;
use crate::description::{LayerSlot, WeightSlot};
use crate::split::Split;

const Q_A: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight";
const Q_B: &str = "base_model.model.model.layers.0.self_attn.q_proj.lora_B.weight";

/// Returns the message for an adapter that is refused.
#[track_caller]
fn refusal(change: impl FnOnce(&mut Files)) -> String {
    let mut files = Files::new();
    change(&mut files);
    files.open().unwrap_err().to_string()
}

#[test]
fn ranks_are_those_of_the_tensors() {
    let mut files = Files::new();
    files.config["rank_pattern"] = json!({"down_proj": 3});
    files.add("model.layers.1.mlp.down_proj", [48, 3, 36]);
    files.add("model.layers.0.self_attn.v_proj", [16, 2, 48]);
    let adapter = files.open().unwrap();
    assert_eq!(adapter.max_rank(), 3);
    let ranks = |slot| [0, 1].map(|layer| adapter.rank(WeightSlot::Layer(layer, slot)));
    assert_eq!([LayerSlot::Qkv, LayerSlot::Down, LayerSlot::Out].map(ranks), [[4, 0], [0, 3], [0, 0]]);
    let unchanged = adapter.weights(WeightSlot::Layer(1, LayerSlot::Qkv), Split::WHOLE).unwrap();
    assert_eq!(unchanged, None);
    // Queries are the first rows, and values the last.
    let qkv = adapter.weights(WeightSlot::Layer(0, LayerSlot::Qkv), Split::WHOLE).unwrap().unwrap();
    let rows: Vec<_> = qkv.products.into_iter().flat_map(|product| product.rows).collect();
    assert_eq!(rows, [0..48, 64..80]);
}

#[test]
fn names_may_have_the_adapter_in_them_or_no_prefix() {
    let zeros = || vec![vec![0.0; 48]; 80];
    let weights = |files: &Files| {
        let weights = files.open().unwrap().weights(WeightSlot::Layer(0, LayerSlot::Qkv), Split::WHOLE);
        let mut sum = zeros();
        merge(&mut sum, &weights.unwrap().unwrap());
        sum
    };
    let expected = weights(&Files::new());
    assert_ne!(expected, zeros());
    for [a, b] in [
        [&Q_A.replace("lora_A", "lora_A.default"), &Q_B.replace("lora_B", "lora_B.default")],
        [&Q_A.replace("base_model.model.", ""), &Q_B.replace("base_model.model.", "")],
        // Without the head, and as the text part of a model with images.
        [
            &Q_A.replace("model.model.model.", "model.model."),
            &Q_B.replace("model.model.model.", "model.model."),
        ],
        [
            &Q_A.replace("model.layers", "model.language_model.layers"),
            &Q_B.replace("model.layers", "model.language_model.layers"),
        ],
    ] {
        let mut files = Files::new();
        files.rename(Q_A, a);
        files.rename(Q_B, b);
        assert_eq!(weights(&files), expected, "{a}");
    }
}

#[test]
fn every_tensor_must_be_used() {
    for (name, shape, part) in [
        ("lm_head.lora_A.weight", &[2, 48][..], "has no lora_B; the file is incomplete"),
        ("lm_head.lora_B.weight", &[96, 2], "has no lora_A; the file is incomplete"),
        ("model.embed_tokens.lora_embedding_A", &[2, 96], "changes an embedding, which is not supported"),
        ("model.layers.0.self_attn.q_proj.lora_magnitude_vector", &[48], "is a part of DoRA"),
        ("model.layers.0.self_attn.q_proj.lora_B.bias", &[48], "is a bias of a product"),
        ("lm_head.modules_to_save.weight", &[96, 48], "replaces a module of the model"),
        ("model.layers.0.self_attn.q_proj.weight", &[48, 48], "is not a matrix of LoRA; it would be ignored"),
        ("lora_A.weight", &[2, 48], "is not a matrix of LoRA"),
        ("model.layers.0.self_attn.q_proj.lora_A.a.b.weight", &[2, 48], "is not a matrix of LoRA"),
    ] {
        let message = refusal(|files| files.set(&format!("base_model.model.{name}"), shape));
        assert!(message.contains(name) && message.contains(part), "{message}");
        assert!(message.contains("adapter_model.safetensors"), "{message}");
    }
}

#[test]
fn modules_that_are_not_supported_are_named() {
    for (module, sizes, part) in [
        ("lm_head", [96, 2, 48], "changes the head, and adapters of the head are not supported"),
        ("model.embed_tokens", [96, 2, 48], "changes an embedding"),
        ("model.layers.2.self_attn.q_proj", [48, 2, 48], "a module that the model does not have"),
        ("model.layers.0.mlp.experts.0.gate_proj", [48, 2, 48], "changes experts, and adapters of experts"),
        ("model.vision_tower.layers.0.q_proj", [48, 2, 48], "a module that the model does not have"),
        ("score", [2, 2, 48], "changes the head"),
    ] {
        let message = refusal(|files| files.add(module, sizes));
        assert!(message.contains(&format!("{module}.lora_A.weight")) && message.contains(part), "{message}");
    }
    let of = |base: &str, module: &str, sizes| {
        let mut files = Files::new();
        files.tensors.clear();
        files.add(module, sizes);
        let base = millrace_formats::Source::Directory(data(&format!("golden/{base}")));
        open(&base, files.write().path()).unwrap_err().to_string()
    };
    let latent = of("deepseek_v2", "model.layers.0.self_attn.kv_b_proj", [1, 2, 1]);
    assert!(latent.contains("kv_b_proj.lora_A.weight") && latent.contains("in full precision"), "{latent}");
    let expert = of("mixtral", "model.layers.0.block_sparse_moe.experts.0.w1", [1, 2, 1]);
    assert!(expert.contains("an expert, and adapters of experts are not supported"), "{expert}");
}

#[test]
fn tensors_that_contradict_are_refused() {
    let two = |name: &str, shape: &[usize]| refusal(|files| files.set(name, shape));
    for (message, part) in [
        (two(Q_A, &[3, 48]), "has rank 3, but by adapter_config.json its rank is 2"),
        (two(Q_A, &[0, 48]), "has rank 0, but"),
        (two(Q_A, &[2, 47]), "has shape [2, 47]"),
        (two(Q_B, &[48, 3]), "has shape [48, 3]"),
        (two(Q_B, &[47, 2]), "has shape [47, 2]"),
        (two(Q_B, &[48, 2, 1]), "has shape [48, 2, 1], but is no matrix"),
        (two(Q_A, &[]), "has shape [], but is no matrix"),
        (two(&Q_A.replace("lora_A", "lora_A.default"), &[2, 48]), "is for the same module as"),
        (two(&Q_A.replace("base_model.model.", ""), &[2, 48]), "is for the same module as"),
        (
            refusal(|files| {
                files.tensors.insert(Q_A.to_owned(), (Dtype::I32, vec![2, 48], vec![0; 2 * 48 * 4]));
            }),
            "has element type I32, but adapters must be F32, F16 or BF16",
        ),
        (refusal(|files| files.tensors.clear()), "has no tensors; the adapter would change nothing"),
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn numbers_that_are_not_finite_are_refused() {
    let slot = WeightSlot::Layer(0, LayerSlot::Qkv);
    for (number, alpha, part) in [
        (f32::NAN, 4.0, "has a number that is infinite or NaN"),
        (f32::INFINITY, 4.0, "has a number that is infinite or NaN"),
        (1e37, 1e6, "has numbers too large for the scale of 500000"),
    ] {
        let mut files = Files::new();
        files.config["lora_alpha"] = json!(alpha);
        files.set_numbers(Q_B, &[48, 2], (0..96).map(|index| if index == 95 { number } else { 0.5 }));
        let error = files.open().unwrap().weights(slot, Split::WHOLE).unwrap_err().to_string();
        assert!(error.contains(Q_B) && error.contains(part), "{error}");
    }
}

#[test]
fn a_file_that_changes_after_it_was_opened_is_refused() {
    let files = Files::new().write();
    let adapter = open(&llama(), files.path()).unwrap();
    let slot = WeightSlot::Layer(0, LayerSlot::Qkv);
    adapter.weights(slot, Split::WHOLE).unwrap();
    let file = std::fs::File::options().write(true).open(files.path().join("adapter_model.safetensors"));
    file.unwrap().set_len(100).unwrap();
    let error = adapter.weights(slot, Split::WHOLE).unwrap_err().to_string();
    assert!(error.contains("adapter_model.safetensors"), "{error}");
    assert!(error.contains("truncated") || error.contains("has been changed"), "{error}");
}

#[test]
fn folders_that_are_incomplete_are_refused() {
    let message = |folder: &Path| open(&llama(), folder).unwrap_err().to_string();
    let files = Files::new().write();
    let [config, tensors] =
        ["adapter_config.json", "adapter_model.safetensors"].map(|name| files.path().join(name));
    assert!(message(&config).contains("adapter_config.json is not a folder"));
    assert!(message(Path::new("/nonexistent")).contains("/nonexistent is not a folder"));
    std::fs::rename(&tensors, files.path().join("adapter.gguf")).unwrap();
    let other = message(files.path());
    assert!(other.contains("has no adapter_model.safetensors; it has adapter.gguf, but only"), "{other}");
    std::fs::remove_file(files.path().join("adapter.gguf")).unwrap();
    assert!(message(files.path()).contains("has no adapter_model.safetensors; download the weights"));
    std::fs::write(&tensors, b"not safetensors").unwrap();
    assert!(message(files.path()).contains("adapter_model.safetensors is not a usable safetensors file"));
    std::fs::remove_file(&config).unwrap();
    assert!(message(files.path()).contains("has no adapter_config.json; an adapter is a folder"));
}

#[test]
fn adaptable_matrices_are_in_layers_and_not_of_experts() {
    let base = millrace_formats::Source::Directory(data("golden/deepseek_v2"));
    let spec = crate::families::spec(&base).unwrap();
    let slots = adaptable(&spec);
    let has = |slot| slots.contains(&slot);
    for slot in [LayerSlot::QueryDown, LayerSlot::QueryUp, LayerSlot::LatentDown, LayerSlot::Out] {
        assert!(has(WeightSlot::Layer(1, slot)), "{slot:?}");
    }
    assert!(
        has(WeightSlot::Layer(1, LayerSlot::SharedGateUp)) && has(WeightSlot::Layer(0, LayerSlot::GateUp))
    );
    for slot in [LayerSlot::LatentUp, LayerSlot::Router, LayerSlot::ExpertDown, LayerSlot::ExpertGateUp] {
        assert!(!has(WeightSlot::Layer(1, slot)), "{slot:?}");
    }
    assert!(!has(WeightSlot::Head) && !has(WeightSlot::Embedding));
}
