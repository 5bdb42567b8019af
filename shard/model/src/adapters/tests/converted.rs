//! Adapters of GGUF files, whose converter has reordered rows and columns of some matrices, against
//! adapters of the checkpoints that the files were converted from.

use std::collections::BTreeSet;

use millrace_formats::Source;

use super::{Files, Matrix, data, difference, matrix, merge, open};
use crate::adapters::adaptable;
use crate::families::{self, Modules, Overrides, modules};
use crate::split::Split;

/// The files hold some matrices in half precision or in blocks.
const TOLERANCE: f32 = 0.02;

/// Returns an adapter of all modules of a model.
fn of_all(modules: &Modules) -> Files {
    let mut files = Files::new();
    files.tensors.clear();
    let slots = adaptable(modules.spec()).into_iter();
    let pieces: BTreeSet<_> = slots
        .flat_map(|slot| modules.pieces(slot))
        .map(|piece| (piece.module, piece.outputs, piece.inputs))
        .collect();
    for (module, outputs, inputs) in pieces {
        files.add(&module, [outputs, 2, inputs]);
    }
    files
}

/// Returns the rows and columns of a matrix in another order.
fn reordered(matrix: &Matrix, rows: Option<&[usize]>, cols: Option<&[usize]>) -> Matrix {
    let row = |row: usize| match cols {
        Some(cols) => cols.iter().map(|&col| matrix[row][col]).collect(),
        None => matrix[row].clone(),
    };
    (0..matrix.len()).map(|index| row(rows.map_or(index, |rows| rows[index]))).collect()
}

/// Compares all matrices of a file with those of the folder that it was converted from. Returns the
/// number of matrices, and how many of them are reordered.
fn compare(original: &Source, converted: &Source) -> [usize; 2] {
    let overrides = Overrides::default();
    let all = of_all(&modules(original, &overrides).unwrap());
    if all.tensors.is_empty() {
        return [0, 0];
    }
    let (order, all) = (modules(converted, &overrides).unwrap(), all.write());
    let [(before, adapter), (model, followed)] = [original, converted].map(|source| {
        let adapter = open(source, all.path()).unwrap_or_else(|error| panic!("{}: {error}", source.place()));
        (families::load(source, &overrides).unwrap(), adapter)
    });
    let (mut compared, mut moved) = (0, 0);
    for slot in adaptable(order.spec()) {
        let case = format!("{}, {slot:?}", converted.place());
        let (rows, cols) = (order.row_order(slot), order.col_order(slot));
        let in_order = |matrix: &Matrix| reordered(matrix, rows.as_deref(), cols.as_deref());
        let mut expected = matrix(&before.weights.parts(slot).unwrap());
        let mut found = matrix(&model.weights.parts(slot).unwrap());
        let error = difference(&found, &in_order(&expected));
        assert!(error < TOLERANCE, "{case}: relative error {error:e} of the weights");
        merge(&mut expected, &adapter.weights(slot, Split::WHOLE).unwrap().unwrap());
        merge(&mut found, &followed.weights(slot, Split::WHOLE).unwrap().unwrap());
        let error = difference(&found, &in_order(&expected));
        assert!(error < TOLERANCE, "{case}: relative error {error:e} with the adapter");
        compared += 1;
        moved += usize::from(rows.is_some() || cols.is_some());
    }
    [compared, moved]
}

#[test]
fn adapters_follow_the_order_of_converted_files() {
    let (mut compared, mut moved) = (0, 0);
    for [files, folders] in [["golden-gguf", "golden"], ["golden-gguf/encoders", "golden-encoders"]] {
        for entry in std::fs::read_dir(data(files)).unwrap() {
            let path = entry.unwrap().path();
            let folder = data(folders).join(path.file_stem().unwrap());
            if path.extension().is_none_or(|end| end != "gguf") || !folder.is_dir() {
                continue;
            }
            let (folder, file) = (Source::Directory(folder), Source::File(path));
            // Falcon-H1 and GLM-4.1V are below. Files of RoBERTa are read as BERT, and those of GLM
            // as ChatGLM, whose modules have other names.
            if ["falcon_h1", "roberta", "glm4v", "/glm.gguf"].iter().any(|name| file.place().contains(name)) {
                continue;
            }
            let [matrices, reordered] = compare(&folder, &file);
            compared += matrices;
            moved += reordered;
        }
    }
    assert!(compared > 500 && moved > 30, "{compared} matrices, {moved} of them reordered");
}

#[test]
fn a_file_whose_weights_contain_factors_is_refused() {
    let [folder, file] = ["golden/falcon_h1", "golden-gguf/falcon_h1.gguf"].map(data);
    let (folder, file) = (Source::Directory(folder), Source::File(file));
    let all = of_all(&modules(&folder, &Overrides::default()).unwrap()).write();
    open(&folder, all.path()).unwrap();
    let error = open(&file, all.path()).unwrap_err().to_string();
    assert!(error.contains("falcon_h1.gguf are not supported: its converter has multiplied"), "{error}");
}

#[test]
fn a_file_whose_pairs_have_become_halves_is_refused() {
    let file = Source::File(data("golden-gguf/glm4v.gguf"));
    let error = modules(&file, &Overrides::default()).err().unwrap().to_string();
    assert!(error.contains("the features of heads in another order than this file"), "{error}");
}
