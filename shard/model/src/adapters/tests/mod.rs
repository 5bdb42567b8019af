//! Tests of adapters, with files that PEFT has written and with files that nobody should write.

mod config;
mod converted;
mod merged;
mod modules;
mod refusals;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use millrace_backend::AdapterWeights;
use millrace_formats::Source;
use millrace_numbers::Part;
use safetensors::tensor::{Dtype, TensorView};
use serde_json::{Value, json};
use tempfile::TempDir;

use super::{Adapter, AdapterError};
use crate::families::Overrides;

/// A matrix, row by row.
type Matrix = Vec<Vec<f32>>;

/// A folder beside the tests that start servers.
fn data(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests").join(path)
}

/// The golden checkpoint that most tests change.
fn llama() -> Source {
    Source::Directory(data("golden/llama_gqa"))
}

fn open(base: &Source, folder: &Path) -> Result<Adapter, AdapterError> {
    Adapter::open(base, &Overrides::default(), folder)
}

/// The files of an adapter that can be spoiled.
struct Files {
    config: Value,
    tensors: BTreeMap<String, (Dtype, Vec<usize>, Vec<u8>)>,
}

impl Files {
    /// An adapter of rank 2 and scale 2 for two projections of the golden Llama.
    fn new() -> Self {
        let config = json!({"peft_type": "LORA", "r": 2, "lora_alpha": 4, "bias": "none"});
        let mut files = Files { config, tensors: BTreeMap::new() };
        files.add("model.layers.0.self_attn.q_proj", [48, 2, 48]);
        files.add("model.layers.1.mlp.down_proj", [48, 2, 36]);
        files
    }

    /// Adds the tensors of a module with `[outputs, rank, inputs]` features.
    fn add(&mut self, module: &str, [outputs, rank, inputs]: [usize; 3]) {
        self.set(&format!("base_model.model.{module}.lora_A.weight"), &[rank, inputs]);
        self.set(&format!("base_model.model.{module}.lora_B.weight"), &[outputs, rank]);
    }

    /// Sets a tensor of this shape to numbers that differ.
    fn set(&mut self, name: &str, shape: &[usize]) {
        let numbers = (0..shape.iter().product()).map(|index: usize| index as f32 / 16.0 - 1.0);
        self.set_numbers(name, shape, numbers);
    }

    fn set_numbers(&mut self, name: &str, shape: &[usize], numbers: impl Iterator<Item = f32>) {
        let bytes = numbers.flat_map(f32::to_le_bytes).collect();
        self.tensors.insert(name.to_owned(), (Dtype::F32, shape.to_vec(), bytes));
    }

    /// Gives the tensor `from` the name `to`.
    fn rename(&mut self, from: &str, to: &str) {
        let tensor = self.tensors.remove(from).unwrap();
        self.tensors.insert(to.to_owned(), tensor);
    }

    fn write(&self) -> TempDir {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("adapter_config.json"), self.config.to_string()).unwrap();
        let views = self.tensors.iter().map(|(name, (dtype, shape, bytes))| {
            (name, TensorView::new(*dtype, shape.clone(), bytes).unwrap())
        });
        let bytes = safetensors::serialize(views, None).unwrap();
        std::fs::write(folder.path().join("adapter_model.safetensors"), bytes).unwrap();
        folder
    }

    fn open(&self) -> Result<Adapter, AdapterError> {
        open(&llama(), self.write().path())
    }
}

/// Returns the rows of a weight.
fn matrix(parts: &[Part]) -> Matrix {
    let mut rows = Vec::new();
    for part in parts {
        for row in 0..part.rows.len() {
            let mut numbers = vec![0.0; part.cols.len()];
            part.read_row(row, &mut numbers);
            rows.push(numbers);
        }
    }
    rows
}

/// Adds the products of an adapter to a matrix.
fn merge(matrix: &mut Matrix, weights: &AdapterWeights) {
    for product in &weights.products {
        let cols = product.down.len() / product.rank;
        let rows = product.rows.iter().cloned().flatten();
        let ups = product.up.chunks_exact(product.rank);
        assert_eq!(rows.clone().count(), ups.len());
        for (row, up) in rows.zip(ups) {
            assert_eq!(matrix[row].len(), cols);
            for (up, down) in up.iter().zip(product.down.chunks_exact(cols)) {
                matrix[row].iter_mut().zip(down).for_each(|(sum, down)| *sum += up * down);
            }
        }
    }
}

/// Returns the largest difference of two matrices, relative to the largest number of the second.
fn difference(found: &Matrix, expected: &Matrix) -> f32 {
    assert_eq!(found.len(), expected.len());
    let (mut worst, mut largest) = (0_f32, 0_f32);
    for (found, expected) in found.iter().zip(expected) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            worst = worst.max((found - expected).abs());
            largest = largest.max(expected.abs());
        }
    }
    worst / largest
}
