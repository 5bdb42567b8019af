//! Tests that parts are the right rows of the right tensors, for stored and dummy weights.

use millrace_formats::Source;
use millrace_numbers::{DType, Part};
use proptest::prelude::*;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

use super::super::names::{LLAMA, Names};
use super::{changed, config_only, golden, llama, load, load_dummy};
use crate::description::{FeatureBlock, LayerSlot, StoredTensors, WeightKind, WeightSlot, WeightSource};

/// Returns all elements of a weight, stacked.
fn elements(weights: &dyn WeightSource, slot: WeightSlot) -> Vec<f32> {
    let parts = weights.parts(slot).unwrap();
    let rows = |part: &Part| {
        let (rows, cols) = (part.rows.len(), part.cols.len());
        (0..rows)
            .flat_map(|row| (0..cols).map(move |col| (row, col)))
            .map(|(r, c)| part.get(r, c))
            .collect::<Vec<_>>()
    };
    parts.iter().flat_map(rows).collect()
}

/// The tensors of a checkpoint: name, shape, elements.
type Tensors = Vec<(String, Vec<usize>, Vec<f32>)>;

fn source(config: &Value, tensors: &Tensors) -> Source {
    let bytes: Vec<(String, Vec<usize>, Vec<u8>)> = tensors
        .iter()
        .map(|(name, shape, values)| {
            (name.clone(), shape.clone(), values.iter().flat_map(|v| v.to_le_bytes()).collect())
        })
        .collect();
    let views = bytes
        .iter()
        .map(|(name, shape, bytes)| (name, TensorView::new(Dtype::F32, shape.clone(), bytes).unwrap()));
    let file: &'static [u8] = safetensors::serialize(views, None).unwrap().leak();
    let config: &'static [u8] = config.to_string().into_bytes().leak();
    Source::Memory(vec![("config.json", config), ("model.safetensors", file)].leak())
}

/// Creates tensors in which every element has a different value.
fn tensors(list: &[(&str, &[usize])]) -> Tensors {
    let mut next = 0.0;
    let mut tensor = |(name, shape): &(&str, &[usize])| {
        let count: usize = shape.iter().product();
        let values = (0..count).map(|i| next + i as f32).collect();
        next += count as f32;
        ((*name).to_owned(), shape.to_vec(), values)
    };
    list.iter().map(&mut tensor).collect()
}

/// A model of one layer: 4 heads on 2 KV heads of 4 features, width 16, 6 features in the MLP,
/// vocabulary 10.
const SEPARATE: &[(&str, &[usize])] = &[
    ("model.embed_tokens.weight", &[10, 16]),
    ("model.norm.weight", &[16]),
    ("lm_head.weight", &[10, 16]),
    ("model.layers.0.input_layernorm.weight", &[16]),
    ("model.layers.0.post_attention_layernorm.weight", &[16]),
    ("model.layers.0.self_attn.q_proj.weight", &[16, 16]),
    ("model.layers.0.self_attn.k_proj.weight", &[8, 16]),
    ("model.layers.0.self_attn.v_proj.weight", &[8, 16]),
    ("model.layers.0.self_attn.q_proj.bias", &[16]),
    ("model.layers.0.self_attn.k_proj.bias", &[8]),
    ("model.layers.0.self_attn.v_proj.bias", &[8]),
    ("model.layers.0.self_attn.o_proj.weight", &[16, 16]),
    ("model.layers.0.mlp.gate_proj.weight", &[6, 16]),
    ("model.layers.0.mlp.up_proj.weight", &[6, 16]),
    ("model.layers.0.mlp.down_proj.weight", &[16, 6]),
];

fn small(model_type: &str, architecture: &str) -> Value {
    json!({
        "architectures": [architecture], "model_type": model_type, "head_dim": 4, "hidden_size": 16,
        "intermediate_size": 6, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2,
        "vocab_size": 10, "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "attention_bias": true,
    })
}

/// Stacks the tensors `parts` into one tensor `name`.
fn fuse(tensors: &mut Tensors, name: &str, parts: &[&str]) {
    let mut fused: Option<(Vec<usize>, Vec<f32>)> = None;
    for part in parts {
        let at = tensors.iter().position(|(other, ..)| other.ends_with(part)).unwrap();
        let (_, shape, values) = tensors.remove(at);
        match &mut fused {
            None => fused = Some((shape, values)),
            Some((rows, stacked)) => {
                rows[0] += shape[0];
                stacked.extend(values);
            }
        }
    }
    let (shape, values) = fused.unwrap();
    tensors.push((name.to_owned(), shape, values));
}

#[test]
fn fused_and_separate_tensors_give_the_same_weights() {
    let separate = tensors(SEPARATE);
    let qwen = load(&source(&small("qwen2", "Qwen2ForCausalLM"), &separate)).unwrap();
    let mut half_fused = separate.clone();
    fuse(&mut half_fused, "model.layers.0.mlp.gate_up_proj.weight", &["gate_proj.weight", "up_proj.weight"]);
    let glm = load(&source(&small("glm", "GlmForCausalLM"), &half_fused)).unwrap();

    let mut fused = half_fused.clone();
    for kind in ["weight", "bias"] {
        let name = format!("transformer.encoder.layers.0.self_attention.query_key_value.{kind}");
        let parts = ["q", "k", "v"].map(|part| format!("{part}_proj.{kind}"));
        fuse(&mut fused, &name, &parts.each_ref().map(String::as_str));
    }
    let renames = [
        ("model.embed_tokens", "transformer.embedding.word_embeddings"),
        ("model.norm", "transformer.encoder.final_layernorm"),
        ("lm_head", "transformer.output_layer"),
        ("model.layers", "transformer.encoder.layers"),
        ("self_attn.o_proj", "self_attention.dense"),
        ("gate_up_proj", "dense_h_to_4h"),
        ("down_proj", "dense_4h_to_h"),
    ];
    for (name, ..) in &mut fused {
        *name = renames.iter().fold(name.clone(), |name, (old, new)| name.replace(old, new));
    }
    let config = json!({
        "model_type": "chatglm", "hidden_size": 16, "ffn_hidden_size": 6, "kv_channels": 4, "num_layers": 1,
        "num_attention_heads": 4, "multi_query_attention": true, "multi_query_group_num": 2, "seq_length": 64,
        "padded_vocab_size": 10, "layernorm_epsilon": 1e-5, "add_qkv_bias": true,
    });
    let chatglm = load(&source(&config, &fused)).unwrap();

    // The expected order of the blocks is written out here.
    let stacked = |parts: &[&str]| -> Vec<f32> {
        let find = |part: &&str| separate.iter().find(|(name, ..)| name.ends_with(part)).unwrap().2.clone();
        parts.iter().flat_map(find).collect()
    };
    let at = |slot| WeightSlot::Layer(0, slot);
    let expected = [
        (WeightSlot::Embedding, stacked(&["embed_tokens.weight"])),
        (at(LayerSlot::Qkv), stacked(&["q_proj.weight", "k_proj.weight", "v_proj.weight"])),
        (at(LayerSlot::QkvBias), stacked(&["q_proj.bias", "k_proj.bias", "v_proj.bias"])),
        (at(LayerSlot::Out), stacked(&["o_proj.weight"])),
        (at(LayerSlot::GateUp), stacked(&["gate_proj.weight", "up_proj.weight"])),
        (at(LayerSlot::Down), stacked(&["down_proj.weight"])),
        (at(LayerSlot::AttentionNorm), stacked(&["input_layernorm.weight"])),
        (at(LayerSlot::MlpNorm), stacked(&["post_attention_layernorm.weight"])),
        (WeightSlot::FinalNorm, stacked(&["model.norm.weight"])),
        (WeightSlot::Head, stacked(&["lm_head.weight"])),
    ];
    assert_eq!(qwen.spec.slots().len(), expected.len());
    for model in [&qwen, &glm, &chatglm] {
        for (slot, values) in &expected {
            assert_eq!(&elements(&*model.weights, *slot), values, "{} {slot:?}", model.spec.model_type);
        }
    }
    assert_eq!(chatglm.weights.parts(at(LayerSlot::Qkv)).unwrap().len(), 1, "one tensor, one part");
    assert_eq!(qwen.weights.parts(at(LayerSlot::Qkv)).unwrap().len(), 3);
}

#[test]
fn blocks_may_be_stored_in_another_order() {
    const SWAPPED: StoredTensors = &[("mlp.both", &[FeatureBlock::Up, FeatureBlock::Gate])];
    let spec = super::spec(&llama()).unwrap();
    let names = Names { tensors: |_| SWAPPED, ..LLAMA };
    let pieces = names.pieces(&spec, WeightSlot::Layer(1, LayerSlot::GateUp));
    let found: Vec<_> = pieces
        .iter()
        .map(|piece| (piece.tensor.as_str(), piece.shape.as_slice(), piece.rows.clone()))
        .collect();
    let shape: &[usize] = &[88, 32];
    assert_eq!(
        found,
        [("model.layers.1.mlp.both.weight", shape, 44..88), ("model.layers.1.mlp.both.weight", shape, 0..44)]
    );
}

/// Returns the error of a checkpoint of one layer after a change of its tensors.
fn refusal(changes: &Value, change: impl FnOnce(&mut Tensors)) -> String {
    let mut tensors = tensors(SEPARATE);
    change(&mut tensors);
    let config = changed(small("qwen2", "Qwen2ForCausalLM"), changes);
    match load(&source(&config, &tensors)) {
        Ok(_) => panic!("was loaded"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn tensors_that_contradict_the_configuration_are_refused() {
    let none = json!({});
    let text = refusal(&none, |tensors| tensors.retain(|(name, ..)| !name.ends_with("k_proj.weight")));
    assert!(
        text.starts_with("tensor model.layers.0.self_attn.k_proj.weight (shape [8, 16]) is needed"),
        "{text}"
    );
    let text = refusal(&json!({"num_key_value_heads": 4}), |_| ());
    let expected = "tensor model.layers.0.self_attn.k_proj.weight in model.safetensors of the built-in model has shape \
                    [8, 16], expected [16, 16] by config.json";
    assert_eq!(text, expected);
    let text = refusal(&json!({"vocab_size": 11}), |_| ());
    assert!(text.contains("model.embed_tokens.weight") && text.contains("expected [11, 16]"), "{text}");
    // A missing layer, and one too many.
    let text = refusal(&json!({"num_hidden_layers": 2}), |_| ());
    assert!(
        text.starts_with("tensor model.layers.1.input_layernorm.weight (shape [16]) is needed"),
        "{text}"
    );
    // Tensors that would be ignored.
    for extra in [
        "model.layers.0.self_attn.q_norm.weight",
        "model.layers.0.mlp.down_proj.bias",
        "model.norm.bias",
        "model.embed_tokens.bias",
        "model.layers.1.input_layernorm.weight",
    ] {
        let text = refusal(&none, |tensors| tensors.push((extra.to_owned(), vec![1], vec![0.0])));
        assert!(text.contains(&format!("tensor {extra} in model.safetensors")), "{text}");
        assert!(text.contains("would be ignored, and results would be wrong"), "{text}");
    }
}

/// Published files have keys and values of all layers.
#[test]
fn keys_and_values_that_no_layer_reads_are_ignored_by_name() {
    let read = |name: &str| std::fs::read(golden("gemma4_e2b").join(name)).unwrap();
    let config = serde_json::from_slice(&read("config.json")).unwrap();
    let file = read("model.safetensors");
    let numbers =
        |bytes: &[u8]| bytes.chunks_exact(4).map(|x| f32::from_le_bytes(x.try_into().unwrap())).collect();
    let stored: Tensors = SafeTensors::deserialize(&file)
        .unwrap()
        .iter()
        .map(|(name, view)| (name.to_owned(), view.shape().to_vec(), numbers(view.data())))
        .collect();
    let with = |extra: &str| {
        let mut tensors = stored.clone();
        tensors.push((format!("model.layers.{extra}"), vec![1], vec![0.0]));
        load(&source(&config, &tensors)).map(|_| ()).map_err(|error| error.to_string())
    };
    for name in ["k_proj.weight", "v_proj.weight", "k_norm.weight", "k_proj.qweight"] {
        assert_eq!(with(&format!("4.self_attn.{name}")), Ok(()), "{name}");
    }
    // Layer 2 has a cache of its own.
    for name in ["4.self_attn.v_norm.weight", "2.self_attn.k_proj.qweight"] {
        assert!(with(name).unwrap_err().contains("would be ignored"), "{name}");
    }
}

#[test]
fn a_tensor_of_a_type_that_cannot_be_loaded_is_refused_by_name() {
    let zeros = [0u8; 10 * 16 * 8];
    let embedding = TensorView::new(Dtype::I64, vec![10, 16], &zeros).unwrap();
    let file = safetensors::serialize([("model.embed_tokens.weight", embedding)], None).unwrap().leak();
    let config: &'static [u8] = small("qwen2", "Qwen2ForCausalLM").to_string().into_bytes().leak();
    let files = Source::Memory(vec![("config.json", config), ("model.safetensors", &*file)].leak());
    let text = load(&files).err().unwrap().to_string();
    assert!(text.starts_with("tensor model.embed_tokens.weight in model.safetensors of "), "{text}");
    assert!(text.contains("has element type I64, but weights must be F32, F16 or BF16"), "{text}");
}

#[test]
fn constants_of_old_files_are_ignored() {
    let mut tensors = tensors(SEPARATE);
    tensors.push(("model.layers.0.self_attn.rotary_emb.inv_freq".to_owned(), vec![2], vec![0.0; 2]));
    tensors.push(("visual.patch_embed".to_owned(), vec![1, 2, 3], vec![0.0; 6]));
    load(&source(&small("qwen2", "Qwen2ForCausalLM"), &tensors)).unwrap();
}

#[test]
fn a_missing_head_is_the_embedding_unless_the_configuration_denies_it() {
    let mut tensors = tensors(SEPARATE);
    tensors.retain(|(name, ..)| name != "lm_head.weight");
    let config = small("qwen2", "Qwen2ForCausalLM");
    for changes in [json!({}), json!({"tie_word_embeddings": true})] {
        let config = changed(config.clone(), &changes);
        assert!(load(&source(&config, &tensors)).unwrap().spec.tied_head, "{changes}");
    }
    let config = changed(config, &json!({"tie_word_embeddings": false}));
    let text = load(&source(&config, &tensors)).err().unwrap().to_string();
    assert!(
        text.ends_with("tie_word_embeddings is false, but the checkpoint has no lm_head.weight"),
        "{text}"
    );
}

#[test]
fn a_head_that_differs_from_the_embedding_is_used_although_it_is_said_to_be_tied() {
    let config = changed(small("qwen2", "Qwen2ForCausalLM"), &json!({"tie_word_embeddings": true}));
    let mut tensors = tensors(SEPARATE);
    let (embedding, head) = (tensors[0].2.clone(), tensors[2].2.clone());
    let model = load(&source(&config, &tensors)).unwrap();
    assert!(!model.spec.tied_head);
    assert_eq!(elements(&*model.weights, WeightSlot::Head), head);
    tensors[2].2 = embedding;
    assert!(load(&source(&config, &tensors)).unwrap().spec.tied_head, "the same numbers are tied");
}

#[test]
fn the_element_type_is_the_intended_one_unless_that_widens() {
    let dtype = |changes: Value| {
        let config = changed(small("qwen2", "Qwen2ForCausalLM"), &changes);
        load(&source(&config, &tensors(SEPARATE))).unwrap().dtype
    };
    assert_eq!(dtype(json!({})), DType::F32);
    assert_eq!(dtype(json!({"torch_dtype": "bfloat16"})), DType::BF16);
    assert_eq!(dtype(json!({"dtype": "float16", "torch_dtype": "bfloat16"})), DType::F16);

    let folder = tempfile::tempdir().unwrap();
    let text =
        std::fs::read_to_string(golden("llama_bf16/config.json")).unwrap().replace("bfloat16", "float32");
    std::fs::write(folder.path().join("config.json"), text).unwrap();
    std::fs::copy(golden("llama_bf16/model.safetensors"), folder.path().join("model.safetensors")).unwrap();
    assert_eq!(load(&Source::Directory(folder.path().to_owned())).unwrap().dtype, DType::BF16);
}

#[test]
fn dummy_weights_have_all_shapes_and_differ_by_row() {
    for name in ["llama_bias", "qwen3", "chatglm2", "llama_tied"] {
        let model = load_dummy(&Source::Directory(golden(name))).unwrap();
        for slot in model.spec.slots() {
            let values = elements(&*model.weights, slot);
            let (rows, cols) = model.spec.shape(slot);
            assert_eq!(values.len(), rows * cols, "{name} {slot:?}");
            if slot.info().kind == WeightKind::NormScale {
                assert!(values.iter().all(|&value| value == 1.0));
                continue;
            }
            assert!(values.iter().all(|value| value.abs() < 0.2), "{name} {slot:?}");
            assert!(rows == 1 || values[..cols] != values[cols..2 * cols], "{name} {slot:?}: rows are equal");
        }
        let again = load_dummy(&Source::Directory(golden(name))).unwrap();
        let slot = WeightSlot::Layer(1, LayerSlot::Down);
        assert_eq!(elements(&*model.weights, slot), elements(&*again.weights, slot));
        assert_ne!(
            elements(&*model.weights, slot),
            elements(&*model.weights, WeightSlot::Layer(0, LayerSlot::Down))
        );
    }
}

#[test]
fn dummy_weights_of_large_models_are_cut_from_a_small_buffer() {
    let sizes = json!({
        "hidden_size": 8192, "intermediate_size": 1 << 20, "num_attention_heads": 64, "num_key_value_heads": 8,
        "vocab_size": 128_256, "mlp_bias": true, "dtype": "bfloat16",
    });
    let model = load_dummy(&config_only(&changed(llama(), &sizes))).unwrap();
    assert_eq!(model.dtype, DType::BF16);
    for slot in model.spec.slots() {
        let parts = model.weights.parts(slot).unwrap();
        let (rows, cols) = model.spec.shape(slot);
        assert_eq!(parts.iter().map(|part| part.rows.len() * part.cols.len()).sum::<usize>(), rows * cols);
        assert!(parts.iter().all(|part| part.tensor.bytes.len() == 2 * part.tensor.rows * part.tensor.cols));
    }
    let parts = model.weights.parts(WeightSlot::Embedding).unwrap();
    let values: Vec<f32> = (0..4000).map(|col| parts[3].get(5, col)).collect();
    let mean = values.iter().sum::<f32>() / 4000.0;
    let deviation = (values.iter().map(|value| (value - mean).powi(2)).sum::<f32>() / 4000.0).sqrt();
    assert!(mean.abs() < 0.002 && (0.027..0.033).contains(&deviation), "{mean} {deviation}");
}

proptest! {
    /// A damaged file either loads with all weights inside the file, or its error names the file.
    #[test]
    fn damaged_checkpoints_load_or_are_refused(
        flips in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        cut in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let Source::Memory(files) = source(&small("qwen2", "Qwen2ForCausalLM"), &tensors(SEPARATE)) else {
            unreachable!("it is made of memory");
        };
        let mut bytes = files[1].1.to_vec();
        // The flips are in the header, where they have an effect.
        let header = 8 + usize::from(bytes[0]) + 256 * usize::from(bytes[1]);
        for (at, value) in flips {
            bytes[at.index(header)] = value;
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len())));
        let damaged = Source::Memory(vec![files[0], ("model.safetensors", bytes.leak())].leak());
        match load(&damaged) {
            Ok(model) => {
                for slot in model.spec.slots() {
                    elements(&*model.weights, slot);
                }
            }
            Err(error) => prop_assert!(error.to_string().contains("the built-in model"), "{error}"),
        }
    }
}

/// Two experts of 3 features, a shared expert, and a layer that predicts further tokens.
#[test]
fn later_layers_are_ignored_only_where_they_are_expected() {
    let config = changed(
        small("glm4_moe", "Glm4MoeForCausalLM"),
        &json!({"first_k_dense_replace": 0, "n_routed_experts": 2, "num_experts_per_tok": 1,
            "moe_intermediate_size": 3, "attention_bias": true}),
    );
    let mut tensors = tensors(SEPARATE);
    tensors.retain(|(name, ..)| !name.contains("mlp"));
    let mut add = |name: &str, shape: &[usize]| {
        let values = vec![0.5; shape.iter().product()];
        tensors.push((format!("model.layers.{name}"), shape.to_vec(), values));
    };
    for module in ["experts.0", "experts.1", "shared_experts"] {
        add(&format!("0.mlp.{module}.gate_proj.weight"), &[3, 16]);
        add(&format!("0.mlp.{module}.up_proj.weight"), &[3, 16]);
        add(&format!("0.mlp.{module}.down_proj.weight"), &[16, 3]);
    }
    add("0.mlp.gate.weight", &[2, 16]);
    add("0.mlp.gate.e_score_correction_bias", &[2]);
    add("1.eh_proj.weight", &[16, 32]);
    let model = load(&source(&config, &tensors)).unwrap();
    let at = |slot| WeightSlot::Layer(0, slot);
    assert_eq!(model.spec.shape(at(LayerSlot::ExpertGateUp)), (12, 16));
    assert_eq!(elements(&*model.weights, at(LayerSlot::ExpertDown)), vec![0.5; 2 * 16 * 3]);

    let error = refusal(&json!({}), |tensors| {
        tensors.push(("model.layers.1.eh_proj.weight".to_owned(), vec![1, 1], vec![0.5]));
    });
    assert!(error.contains("model.layers.1.eh_proj.weight"), "{error}");
}

/// The tensors of a gpt-oss with two experts of 3 features.
fn gpt_oss_tensors() -> Tensors {
    let mut list = SEPARATE.to_vec();
    list.retain(|(name, ..)| !name.contains("mlp"));
    list.extend([
        ("model.layers.0.self_attn.o_proj.bias", &[16][..]),
        ("model.layers.0.self_attn.sinks", &[4]),
        ("model.layers.0.mlp.router.weight", &[2, 16]),
        ("model.layers.0.mlp.router.bias", &[2]),
        ("model.layers.0.mlp.experts.gate_up_proj", &[2, 16, 6]),
        ("model.layers.0.mlp.experts.gate_up_proj_bias", &[2, 6]),
        ("model.layers.0.mlp.experts.down_proj", &[2, 3, 16]),
        ("model.layers.0.mlp.experts.down_proj_bias", &[2, 16]),
    ]);
    tensors(&list)
}

fn gpt_oss() -> Value {
    let sizes = json!({"num_local_experts": 2, "num_experts_per_tok": 1, "intermediate_size": 3});
    changed(small("gpt_oss", "GptOssForCausalLM"), &sizes)
}

#[test]
fn experts_by_input_feature_have_gate_and_up_in_turns() {
    let tensors = gpt_oss_tensors();
    let stored = |name: &str| &tensors.iter().find(|(other, ..)| other.ends_with(name)).unwrap().2;
    let model = load(&source(&gpt_oss(), &tensors)).unwrap();
    let found = |slot| elements(&*model.weights, WeightSlot::Layer(0, slot));
    // The features of gate, then those of up.
    let order = [0, 2, 4, 1, 3, 5];
    let features = (0..2).flat_map(|expert| order.map(|feature| (expert, feature)));
    let (matrix, bias) = (stored("gate_up_proj"), stored("gate_up_proj_bias"));
    let rows = features
        .clone()
        .flat_map(|(expert, feature)| (0..16).map(move |input| matrix[(expert * 16 + input) * 6 + feature]));
    assert_eq!(found(LayerSlot::ExpertGateUp), rows.collect::<Vec<f32>>());
    let biases: Vec<f32> = features.map(|(expert, feature)| bias[expert * 6 + feature]).collect();
    assert_eq!(found(LayerSlot::ExpertGateUpBias), biases);
    let matrix = stored("down_proj");
    let rows =
        (0..2 * 16).flat_map(|row| (0..3).map(move |input| matrix[(row / 16 * 3 + input) * 16 + row % 16]));
    assert_eq!(found(LayerSlot::ExpertDown), rows.collect::<Vec<f32>>());
    assert_eq!(&found(LayerSlot::ExpertDownBias), stored("down_proj_bias"));
    assert_eq!(&found(LayerSlot::RouterBias), stored("router.bias"));
}

#[test]
fn experts_of_other_shapes_are_refused_by_name() {
    for name in ["gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"] {
        let mut tensors = gpt_oss_tensors();
        let name = format!("model.layers.0.mlp.experts.{name}");
        let tensor = tensors.iter_mut().find(|(other, ..)| *other == name).unwrap();
        tensor.1[0] += 1;
        tensor.2.resize(tensor.1.iter().product(), 0.0);
        let error = load(&source(&gpt_oss(), &tensors)).err().unwrap().to_string();
        assert!(error.contains(&name), "{error}");
    }
}

/// Changes the quantized tensors of a checkpoint in MXFP4. Returns the error.
fn mxfp4_refusal(change: impl Fn(&str, &mut Vec<usize>, &mut Dtype)) -> String {
    let folder = golden("gpt_oss_mxfp4");
    let file = std::fs::read(folder.join("model.safetensors")).unwrap();
    let stored = safetensors::SafeTensors::deserialize(&file).unwrap();
    let bytes: Vec<(String, Vec<usize>, Dtype, Vec<u8>)> = stored
        .tensors()
        .into_iter()
        .map(|(name, view)| {
            let (mut shape, mut dtype) = (view.shape().to_vec(), view.dtype());
            change(&name, &mut shape, &mut dtype);
            let len =
                shape.iter().product::<usize>() * view.data().len() / view.shape().iter().product::<usize>();
            let mut data = view.data().to_vec();
            data.resize(len, 0);
            (name, shape, dtype, data)
        })
        .collect();
    let views = bytes
        .iter()
        .map(|(name, shape, dtype, data)| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    let file: &'static [u8] = safetensors::serialize(views, None).unwrap().leak();
    let config: &'static [u8] = std::fs::read(folder.join("config.json")).unwrap().leak();
    let source = Source::Memory(vec![("config.json", config), ("model.safetensors", file)].leak());
    load(&source).err().expect("an error").to_string()
}

#[test]
fn mxfp4_of_other_shapes_and_types_is_refused_by_name() {
    let name = "model.layers.1.mlp.experts.down_proj";
    for (end, axis) in [("blocks", 0), ("blocks", 2), ("blocks", 3), ("scales", 1), ("scales", 2)] {
        let tensor = format!("{name}_{end}");
        let error = mxfp4_refusal(|name, shape, _| {
            if name == tensor {
                shape[axis] += 1
            }
        });
        assert!(error.contains(&tensor), "{error}");
    }
    let tensor = format!("{name}_scales");
    let error = mxfp4_refusal(|name, _, dtype| {
        if name == tensor {
            *dtype = Dtype::I8
        }
    });
    assert!(error.contains(&format!("{tensor} ")) && error.contains("I8 instead of U8"), "{error}");
}

/// Experts that are stored one by one and stacked are the same weights.
#[test]
fn stacked_experts_are_those_of_separate_tensors() {
    let load = |name: &str| load(&Source::Directory(golden(name))).unwrap();
    let stacked = load("qwen3_moe_stacked");
    let at = WeightSlot::Layer(1, LayerSlot::ExpertGateUp);
    let parts = stacked.weights.parts(at).unwrap();
    assert_eq!((parts.len(), parts[0].rows.clone(), parts[0].cols.clone()), (1, 0..6 * 16, 0..32));
    let separate = load("qwen3_moe").weights.parts(at).unwrap();
    assert_eq!(separate.len(), 12, "gate and up of each expert");
}
