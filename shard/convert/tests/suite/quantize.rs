//! Quantizes checkpoints, and reads the results.

use std::fs;
use std::path::{Path, PathBuf};

use millrace_convert::quantize::{MAX_FILE_BYTES, QuantizeReport, Target, quantize};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::inspect::Inspection;
use millrace_model::{LayerSlot, Model, WeightKind, WeightSlot};
use millrace_numbers::formats::fp8;
use millrace_numbers::formats::nf4;
use millrace_numbers::{IntFormat, Part};
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};

const TARGETS: [Target; 6] = [
    Target::Int8,
    Target::Int4 { group: 32, symmetric: false },
    Target::Int4 { group: 32, symmetric: true },
    Target::Fp8,
    Target::Fp8Block,
    Target::Nf4,
];

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden").join(name)
}

fn demo() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/demo")
}

fn load(folder: &Path) -> Model {
    families::load(&Source::Directory(folder.to_owned()), &Overrides::default())
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

fn write(from: &Path, to: &Path, target: Target) -> QuantizeReport {
    quantize(&Source::Directory(from.to_owned()), to, target, MAX_FILE_BYTES, &mut |_, _| {})
        .unwrap_or_else(|error| panic!("{}: {error}", from.display()))
}

fn refused(from: &Path, to: &Path, target: Target) -> String {
    let source = Source::Directory(from.to_owned());
    quantize(&source, to, target, MAX_FILE_BYTES, &mut |_, _| {}).unwrap_err().to_string()
}

fn values(part: &Part) -> Vec<f32> {
    let mut all = vec![0.0; part.elements()];
    for (row, values) in all.chunks_exact_mut(part.cols.len()).enumerate() {
        part.read_row(row, values);
    }
    all
}

/// Rounds the matrix of a part by the quantizers, and returns what the stored one must be.
fn rounded(part: &Part, target: Target) -> Vec<f32> {
    let (mut weights, cols) = (values(part), part.cols.len());
    match target {
        Target::Int8 => IntFormat::Int8.round(&mut weights, cols).unwrap(),
        Target::Int4 { group, symmetric } => {
            let format = if symmetric { IntFormat::Q4_0 } else { IntFormat::Int4 };
            // A row of one group has this size of groups.
            for row in weights.chunks_exact_mut(cols) {
                row.chunks_exact_mut(group).for_each(|weights| round_group(format, weights));
            }
        }
        Target::Fp8 => weights.chunks_exact_mut(cols).for_each(round_fp8),
        Target::Fp8Block => {
            let mut expected = weights.clone();
            for (row, col) in (0..weights.len() / cols)
                .step_by(128)
                .flat_map(|row| (0..cols).step_by(128).map(move |col| (row, col)))
            {
                let places: Vec<usize> = (row..row + 128)
                    .flat_map(|row| (col..col + 128).map(move |col| row * cols + col))
                    .collect();
                let mut block: Vec<f32> = places.iter().map(|&at| weights[at]).collect();
                round_fp8(&mut block);
                places.into_iter().zip(block).for_each(|(at, value)| expected[at] = value);
            }
            weights = expected;
        }
        // The weights of all rows are one sequence.
        Target::Nf4 => {
            let all = weights.len();
            nf4::round(&mut weights, all).unwrap();
        }
    }
    weights
}

/// Rounds one group, which may have other columns than the groups of the format.
fn round_group(format: IntFormat, weights: &mut [f32]) {
    let mut codes = vec![0; weights.len()];
    let group = format.quantize(weights, &mut codes).unwrap();
    weights.iter_mut().zip(codes).for_each(|(weight, code)| *weight = group.value(code));
}

fn round_fp8(weights: &mut [f32]) {
    let mut bytes = vec![0; weights.len()];
    let scale = fp8::quantize(weights, &mut bytes).unwrap();
    weights.iter_mut().zip(bytes).for_each(|(weight, byte)| *weight = fp8::widen(byte) * scale);
}

fn relative_error(found: &[f32], exact: &[f32]) -> f64 {
    let squares = |values: &mut dyn Iterator<Item = f32>| values.map(|x| f64::from(x).powi(2)).sum::<f64>();
    (squares(&mut found.iter().zip(exact).map(|(a, b)| a - b)) / squares(&mut exact.iter().copied())).sqrt()
}

/// Returns whether a weight of the model is quantized by a new checkpoint.
fn may_quantize(slot: WeightSlot) -> bool {
    matches!(slot.info().kind, WeightKind::Matrix { may_quantize: true })
}

/// Every matrix of the new checkpoint has exactly the values of the quantizer, everything else is
/// unchanged, and the report tells the errors.
#[test]
fn the_stored_numbers_are_those_of_the_quantizer() {
    let folder = tempfile::tempdir().unwrap();
    let names = ["qwen2", "baichuan_7b", "llama_bf16", "llama_f16", "gemma4_text"];
    let sources = [vec![demo()], names.map(golden).to_vec()].concat();
    for (index, from) in sources.iter().enumerate() {
        let dense = load(from);
        for target in TARGETS {
            // Blocks of 128 x 128 need a larger model, and 48 columns are not whole groups.
            let fits = match target {
                Target::Fp8Block => dense.spec.hidden.is_multiple_of(128),
                Target::Int4 { group, .. } => dense.spec.hidden.is_multiple_of(group),
                _ => true,
            };
            if !fits {
                continue;
            }
            let about = format!("{} as {}", from.display(), target.name());
            let to = folder.path().join(format!("{index}-{target:?}"));
            let report = write(from, &to, target);
            let found = load(&to);
            assert_eq!(found.spec, dense.spec, "{about}");
            assert_eq!(found.dtype, dense.dtype, "{about}");
            let mut quantized = 0;
            for slot in dense.spec.slots() {
                let parts =
                    dense.weights.parts(slot).unwrap().into_iter().zip(found.weights.parts(slot).unwrap());
                for (dense, found) in parts {
                    let exact = values(&dense);
                    if found.tensor.encoding.dense().is_some() {
                        assert_eq!(values(&found), exact, "{about}: {slot:?}");
                        continue;
                    }
                    quantized += 1;
                    assert!(may_quantize(slot), "{about}: {slot:?}");
                    // A part of a fused tensor begins in the middle of a sequence of NF4 groups.
                    let whole = |part: &Part| Part::whole(part.tensor.clone());
                    let (dense, found) = (whole(&dense), whole(&found));
                    assert_eq!(values(&found), rounded(&dense, target), "{about}: {slot:?}");
                    let error = relative_error(&values(&found), &values(&dense));
                    let same = |error: f64, other: f64| (error - other).abs() < 1e-6 * error;
                    assert!(
                        report.matrices.iter().any(|matrix| same(matrix.relative_error, error)),
                        "{about}: {slot:?} {error} {report:?}"
                    );
                }
            }
            assert!(quantized >= report.matrices.len(), "{about}: {quantized} parts");
            assert!(!report.matrices.is_empty() && report.bytes_after < report.bytes_before, "{about}");
        }
    }
}

#[test]
fn large_checkpoints_are_written_to_several_files() {
    let folder = tempfile::tempdir().unwrap();
    let [one, many] = ["one", "many"].map(|name| folder.path().join(name));
    write(&demo(), &one, Target::Int8);
    let mut calls = Vec::new();
    let source = Source::Directory(demo());
    quantize(&source, &many, Target::Int8, 200_000, &mut |done, all| calls.push((done, all))).unwrap();
    let index: Value =
        serde_json::from_slice(&fs::read(many.join("model.safetensors.index.json")).unwrap()).unwrap();
    let files = fs::read_dir(&many)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().ends_with(".safetensors"));
    assert!(files.count() > 3 && index["weight_map"]["model.layers.0.mlp.up_proj.weight_scale"].is_string());
    let [one, many] = [one, many].map(|folder| load(&folder));
    for slot in one.spec.slots() {
        let [one, many]: [Vec<Vec<f32>>; 2] =
            [&one, &many].map(|model| model.weights.parts(slot).unwrap().iter().map(values).collect());
        assert_eq!(one, many, "{slot:?}");
    }
    let (done, all) = calls.pop().unwrap();
    assert_eq!(done, all);
    assert!(calls.len() > 30 && calls.is_sorted());
}

#[test]
fn the_configuration_names_what_is_dense() {
    let folder = tempfile::tempdir().unwrap();
    // 44 columns of the MLP's last matrix fit no group.
    let to = folder.path().join("int4");
    let report = write(&golden("mistral_sliding"), &to, Target::Int4 { group: 32, symmetric: false });
    let config: Value = serde_json::from_slice(&fs::read(to.join("config.json")).unwrap()).unwrap();
    let [first, second] = [0, 1].map(|layer| format!("model.layers.{layer}.mlp.down_proj"));
    assert_eq!(config["quantization_config"]["ignore"], json!(["lm_head", first, second]));
    assert_eq!(config["quantization_config"]["config_groups"]["group_0"]["weights"]["group_size"], 32);
    assert_eq!(report.dense.len(), 2);
    assert_eq!(report.dense[0].reason, "44 columns are not a multiple of 32");
    let before: Value =
        serde_json::from_slice(&fs::read(golden("mistral_sliding/config.json")).unwrap()).unwrap();
    for (key, value) in before.as_object().unwrap() {
        assert_eq!(&config[key], value);
    }
    // The parts of a fused matrix are all quantized or all dense: K and V have 64 rows.
    let to = folder.path().join("fp8-block");
    let report = write(&demo(), &to, Target::Fp8Block);
    let dense: Vec<&str> = report.dense.iter().map(|matrix| matrix.tensor.as_str()).take(3).collect();
    assert_eq!(
        dense,
        ["k_proj", "q_proj", "v_proj"].map(|name| format!("model.layers.0.self_attn.{name}.weight"))
    );
}

#[test]
fn small_files_are_copied_and_others_are_not() {
    let folder = tempfile::tempdir().unwrap();
    let from = folder.path().join("from");
    fs::create_dir_all(from.join("original")).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(golden("llama_tied").join(name), from.join(name)).unwrap();
    }
    for name in ["tokenizer.json", "chat_template.jinja", "LICENSE", "pytorch_model.bin", ".hidden"] {
        fs::write(from.join(name), name).unwrap();
    }
    let to = folder.path().join("to");
    write(&from, &to, Target::Nf4);
    let mut names: Vec<String> =
        fs::read_dir(&to).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    assert_eq!(
        names,
        ["LICENSE", "chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    );
    assert_eq!(fs::read(to.join("LICENSE")).unwrap(), b"LICENSE");
}

#[test]
fn what_cannot_be_quantized_is_one_clear_error_and_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let to = folder.path().join("to");
    let entries = || fs::read_dir(folder.path()).unwrap().count();

    let error = refused(&golden("llama_tied"), &to, Target::Int4 { group: 128, symmetric: false });
    assert!(error.contains("fits int4: 32 columns are not a multiple of 128"), "{error}");
    assert_eq!(entries(), 0);

    let quantized = folder.path().join("quantized");
    write(&golden("llama_tied"), &quantized, Target::Int8);
    let error = refused(&quantized, &to, Target::Nf4);
    assert!(error.contains("is quantized already (compressed-tensors)"), "{error}");
    let error = refused(&golden("llama_tied"), &quantized, Target::Int8);
    assert!(error.contains("exists and is not an empty folder"), "{error}");
    assert_eq!(entries(), 1);

    // A truncated file.
    let damaged = folder.path().join("damaged");
    fs::create_dir(&damaged).unwrap();
    fs::copy(golden("llama_tied/config.json"), damaged.join("config.json")).unwrap();
    let file = fs::read(golden("llama_tied/model.safetensors")).unwrap();
    fs::write(damaged.join("model.safetensors"), &file[..file.len() - 4]).unwrap();
    let error = refused(&damaged, &to, Target::Int8);
    assert!(error.contains("model.safetensors") && error.contains("download it again"), "{error}");

    // A weight that is not finite, in the last matrix.
    let name = "model.layers.1.self_attn.v_proj.weight";
    let tensors = safetensors::SafeTensors::deserialize(&file).unwrap();
    let mut broken = tensors.tensor(name).unwrap().data().to_vec();
    let last = broken.len() - 4;
    broken[last..].copy_from_slice(&f32::NAN.to_le_bytes());
    let views = tensors.tensors().into_iter().map(|(tensor, view)| {
        let bytes = if tensor == name { &broken[..] } else { view.data() };
        let view = TensorView::new(Dtype::F32, view.shape().to_vec(), bytes).unwrap();
        (tensor, view)
    });
    fs::write(damaged.join("model.safetensors"), safetensors::serialize(views, None).unwrap()).unwrap();
    for target in [Target::Int8, Target::Int4 { group: 32, symmetric: false }, Target::Fp8, Target::Nf4] {
        let error = refused(&damaged, &to, target);
        assert!(error.contains(&format!("tensor {name} in")) && error.contains("NaN"), "{error}");
    }
    assert_eq!(entries(), 2);
}

#[test]
fn quantized_checkpoints_are_named_with_their_size() {
    let folder = tempfile::tempdir().unwrap();
    let inspect = |folder: &Path| {
        let source = Source::Directory(folder.to_owned());
        Inspection::new(&source, None, None, None, &Overrides::default()).unwrap()
    };
    // The name of the format, and the bytes of 128 weights in a row of 128, where the CPU keeps
    // them as they are stored.
    let targets = [
        (Target::Int8, "compressed-tensors", Some(128 + 4)),
        (Target::Int4 { group: 128, symmetric: false }, "compressed-tensors", Some(64 + 2 + 2)),
        (Target::Fp8, "compressed-tensors", None),
        (Target::Fp8Block, "fp8", None),
        (Target::Nf4, "bitsandbytes-nf4", None),
    ];
    for (target, name, bytes) in targets {
        let place = folder.path().join(target.name());
        write(&demo(), &place, target);
        let found = inspect(&place);
        assert!(found.to_string().contains(&format!("matrices of layers as {name}\n")), "{found}");
        let whole = inspect(&demo());
        assert_eq!((found.parameters, &found.spec), (whole.parameters, &whole.spec));
        if let Some(bytes) = bytes {
            let slot = WeightSlot::Layer(0, LayerSlot::Qkv);
            let (rows, cols) = found.spec.shape(slot);
            let format = found.storage.matrix(slot, cols);
            assert_eq!(format.bytes(rows, cols), rows * bytes, "{name}");
        }
    }
}
