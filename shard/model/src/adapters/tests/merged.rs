//! Compares the weights of adapters with the weights that PEFT computes when it merges them into
//! golden checkpoints. The folder `golden-adapters` is described in its README.

use std::collections::BTreeMap;
use std::path::Path;

use millrace_formats::Source;
use safetensors::SafeTensors;
use safetensors::tensor::TensorView;
use tempfile::TempDir;

use super::{data, difference, matrix, merge, open};
use crate::adapters::adaptable;
use crate::description::Model;
use crate::families::{self, Overrides};
use crate::split::{self, Split};

/// The rounding of one product and one sum, relative to the largest weight.
const TOLERANCE: f32 = 1e-6;

/// Returns the names of the entries of a folder, sorted.
fn entries(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).unwrap().map(Result::unwrap);
    let folders = entries.filter(|entry| entry.path().is_dir());
    let mut names: Vec<String> = folders.map(|entry| entry.file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

/// Writes the checkpoint in `base` with the tensors of the file `merged` in place of its own.
fn replaced(base: &Path, merged: &Path) -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::copy(base.join("config.json"), folder.path().join("config.json")).unwrap();
    let (base, merged) =
        (std::fs::read(base.join("model.safetensors")).unwrap(), std::fs::read(merged).unwrap());
    let mut tensors: BTreeMap<String, TensorView<'_>> =
        SafeTensors::deserialize(&base).unwrap().tensors().into_iter().collect();
    for (name, tensor) in SafeTensors::deserialize(&merged).unwrap().tensors() {
        assert!(tensors.insert(name.clone(), tensor).is_some(), "{name} is not in the checkpoint");
    }
    let bytes = safetensors::serialize(tensors, None).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    folder
}

fn share(folder: &Path, split: Split) -> Model {
    let model = families::load(&Source::Directory(folder.to_owned()), &Overrides::default()).unwrap();
    split.apply(model).unwrap()
}

/// Compares all matrices on all ranks of groups of all sizes. Returns the number of matrices that
/// the adapter changes, counted on one rank, and the sizes.
fn compare(name: &str, folder: &Path) -> (usize, Vec<usize>) {
    let base = data("golden").join(name);
    let merged = replaced(&base, &folder.join("merged.safetensors"));
    let adapter = open(&Source::Directory(base.clone()), folder).unwrap();
    let whole = share(&base, Split::WHOLE);
    let (sizes, mut changed) = (split::sizes(&whole.spec), 0);
    for &world_size in &sizes {
        for split in (0..world_size).map(|rank| Split { rank, world_size }) {
            let [base, merged] = [&base, merged.path()].map(|folder| share(folder, split));
            changed = 0;
            for slot in adaptable(&whole.spec) {
                let [mut found, expected] =
                    [&base, &merged].map(|model| matrix(&model.weights.parts(slot).unwrap()));
                let case = format!("{}, {slot:?}, {split:?}", folder.display());
                let before = difference(&found, &expected);
                let weights = adapter.weights(slot, split).unwrap();
                assert_eq!(weights.is_some(), before > 0.0, "{case}");
                if let Some(weights) = weights {
                    let ranks: usize = weights.products.iter().map(|product| product.rank).sum();
                    assert!(ranks <= adapter.rank(slot), "{case}");
                    assert!(
                        weights.products.iter().all(|product| product.rank <= adapter.max_rank()),
                        "{case}"
                    );
                    merge(&mut found, &weights);
                    changed += 1;
                }
                let error = difference(&found, &expected);
                assert!(
                    error < TOLERANCE,
                    "{case}: relative error {error:e}, {before:e} without the adapter"
                );
            }
        }
    }
    (changed, sizes)
}

#[test]
fn shares_of_adapters_are_what_peft_merges() {
    let folder = data("golden-adapters");
    let (mut cases, mut matrices, mut largest, mut of_pytorch) = (0, 0, 0, 0);
    for name in entries(&folder) {
        for adapter in entries(&folder.join(&name)) {
            let (changed, sizes) = compare(&name, &folder.join(&name).join(&adapter));
            assert!(changed > 0, "{name}/{adapter}");
            cases += 1;
            matrices += changed;
            let has = |file| folder.join(&name).join(&adapter).join(file).is_file();
            of_pytorch += usize::from(has("adapter_model.bin") && !has("adapter_model.safetensors"));
            largest = sizes.into_iter().fold(largest, usize::max);
        }
    }
    assert!(cases >= 20 && matrices >= 100, "{cases} cases, {matrices} matrices");
    assert!(largest >= 4 && of_pytorch > 0, "{largest} ranks, {of_pytorch} files of PyTorch");
}
