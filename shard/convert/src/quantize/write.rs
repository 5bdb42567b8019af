//! Writes the tensors and the files of a new checkpoint.

use millrace_formats::{CheckpointWriter, DType as StoredDType, NewTensor, Source, TensorInfo};
use millrace_model::families::ConfigError;
use millrace_numbers::formats::{EncodedRows, STACK, Target};
use millrace_numbers::{DType, HostTensor, Part};

use super::config::config;
use super::error::QuantizeError;
use super::plan::{Plan, matrix_shape};
use super::report::{QuantizeReport, QuantizedMatrix};
use super::small_files::small_files;
use crate::partial::Partial;

/// Bytes that are copied at once.
const COPIED: usize = 16 << 20;
/// Threads that quantize. More are bound by the disk, and each has a stack of rows in memory.
const MAX_THREADS: usize = 8;

/// Writes the weights, and returns the errors of the quantized ones.
pub(super) fn weights(
    plan: &Plan,
    folder: &Partial,
    max_file_bytes: usize,
    progress: &mut dyn FnMut(usize, usize),
) -> Result<QuantizeReport, QuantizeError> {
    let groups: Vec<Vec<NewTensor>> = plan.tensors.iter().map(|tensor| new_tensors(plan, tensor)).collect();
    let bytes_after = groups.iter().flatten().map(NewTensor::bytes).sum();
    folder.check_space(bytes_after)?;
    let bytes_before = plan.tensors.iter().map(|(tensor, _)| tensor.bytes).sum();
    let mut writer = CheckpointWriter::create(&folder.result(), groups, max_file_bytes)?;
    let (mut matrices, mut done) = (Vec::new(), 0);
    for (tensor, is_quantized) in &plan.tensors {
        let mut advance = |bytes: usize| {
            done += bytes;
            progress(done, bytes_before);
        };
        if *is_quantized {
            matrices.push(quantize(plan, tensor, &mut writer, &mut advance)?);
        } else if let Some(stored) = plan.checkpoint.find(&tensor.name) {
            for bytes in stored.bytes.chunks(COPIED) {
                writer.write(&tensor.name, bytes)?;
                advance(bytes.len());
            }
        }
        // A truncated file reads as zeros. There is no point in writing the rest of it.
        plan.checkpoint.check_readable()?;
    }
    writer.finish()?;
    Ok(QuantizeReport { matrices, dense: plan.dense.clone(), bytes_before, bytes_after })
}

/// A tensor of a quantized module.
struct ModuleTensor {
    tensor: NewTensor,
    /// The bytes of a tensor that does not depend on the weights. The others are made of rows.
    constant: Option<Vec<u8>>,
}

/// Returns the tensors that a tensor becomes.
fn new_tensors(plan: &Plan, (tensor, is_quantized): &(TensorInfo, bool)) -> Vec<NewTensor> {
    if *is_quantized {
        return module_tensors(plan, tensor).into_iter().map(|module| module.tensor).collect();
    }
    let TensorInfo { name, dtype, shape, .. } = tensor.clone();
    vec![NewTensor { name, dtype, shape }]
}

fn module_tensors(plan: &Plan, tensor: &TensorInfo) -> Vec<ModuleTensor> {
    let module = tensor.name.strip_suffix(".weight").unwrap_or(&tensor.name);
    let (rows, cols) = matrix_shape(tensor);
    let tensors = plan.target.tensors(rows, cols, plan.dtype).into_iter();
    let named = tensors.map(|written| {
        let name = format!("{module}.{}", written.name);
        let tensor = NewTensor { name, dtype: written.element.into(), shape: written.shape };
        ModuleTensor { tensor, constant: written.constant }
    });
    named.collect()
}

/// Quantizes a matrix, a few stacks of rows at a time.
fn quantize(
    plan: &Plan,
    tensor: &TensorInfo,
    writer: &mut CheckpointWriter,
    advance: &mut dyn FnMut(usize),
) -> Result<QuantizedMatrix, QuantizeError> {
    let (rows, cols) = matrix_shape(tensor);
    let matrix = dense(plan, tensor)?;
    let modules = module_tensors(plan, tensor);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MAX_THREADS);
    let (mut squares, mut squared_errors) = (0.0, 0.0);
    for first in (0..rows).step_by(STACK * threads) {
        let last = rows.min(first + STACK * threads);
        for stack in encode_stacks(plan.target, &matrix, first..last) {
            let stack = stack.map_err(|source| {
                let file = plan.checkpoint.path_of(&tensor.name).unwrap_or_default().to_owned();
                QuantizeError::Weights { tensor: tensor.name.clone(), file, source }
            })?;
            let of_rows = modules.iter().filter(|module| module.constant.is_none());
            for (module, bytes) in of_rows.zip(stack.tensors()) {
                writer.write(&module.tensor.name, bytes)?;
            }
            squares += stack.squares;
            squared_errors += stack.squared_errors;
        }
        advance(tensor.bytes / rows.max(1) * (last - first));
    }
    for module in &modules {
        if let Some(bytes) = &module.constant {
            writer.write(&module.tensor.name, bytes)?;
        }
    }
    let relative_error = if squares > 0.0 { (squared_errors / squares).sqrt() } else { 0.0 };
    let bytes = modules.iter().map(|module| module.tensor.bytes()).sum();
    Ok(QuantizedMatrix { tensor: tensor.name.clone(), rows, cols, relative_error, bytes })
}

/// Encodes rows, with one thread for each stack.
fn encode_stacks(
    target: Target,
    matrix: &Part,
    rows: std::ops::Range<usize>,
) -> Vec<millrace_numbers::Result<EncodedRows>> {
    let (end, cols) = (rows.end, matrix.cols.len());
    let encode = |first: usize| {
        let count = STACK.min(end - first);
        let mut weights = vec![0.0; count * cols];
        for (row, weights) in weights.chunks_exact_mut(cols.max(1)).enumerate() {
            matrix.read_row(first + row, weights);
        }
        target.encode(&weights, cols)
    };
    std::thread::scope(|scope| {
        let encode = &encode;
        let stacks: Vec<_> = rows.step_by(STACK).map(|first| scope.spawn(move || encode(first))).collect();
        let joined = |stack: std::thread::ScopedJoinHandle<'_, _>| {
            stack.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        stacks.into_iter().map(joined).collect()
    })
}

/// Returns a dense matrix of the checkpoint.
fn dense(plan: &Plan, tensor: &TensorInfo) -> Result<Part, QuantizeError> {
    let (rows, cols) = matrix_shape(tensor);
    let stored = plan.checkpoint.tensor(&tensor.name, &tensor.shape)?;
    let dtype = match stored.dtype {
        dtype if *dtype == StoredDType::F16 => DType::F16,
        dtype if *dtype == StoredDType::BF16 => DType::BF16,
        // The loader of the model has refused all other types.
        _ => DType::F32,
    };
    Ok(Part::whole(HostTensor::dense(dtype, rows, cols, stored.shared_bytes())))
}

/// Writes `config.json`, and copies the other small files.
pub(super) fn files(plan: &Plan, source: &Source, folder: &Partial) -> Result<(), QuantizeError> {
    let file = source.path("config.json");
    let json = |source| QuantizeError::Load(ConfigError::Json { file: file.clone(), source }.into());
    let mut model: serde_json::Map<String, serde_json::Value> =
        serde_json::from_slice(&source.config()?).map_err(json)?;
    let quantization = config(plan.target, &plan.dense_modules(), plan.dtype);
    model.insert("quantization_config".to_owned(), quantization);
    folder.write("config.json", format!("{:#}\n", serde_json::Value::Object(model)).as_bytes())?;
    for name in small_files(source)? {
        if let Some(bytes) = source.text(&name)? {
            folder.write(&name, &bytes)?;
        }
    }
    Ok(())
}
