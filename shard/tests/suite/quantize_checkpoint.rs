//! Quantizes checkpoints, and compares their logits with those of the dense ones.

use std::path::{Path, PathBuf};

use crate::common::{Chunk, Harness, SMALL_LIMITS as LIMITS, SMALL_PROMPT as PROMPT, repository, row_error};
use millrace_backend::HostMemory;
use millrace_backend::reference::Reference;
use millrace_convert::quantize::{MAX_FILE_BYTES, Target, quantize};
use millrace_cpu::{Activations, Cpu, CpuOptions};
use millrace_formats::Source;
use millrace_model::families::{self, Overrides};
use millrace_model::{Model, WeightKind, WeightSlot, WeightStorage};
use millrace_numbers::integers::IntegerRows;
use millrace_numbers::{DType, IntFormat, Part, WeightFormat};

fn demo() -> PathBuf {
    repository().join("models/demo")
}

fn load(folder: &Path) -> Model {
    families::load(&Source::Directory(folder.to_owned()), &Overrides::default())
        .unwrap_or_else(|error| panic!("{}: {error}", folder.display()))
}

fn write(from: &Path, to: &Path, target: Target) {
    quantize(&Source::Directory(from.to_owned()), to, target, MAX_FILE_BYTES, &mut |_, _| {})
        .unwrap_or_else(|error| panic!("{}: {error}", from.display()));
}

fn values(part: &Part) -> Vec<f32> {
    let mut all = vec![0.0; part.elements()];
    for (row, values) in all.chunks_exact_mut(part.cols.len()).enumerate() {
        part.read_row(row, values);
    }
    all
}

fn logits<B: HostMemory>(device: &B, model: &Model) -> Vec<Vec<f32>> {
    let storage = WeightStorage::choose(DType::F32, None, model, device).unwrap();
    let mut harness = Harness::new(device, &model.spec, &*model.weights, storage, &LIMITS);
    harness.step(&[Chunk { tokens: &PROMPT, start: 0, blocks: &[0] }])
}

fn worst(found: &[Vec<f32>], expected: &[Vec<f32>]) -> f64 {
    let wide = |row: &Vec<f32>| row.iter().map(|x| f64::from(*x)).collect::<Vec<f64>>();
    found.iter().zip(expected).map(|(found, expected)| row_error(found, &wide(expected))).fold(0.0, f64::max)
}

/// Returns whether a weight of the model is quantized by a new checkpoint.
fn may_quantize(slot: WeightSlot) -> bool {
    matches!(slot.info().kind, WeightKind::Matrix { may_quantize: true })
}

/// The CPU multiplies by the integers that the quantizer made, without rounding them again.
#[test]
fn integers_are_kept_as_they_were_made() {
    let folder = tempfile::tempdir().unwrap();
    let dense = load(&demo());
    for target in [Target::Int8, Target::Int4 { group: 64, symmetric: false }] {
        let to = folder.path().join(target.name());
        write(&demo(), &to, target);
        let found = load(&to);
        let storage = WeightStorage::choose(DType::BF16, None, &found, &cpu()).unwrap();
        assert!(storage.warnings(&found.spec).is_empty());
        for slot in dense.spec.slots().into_iter().filter(|&slot| may_quantize(slot)) {
            let parts = found.weights.parts(slot).unwrap();
            let cols = parts[0].cols.len();
            let WeightFormat::Int(format) = storage.matrix(slot, cols) else { panic!("{slot:?}") };
            let group_cols = if let Target::Int4 { group, .. } = target { group } else { cols };
            let rows = IntegerRows::new(&parts, format).unwrap();
            let exact: Vec<f32> = dense.weights.parts(slot).unwrap().iter().flat_map(values).collect();
            let quantizer = if target == Target::Int8 { IntFormat::Int8 } else { IntFormat::Int4 };
            for (row, weights) in exact.chunks_exact(cols).enumerate() {
                let none = millrace_numbers::integers::Group { scale: 0.0, offset: 0 };
                let (mut codes, mut groups) = (vec![0; cols], vec![none; cols / format.group_cols(cols)]);
                rows.read(row, &mut codes, &mut groups);
                let mut expected = vec![0; cols];
                for (index, weights) in weights.chunks_exact(group_cols).enumerate() {
                    let codes = &mut expected[index * group_cols..][..group_cols];
                    let group = quantizer.quantize(weights, codes).unwrap();
                    assert_eq!(
                        groups[index * groups.len() / (cols / group_cols)],
                        group,
                        "{slot:?} row {row}"
                    );
                }
                assert_eq!(codes, expected, "{slot:?} row {row}");
            }
        }
    }
}

fn cpu() -> Cpu {
    Cpu::new(CpuOptions { threads: Some(2), activations: Activations::Exact, ..CpuOptions::default() })
        .unwrap()
}

/// The demo model is trained, so that its logits tell how good a format is.
#[test]
fn logits_stay_close_to_those_of_the_dense_checkpoint() {
    let folder = tempfile::tempdir().unwrap();
    let exact = logits(&Reference, &load(&demo()));
    let targets = [
        (Target::Int8, 0.05),
        (Target::Int4 { group: 128, symmetric: false }, 0.5),
        (Target::Int4 { group: 32, symmetric: false }, 0.4),
        (Target::Int4 { group: 32, symmetric: true }, 0.5),
        (Target::Fp8, 0.15),
        (Target::Fp8Block, 0.15),
        (Target::Nf4, 0.4),
    ];
    for (index, (target, bound)) in targets.into_iter().enumerate() {
        let to = folder.path().join(index.to_string());
        write(&demo(), &to, target);
        let model = load(&to);
        let by_reference = logits(&Reference, &model);
        let error = worst(&by_reference, &exact);
        // The CPU rounds activations where it multiplies by integers, and nothing else.
        let between = worst(&logits(&cpu(), &model), &by_reference);
        println!("{target:?}: {error:.3} from the dense checkpoint, {between:.3} between CPU and reference");
        assert!(error > 1e-4 && error < bound, "{target:?}: {error}");
        assert!(between < 0.05, "{target:?}: {between}");
    }
}
