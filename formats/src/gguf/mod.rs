//! GGUF files, versions 1 to 3: metadata as keys and values, then tensors.
//!
//! Georgi Gerganov and the authors of llama.cpp defined the format. Everything that a model needs
//! is in one file: configuration, tokenizer, chat template and weights. A large model may be split
//! into several files, of which the first has all metadata.

mod adapt;
mod architecture;
mod architectures;
mod config;
mod encoder_architectures;
mod encoder_names;
#[cfg(test)]
mod encoder_tests;
mod file;
mod inverse;
mod model;
#[cfg(test)]
mod model_tests;
mod names;
mod naming;
mod older_architectures;
mod older_names;
mod split;
#[cfg(test)]
mod test_writer;
#[cfg(test)]
mod tests;
mod tokenizer;
mod value;
mod writer;

use std::sync::Arc;

use architecture::Architecture;
pub(crate) use file::{GgmlType, MAGIC};
use file::{Header, StoredTensor};
pub use inverse::{GgufArchitecture, GgufOrder, GgufPlace, gguf_config};
use model::{Model, QkvRows};
use naming::{LONG_ROPE, ROPE_DIVISORS};
pub use split::split_model_name;
pub use writer::{GgufTensor, GgufType, GgufValue, gguf_header, gguf_padding};

use crate::dtype::DType;
use crate::error::{Error, TensorFault};
use crate::fault::FileFault;
use crate::header::Entry;
use crate::mapped_file::MappedFile;
use crate::translated::{Derivation, DerivedTensor, ModelFile};
use crate::vocabulary::TokenizerData;

/// Opens a model whose first file is `first`. `beside` maps another file of the same folder.
pub(crate) fn open(
    first: MappedFile,
    beside: impl Fn(&str) -> Result<Option<MappedFile>, Error>,
) -> Result<ModelFile, Error> {
    let files = split::all(first, beside)?;
    let model = read(&files);
    // The header of a truncated file is damaged too, but the truncation is the reason to report.
    files.iter().try_for_each(|file| file.check_readable())?;
    let Contents { config, tensors, derived } = model?;
    let files = files.into_iter().map(Arc::new).collect();
    Ok(ModelFile { tensors, derived, ..ModelFile::new(config, files) })
}

/// The largest number of experts of a layer.
const MAX_EXPERTS: usize = 1 << 12;

/// The contents of the files of a model.
#[derive(Default)]
struct Contents {
    config: serde_json::Map<String, serde_json::Value>,
    /// Each tensor with the index of its file.
    tensors: Vec<(usize, Entry)>,
    derived: Vec<DerivedTensor>,
}

impl Contents {
    /// Adds a tensor under its name in Hugging Face layout.
    fn add(
        &mut self,
        (architecture, qkv): (&Architecture, Option<QkvRows>),
        file: usize,
        tensor: &StoredTensor,
    ) -> Result<(), TensorFault> {
        let StoredTensor { name, dtype, shape, range } = tensor;
        if let (Some(names), Some(qkv)) = (architecture.naming.fused_qkv(name), qkv) {
            return self.add_fused(names, qkv, file, tensor);
        }
        let of_expert = architecture.naming.matrices_of_expert(name);
        if !of_expert.is_empty() {
            return self.add_experts(&of_expert, file, tensor);
        }
        let derivation = derivation(architecture, tensor);
        let (name, mut shape) = (architecture.naming.translate(name), shape.clone());
        if name.ends_with("shared_expert_gate.weight") && shape.len() == 1 {
            shape.insert(0, 1);
        }
        // Files of Kimi Linear have an axis more.
        if tensor.name.contains(".ssm_conv1d_") && shape.len() == 4 && shape[0] == 1 {
            shape.remove(0);
        }
        if let Some(derivation) = derivation {
            self.derived.push(DerivedTensor {
                name,
                dtype: DType::F32,
                shape,
                file,
                range: range.clone(),
                derivation,
            });
            return Ok(());
        }
        self.tensors.push((file, Entry { name, dtype: dtype.clone(), shape, range: range.clone() }));
        Ok(())
    }

    /// Adds the matrices of each expert. The file has those of all experts in one tensor. In their
    /// names, `*` stands for the number of the expert. If an expert has several, they have the same
    /// number of rows, and follow each other.
    fn add_experts(
        &mut self,
        names: &[String],
        file: usize,
        tensor: &StoredTensor,
    ) -> Result<(), TensorFault> {
        let StoredTensor { name, dtype, shape, range } = tensor;
        let axes = if name.ends_with(".bias") { 2 } else { 3 };
        let experts = match shape[..] {
            [experts @ 1..=MAX_EXPERTS, rows, ..]
                if shape.len() == axes && !range.is_empty() && rows.is_multiple_of(names.len()) =>
            {
                experts
            }
            _ => return Err(TensorFault::Shape { found: shape.clone(), expected: Vec::new() }),
        };
        let mut shape = shape[1..].to_vec();
        shape[0] /= names.len();
        // The rows of a matrix are whole blocks, and follow those of the one before it.
        let bytes = range.len() / (experts * names.len());
        let matrices = (0..experts).flat_map(|expert| names.iter().map(move |name| (expert, name)));
        for ((expert, name), start) in matrices.zip((range.start..).step_by(bytes)) {
            let name = name.replace('*', &expert.to_string());
            let (dtype, shape) = (dtype.clone(), shape.clone());
            self.tensors.push((file, Entry { name, dtype, shape, range: start..start + bytes }));
        }
        Ok(())
    }

    /// Adds query, key and value, which the file has in one tensor, one after the other.
    fn add_fused(
        &mut self,
        names: [String; 3],
        qkv: QkvRows,
        file: usize,
        tensor: &StoredTensor,
    ) -> Result<(), TensorFault> {
        let StoredTensor { dtype, shape, range, .. } = tensor;
        let counts = [qkv.query, qkv.key, qkv.key];
        let all = counts.iter().fold(0usize, |sum, rows| sum.saturating_add(*rows));
        if shape.first() != Some(&all) || all == 0 {
            return Err(TensorFault::Shape { found: shape.clone(), expected: vec![all] });
        }
        let row = range.len() / all;
        let mut start = range.start;
        for (name, rows) in names.into_iter().zip(counts) {
            let mut shape = shape.clone();
            shape[0] = rows;
            let range = start..start + rows * row;
            start = range.end;
            self.tensors.push((file, Entry { name, dtype: dtype.clone(), shape, range }));
        }
        Ok(())
    }
}

/// Returns how the numbers of a tensor of a model follow from those that the converter has stored,
/// if it has changed them.
fn derivation(architecture: &Architecture, tensor: &StoredTensor) -> Option<Derivation> {
    (tensor.dtype == DType::F32).then(|| change_of_numbers(architecture, &tensor.name))?
}

/// Returns the same for a tensor with this name, which has single precision.
fn change_of_numbers(architecture: &Architecture, name: &str) -> Option<Derivation> {
    if name.ends_with(".ssm_a") {
        Some(Derivation::LogOfNegated)
    } else if architecture.norms_plus_one
        && name.ends_with("norm.weight")
        && !name.ends_with(".ssm_norm.weight")
    {
        Some(Derivation::LessOne)
    } else {
        None
    }
}

fn read(files: &[MappedFile]) -> Result<Contents, Error> {
    let headers: Vec<Header<'_>> =
        files.iter().map(|file| Header::read(&file.path, file)).collect::<Result<_, _>>()?;
    let bytes: Vec<&[u8]> = files.iter().map(|file| &**file).collect();
    read_contents(&headers, &bytes)
}

/// Reads the model of these headers. Their files begin with `bytes`, and may be longer behind the
/// divisors of frequencies.
fn read_contents(headers: &[Header<'_>], files: &[&[u8]]) -> Result<Contents, Error> {
    let Some(header) = headers.first() else { return Ok(Contents::default()) };
    split::check(headers)?;
    let architecture = config::architecture(header)?;
    let all: Vec<_> = headers.iter().flat_map(|header| &header.tensors).collect();
    let mut model = Model {
        header,
        architecture: architecture.name,
        tensors: &all,
        divisors: None,
        long_rope: [None, None],
    };
    let is_fused = all.iter().any(|tensor| architecture.naming.fused_qkv(&tensor.name).is_some());
    let qkv = if is_fused { Some(model.qkv_rows(architecture.kv_heads)?) } else { None };
    let mut contents = Contents::default();
    for (index, (header, file)) in headers.iter().zip(files).enumerate() {
        for tensor in &header.tensors {
            let bytes = file.get(tensor.range.clone()).unwrap_or_default();
            let divisors = || config::divisors(header, tensor, bytes).map(Some);
            if tensor.name == ROPE_DIVISORS {
                model.divisors = divisors()?;
                continue;
            }
            if let Some(kind) = LONG_ROPE.iter().position(|name| *name == tensor.name) {
                model.long_rope[kind] = divisors()?;
                continue;
            }
            contents
                .add((architecture, qkv), index, tensor)
                .map_err(|fault| header.tensor_fault(&tensor.name, fault))?;
        }
    }
    add_layer_numbers(&model, architecture, &mut contents)?;
    contents.config = config::read(&model, architecture)?;
    Ok(contents)
}

/// Adds tensors for numbers that a file has in an array, one for each layer.
fn add_layer_numbers(
    model: &Model<'_>,
    architecture: &Architecture,
    contents: &mut Contents,
) -> Result<(), Error> {
    for &(key, module) in architecture.layer_numbers {
        let fault = |reason: String| model.header.fault(FileFault::Value { key: key.to_owned(), reason });
        let numbers = model.header.array(key, |array, key| array.numbers(key))?;
        let numbers = numbers.ok_or_else(|| model.header.fault(FileFault::MissingKey(key.to_owned())))?;
        let layers = model.layers()?;
        if numbers.len() as u64 != layers {
            return Err(fault(format!("has {} entries for {layers} layers", numbers.len())));
        }
        contents.derived.extend(numbers.into_iter().enumerate().map(|(layer, number)| DerivedTensor {
            name: format!("{}{layer}.{module}", architecture.naming.layers),
            dtype: DType::F32,
            shape: vec![1],
            file: 0,
            range: 0..0,
            derivation: Derivation::Bytes((number as f32).to_le_bytes().to_vec()),
        }));
    }
    Ok(())
}

/// Reads the tokenizer of a file. Returns `None` if the file has none.
pub(crate) fn tokenizer(file: &MappedFile) -> Result<Option<TokenizerData>, Error> {
    let tokenizer = Header::read(&file.path, file).and_then(|header| tokenizer::read(&header));
    file.check_readable()?;
    tokenizer
}
