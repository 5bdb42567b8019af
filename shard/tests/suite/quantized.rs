//! Loads the quantized checkpoints that `integration-tests/oracle/quantized.py` writes, and
//! compares their logits with those of the dense checkpoints of the same weights.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;
use std::thread;

use crate::common::{Chunk, Harness, repository, row_error};
use millrace_backend::reference::Reference;
use millrace_backend::{Backend, HostMemory, KvFormat, Sizing};
use millrace_cpu::{Activations, Cpu, CpuOptions, Isa};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::inspect::Inspection;
use millrace_model::split::Split;
use millrace_model::{AdapterLimits, LayerSlot, Model, Quantize, ShardLimits, WeightSlot, WeightStorage};
use millrace_numbers::{DType, Part, WeightFormat};
use millrace_shard::HostCollectives;
use millrace_shard::collective::{self, Transport};
use millrace_shard::decoder::Weights;
use safetensors::SafeTensors;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

pub(crate) const LIMITS: ShardLimits = ShardLimits {
    max_step_tokens: 32,
    max_sequences: 32,
    max_sequence_tokens: 32,
    block_size: 16,
    state_checkpoints: 0,
    max_drafts: 0,
    adapters: AdapterLimits::NONE,
    num_blocks: 2,
    kv_format: KvFormat::Dense(DType::F32),
};

const PROMPT: [u32; 13] = [3, 14, 15, 9, 26, 5, 35, 48, 9, 7, 51, 23, 8];

/// The checkpoints, or the reason why they cannot be written.
static CHECKPOINTS: LazyLock<Result<TempDir, String>> = LazyLock::new(|| {
    let script = repository().join("integration-tests/oracle/quantized.py");
    let folder = tempfile::tempdir().unwrap();
    match Command::new("python3").arg(script).arg(folder.path()).output() {
        Ok(output) if output.status.success() => Ok(folder),
        Ok(output) => panic!("{}", String::from_utf8_lossy(&output.stderr)),
        Err(error) if error.kind() == ErrorKind::NotFound => Err("there is no python3".to_owned()),
        Err(error) => panic!("{error}"),
    }
});

/// Returns the folder of the checkpoints. Without Python the test has nothing to read.
pub(crate) fn folder() -> Option<&'static Path> {
    match &*CHECKPOINTS {
        Ok(folder) => Some(folder.path()),
        Err(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

pub(crate) fn cases(folder: &Path) -> Vec<String> {
    let mut cases: Vec<String> = std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    cases.sort();
    assert!(cases.len() >= 32, "{} cases", cases.len());
    cases
}

pub(crate) fn load(folder: PathBuf) -> Model {
    families::load(&Source::Directory(folder), &Overrides::default())
        .unwrap_or_else(|error| panic!("{error}"))
}

/// Returns whether all quantized matrices are kept as they are stored.
fn is_kept(case: &str) -> bool {
    // Fused matrices are converted if a part is dense, or two parts have their columns in different
    // orders.
    !["gptq-4-32-mixed-orders", "int-row-mixed"].contains(&case)
}

/// Computes the logits of every position of the prompt: first a chunk, then single tokens.
pub(crate) fn logits<B: Backend>(harness: &mut Harness<'_, B>) -> Vec<Vec<f32>> {
    let (first, rest) = PROMPT.split_at(9);
    // A GPU keeps the tokens of a sequence.
    harness.admit(1, &PROMPT);
    let mut all = harness.step(&[Chunk { tokens: first, start: 0, blocks: &[1, 0] }]);
    for (index, token) in rest.iter().enumerate() {
        let start = first.len() + index;
        all.extend(harness.step(&[Chunk { tokens: &[*token], start, blocks: &[1, 0] }]));
    }
    all
}

pub(crate) fn by_one<B: Backend>(device: &B, model: &Model) -> (Vec<Vec<f32>>, WeightStorage) {
    let storage = WeightStorage::choose(DType::F32, None, model, device).unwrap();
    let mut harness = Harness::new(device, &model.spec, &*model.weights, storage.clone(), &LIMITS);
    (logits(&mut harness), storage)
}

/// Computes the logits on two ranks.
fn by_two<B: HostMemory>(device: impl Fn() -> B + Sync, folder: &Path) -> Vec<Vec<f32>> {
    let lead = collective::lead(Transport::Shm, 2, crate::common::long()).unwrap();
    let address = lead.address();
    let mut lead = Some(lead);
    let found: Vec<_> = thread::scope(|scope| {
        let ranks: Vec<_> = (0..2)
            .map(|rank| {
                let (address, device, lead) = (&address, &device, lead.take());
                scope.spawn(move || {
                    let group = match lead {
                        Some(lead) => lead.wait(),
                        None => collective::join(address, rank, 2, crate::common::long()),
                    };
                    let share = Split { rank, world_size: 2 }.apply(load(folder.to_owned())).unwrap();
                    let device = device();
                    let ranks = Some(Box::new(HostCollectives::new(group.unwrap())) as _);
                    let storage = WeightStorage::choose(DType::F32, None, &share, &device).unwrap();
                    let weights = &*share.weights;
                    let mut harness = Harness::among(&device, &share.spec, weights, storage, &LIMITS, ranks);
                    logits(&mut harness)
                })
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    assert_eq!(found[0], found[1]);
    found.into_iter().next().unwrap()
}

/// Returns the largest error of a row, relative to the row's largest logit.
pub(crate) fn worst(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let wide = |row: &Vec<f32>| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(found, expected)| row_error(found, &wide(expected))).fold(0.0, f64::max)
}

fn cpu(isa: Option<Isa>, activations: Activations) -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2), activations, isa, ..CpuOptions::default() }).unwrap()
}

/// The reference multiplies by exactly the weights of the dense checkpoint, and so does the CPU
/// with exact activations. Otherwise the CPU rounds activations to 8 bits where it multiplies by
/// integers, and nothing else.
#[test]
fn logits_are_those_of_the_dequantized_weights() {
    let Some(folder) = folder() else { return };
    let cpus = [Activations::Exact, Activations::Rounded]
        .map(|activations| [None, Some(Isa::Portable)].map(|isa| cpu(isa, activations)));
    for case in cases(folder) {
        let (quantized, dense) =
            (load(folder.join(&case).join("quantized")), load(folder.join(&case).join("dense")));
        assert!(quantized.quantized.is_some() && dense.quantized.is_none(), "{case}");
        let (expected, _) = by_one(&Reference, &dense);
        let (found, storage) = by_one(&Reference, &quantized);
        let error = worst(&found, &expected);
        assert!(error < 1e-5, "{case}: {error:e}");
        let warnings = storage.warnings(&quantized.spec);
        assert_eq!(warnings.is_empty(), is_kept(&case), "{case}: {warnings:?}");
        for cpu in cpus.as_flattened() {
            let error = worst(&by_one(cpu, &quantized).0, &expected);
            let bound = if cpu.activations() == Activations::Exact { 1e-4 } else { 0.08 };
            println!("{case} on {}, {:?}: {error:.2e}", cpu.name(), cpu.activations());
            assert!(error < bound, "{case}: {error:e}");
        }
    }
}

#[test]
fn two_ranks_agree_with_one() {
    let Some(folder) = folder() else { return };
    for case in cases(folder) {
        let quantized = folder.join(&case).join("quantized");
        let (expected, _) = by_one(&Reference, &load(folder.join(&case).join("dense")));
        let error = worst(&by_two(|| Reference, &quantized), &expected);
        assert!(error < 1e-5, "{case}: {error:e}");
        for (activations, bound) in [(Activations::Exact, 1e-4), (Activations::Rounded, 0.08)] {
            let error = worst(&by_two(|| cpu(None, activations), &quantized), &expected);
            assert!(error < bound, "{case}, {activations:?}: {error:e}");
        }
    }
}

/// Checkpoints of transformers whose experts have biases, and one that has them in MXFP4.
#[test]
fn two_ranks_agree_with_one_on_biased_experts() {
    let golden = repository().join("integration-tests/golden");
    for case in ["gpt_oss", "gpt_oss_layers", "gpt_oss_mxfp4", "gpt_oss_mxfp4_wide"] {
        let folder = golden.join(case);
        let (expected, _) = by_one(&Reference, &load(folder.clone()));
        let error = worst(&by_two(|| Reference, &folder), &expected);
        assert!(error < 1e-5, "{case}: {error:e}");
        let error = worst(&by_two(|| cpu(None, Activations::Exact), &folder), &expected);
        assert!(error < 1e-4, "{case}: {error:e}");
    }
}

/// Columns that are ordered by their activations are in groups of any size in a rank's share of the
/// inputs (output, down). They are padded, and keep their codes.
#[test]
fn ordered_columns_keep_their_codes_on_several_ranks() {
    let Some(folder) = folder() else { return };
    for case in ["gptq-4-32-desc-act", "packed-4-32-actorder"] {
        for rank in 0..2 {
            let model = load(folder.join(case).join("quantized"));
            let share = Split { rank, world_size: 2 }.apply(model).unwrap();
            let device = cpu(None, Activations::Rounded);
            let storage = WeightStorage::choose(DType::F32, None, &share, &device).unwrap();
            assert!(storage.warnings(&share.spec).is_empty(), "{case}");
            for slot in [LayerSlot::Out, LayerSlot::Down].map(|slot| WeightSlot::Layer(0, slot)) {
                let (rows, cols) = share.spec.shape(slot);
                let bytes = device.matrix_bytes(rows.next_multiple_of(32), cols, storage.matrix(slot, cols));
                assert!(bytes <= 2 * rows.next_multiple_of(32) * cols, "{case} {slot:?}: {bytes}");
            }
        }
    }
}

/// The device finds a NaN while it loads the weights, and the error names its tensor.
#[test]
fn a_nan_among_the_codes_is_refused_by_name() {
    let Some(folder) = folder() else { return };
    let file = tempfile::tempdir().unwrap();
    let case = folder.join("fp8-block/quantized");
    std::fs::copy(case.join("config.json"), file.path().join("config.json")).unwrap();
    let stored = std::fs::read(case.join("model.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&stored).unwrap().tensors();
    let tensors: Vec<(String, Stored)> = tensors
        .into_iter()
        .map(|(name, view)| {
            let mut data = view.data().to_vec();
            if name == "model.layers.0.self_attn.k_proj.weight" {
                data[5 * 64 + 9] = 0xff;
            }
            (name, (view.dtype(), view.shape().to_vec(), data))
        })
        .collect();
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, data))| (name, TensorView::new(*dtype, shape.clone(), data).unwrap()));
    let changed = safetensors::serialize(views, None).unwrap();
    std::fs::write(file.path().join("model.safetensors"), changed).unwrap();
    for split in [Split::WHOLE, Split { rank: 0, world_size: 2 }] {
        let model = split.apply(load(file.path().to_owned())).unwrap();
        let device = cpu(None, Activations::Rounded);
        let storage = WeightStorage::choose(DType::F32, None, &model, &device).unwrap();
        let mut ignore = |_| Ok(());
        let error =
            Weights::load(&device, &model.spec, &*model.weights, storage, 32, &mut ignore).err().unwrap();
        let error = error.to_string();
        assert!(error.starts_with("tensor model.layers.0.self_attn.k_proj.weight in "), "{error}");
        assert!(error.ends_with("has a NaN or an infinity in row 5, column 9"), "{error}");
    }
}

/// Each rank's share of each weight is the same rectangle as that of the dense checkpoint.
#[test]
fn weights_are_those_of_the_dense_checkpoint() {
    let Some(folder) = folder() else { return };
    let values = |parts: Vec<Part>| {
        let mut all = Vec::new();
        for part in &parts {
            for row in 0..part.rows.len() {
                let mut values = vec![0.0; part.cols.len()];
                part.read_row(row, &mut values);
                all.extend(values);
            }
        }
        all
    };
    for case in cases(folder) {
        for split in [Split::WHOLE, Split { rank: 0, world_size: 2 }, Split { rank: 1, world_size: 2 }] {
            let [quantized, dense] =
                ["quantized", "dense"].map(|kind| split.apply(load(folder.join(&case).join(kind))).unwrap());
            assert_eq!(quantized.spec, dense.spec);
            for slot in dense.spec.slots() {
                let found = values(quantized.weights.parts(slot).unwrap());
                let expected = values(dense.weights.parts(slot).unwrap());
                assert_eq!(found.len(), expected.len(), "{case} {slot:?}");
                for (found, expected) in found.iter().zip(&expected) {
                    // Products of three numbers were rounded once by Python.
                    assert!((found - expected).abs() <= 2e-7 * expected.abs(), "{case} {slot:?}");
                }
            }
        }
    }
}

#[test]
fn the_memory_is_that_of_the_stored_numbers() {
    let Some(folder) = folder() else { return };
    let inspect = |case: &str, quantize| {
        let source = Source::Directory(folder.join(case).join("quantized"));
        Inspection::new(&source, None, quantize, None, &Overrides::default())
    };
    // The weights of the layer, and embedding, head and three vectors.
    let (numbers, rest) = (36_864, (2 * 64 * 64 + 3 * 64) * 4);
    let bytes = |case: &str| inspect(case, None).unwrap().weight_bytes() - rest;
    assert_eq!(bytes("packed-4-32"), numbers / 2 + numbers / 32 * 4);
    assert_eq!(bytes("gptq-4-32-sym"), numbers / 2 + numbers / 32 * 4);
    assert_eq!(bytes("bnb-nf4"), numbers / 2 + numbers / 64 * 4);
    assert_eq!(bytes("bnb-fp4"), numbers / 2 + numbers / 64 * 4);
    // A factor per row of 64 or 96 columns.
    assert!((numbers..numbers * 17 / 16).contains(&bytes("fp8-block")), "{}", bytes("fp8-block"));
    let text = inspect("gptq-4-row", None).unwrap().to_string();
    assert!(text.contains("matrices of layers as gptq\n"), "{text}");
    assert_eq!(
        inspect("packed-4-32", Some(Quantize::Q4_0)).unwrap_err().to_string(),
        "--quantize q4_0, but the checkpoint is quantized already (compressed-tensors); omit the flag to serve it as \
         it is. Quantizing it again would add a second error to the first"
    );
    assert!(inspect("packed-4-32", Some(Quantize::CompressedTensors)).is_ok());
}

/// A name of TGI insists on a checkpoint, or quantizes one that is not quantized.
#[test]
fn the_flag_names_a_checkpoint_or_a_way_to_quantize() {
    let Some(folder) = folder() else { return };
    let choose = |case: &str, kind: &str, quantize| {
        let model = load(folder.join(case).join(kind));
        WeightStorage::choose(DType::F32, Some(quantize), &model, &Reference)
    };
    let names = [
        (Quantize::Gptq, "gptq-4-row"),
        (Quantize::Awq, "awq-gemm-32"),
        (Quantize::CompressedTensors, "int-row"),
        (Quantize::Bitsandbytes, "bnb-int8"),
        (Quantize::Bitsandbytes, "bnb-nf4"),
        (Quantize::BitsandbytesNf4, "bnb-nf4-nested"),
        (Quantize::BitsandbytesFp4, "bnb-fp4"),
        (Quantize::Fp8, "fp8-row"),
    ];
    for (quantize, case) in names {
        let storage = choose(case, "quantized", quantize).unwrap();
        assert!(storage.quantize.is_none() && storage.quantization().is_some(), "{case}");
        let other = if case == "awq-gemm-32" { "gptq-4-row" } else { "awq-gemm-32" };
        let error = choose(other, "quantized", quantize).unwrap_err().to_string();
        assert!(error.contains("is quantized already"), "{error}");
    }
    let dense = |quantize| choose("gptq-4-row", "dense", quantize);
    let slot = WeightSlot::Layer(0, LayerSlot::Down);
    let int8 = WeightFormat::Int(millrace_numbers::IntFormat::Int8);
    assert_eq!(dense(Quantize::Bitsandbytes).unwrap().matrix(slot, 128), int8);
    assert_eq!(dense(Quantize::BitsandbytesNf4).unwrap().matrix(slot, 128), WeightFormat::Nf4);
    for quantize in [Quantize::Gptq, Quantize::Awq, Quantize::CompressedTensors, Quantize::BitsandbytesFp4] {
        let error = dense(quantize).unwrap_err().to_string();
        assert!(error.contains("config.json has no quantization_config"), "{error}");
    }
}

/// A tensor: its type, its shape, its bytes.
type Stored = (Dtype, Vec<usize>, Vec<u8>);

/// Loads a case after a change of its configuration and its tensors, and returns the error.
fn refused(case: &str, change: impl Fn(&mut Value, &mut BTreeMap<String, Stored>)) -> String {
    let folder = folder().unwrap().join(case).join("quantized");
    let mut config: Value =
        serde_json::from_slice(&std::fs::read(folder.join("config.json")).unwrap()).unwrap();
    let file = std::fs::read(folder.join("model.safetensors")).unwrap();
    let mut tensors: BTreeMap<String, Stored> = SafeTensors::deserialize(&file)
        .unwrap()
        .tensors()
        .into_iter()
        .map(|(name, view)| (name, (view.dtype(), view.shape().to_vec(), view.data().to_vec())))
        .collect();
    change(&mut config["quantization_config"], &mut tensors);
    let views = tensors
        .iter()
        .map(|(name, (dtype, shape, bytes))| (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap()));
    let file: &'static [u8] = safetensors::serialize(views, None).unwrap().leak();
    let config: &'static [u8] = config.to_string().into_bytes().leak();
    let files: &'static [_] = vec![("config.json", config), ("model.safetensors", file)].leak();
    match families::load(&Source::Memory(files), &Overrides::default()) {
        Ok(_) => panic!("{case} was loaded"),
        Err(error) => error.to_string(),
    }
}

const Q: &str = "model.layers.0.self_attn.q_proj";

#[test]
fn unknown_schemes_are_refused_by_the_key_that_says_so() {
    if folder().is_none() {
        return;
    }
    let cases: [(&str, &str, Value, &str); 16] = [
        (
            "gptq-4-32-sym",
            "quant_method",
            json!("hqq"),
            "quant_method = \"hqq\" is not supported: gptq, awq, ",
        ),
        ("gptq-4-32-sym", "bits", json!(5), "bits = 5 is not supported: GPTQ has 2, 3, 4 or 8"),
        (
            "gptq-4-32-sym",
            "checkpoint_format",
            json!("marlin"),
            "checkpoint_format = \"marlin\" is not supported",
        ),
        ("gptq-4-32-sym", "group_size", json!(0), "group_size is 0"),
        ("gptq-4-32-sym", "group_size", Value::Null, "group_size is missing"),
        ("gptq-4-32-sym", "is_marlin_format", json!(true), "is_marlin_format = true is not supported"),
        ("gptq-4-32-sym", "dynamic", json!({"+:x": {"bits": 8}}), "dynamic.+:x = {…} is not supported"),
        ("awq-gemm-32", "bits", json!(8), "bits = 8 is not supported: AWQ has 4"),
        ("awq-gemm-32", "version", json!("marlin"), "version = \"marlin\" is not supported: gemm and gemv"),
        ("awq-gemm-32", "zero_point", json!(false), "zero_point = false is not supported"),
        (
            "packed-4-32",
            "format",
            json!("marlin-24"),
            "format = \"marlin-24\" is not supported: pack-quantized",
        ),
        ("packed-4-32", "config_groups", json!({}), "config_groups is missing"),
        (
            "packed-4-32",
            "sparsity_config",
            json!({"format": "sparse-24"}),
            "sparsity_config.format = \"sparse-24\"",
        ),
        (
            "bnb-nf4",
            "bnb_4bit_quant_type",
            json!("nf3"),
            "bnb_4bit_quant_type = \"nf3\" is not supported: nf4",
        ),
        ("bnb-nf4", "load_in_8bit", json!(true), "must be true for exactly one of"),
        ("fp8-block", "weight_block_size", json!([128, 0]), "weight_block_size has a size of 0"),
    ];
    for (case, key, value, expected) in cases {
        let error = refused(case, |config, _| config[key] = value.clone());
        assert!(error.starts_with("config.json of the built-in model: quantization_config."), "{error}");
        assert!(error.contains(expected), "{error}");
    }
    let weights = |key: &str, value: Value| {
        refused("packed-4-32", |config, _| config["config_groups"]["group_0"]["weights"][key] = value.clone())
    };
    let place = "quantization_config.config_groups.group_0.weights.";
    assert!(weights("num_bits", json!(5)).contains(&format!("{place}num_bits = 5 is not supported")));
    assert!(weights("type", json!("float")).contains("format = \"pack-quantized\" is not supported"));
    assert!(
        weights("strategy", json!("tensor_group")).contains(&format!("{place}strategy = \"tensor_group\""))
    );
}

#[test]
fn inconsistent_tensors_are_named() {
    if folder().is_none() {
        return;
    }
    let error = |case: &str, name: &str, change: &dyn Fn(&mut Stored)| {
        refused(case, |_, tensors| change(tensors.get_mut(&format!("{Q}.{name}")).unwrap()))
    };
    // The last row is cut off.
    let cut = |tensor: &mut Stored| {
        let row = tensor.2.len() / tensor.1[0];
        tensor.1[0] -= 1;
        tensor.2.truncate(tensor.2.len() - row);
    };
    for (case, names) in [
        ("gptq-4-32-desc-act", &["qweight", "qzeros", "scales", "g_idx"][..]),
        ("awq-gemm-32", &["qweight", "qzeros", "scales"]),
        ("awq-gemv-64", &["qweight", "qzeros", "scales"]),
        ("packed-4-64-zeros", &["weight_packed", "weight_scale", "weight_zero_point", "weight_shape"]),
        ("int-row", &["weight", "weight_scale"]),
        ("bnb-int8", &["weight", "SCB"]),
        ("bnb-nf4", &["weight", "weight.absmax", "weight.quant_map"]),
        ("bnb-nf4-nested", &["weight.absmax", "weight.nested_absmax", "weight.nested_quant_map"]),
        ("fp8-small-block", &["weight", "weight_scale_inv"]),
    ] {
        for name in names {
            let tensor = format!("{Q}.{name}");
            let error = refused(case, |_, tensors| cut(tensors.get_mut(&tensor).unwrap()));
            assert!(error.contains(&format!("tensor {tensor}")), "{case} {name}: {error}");
        }
    }
    let group = |index: i32| {
        error("gptq-4-32-desc-act", "g_idx", &|tensor: &mut Stored| {
            tensor.2[20..24].copy_from_slice(&index.to_le_bytes());
        })
    };
    assert!(
        group(2).contains(&format!("{Q}.g_idx in model.safetensors of the built-in model cannot be used"))
    );
    assert!(group(-1).contains("column 5 is in group -1 of 2"));
    let other = refused("gptq-4-32-sym", |config, _| config["group_size"] = json!(64));
    assert!(other.contains(".qzeros") && other.contains("[1, "), "{other}");
    let missing = refused("fp8-tensor", |_, tensors| drop(tensors.remove(&format!("{Q}.weight_scale"))));
    assert!(missing.contains(&format!("{Q}.weight_scale")), "{missing}");
    let state = error("bnb-nf4", "weight.quant_state.bitsandbytes__nf4", &|tensor: &mut Stored| {
        let text = String::from_utf8(tensor.2.clone()).unwrap().replace("[64, 64]", "[32, 64]");
        tensor.2 = text.into_bytes();
    });
    assert!(state.contains("describes a matrix [32, 64] instead of [64, 64]"), "{state}");
    // A bias that is not zero changes the results.
    let bias = error("gptq-4-32-sym", "bias", &|tensor: &mut Stored| tensor.2[1] = 0x3c);
    assert!(bias.contains(&format!("{Q}.bias")) && bias.contains("would be ignored"), "{bias}");
    // The tensors are quantized, but nothing says how.
    let silent = refused("gptq-4-32-sym", |config, _| *config = Value::Null);
    assert!(silent.contains(&format!("{Q}.weight")), "{silent}");
}
