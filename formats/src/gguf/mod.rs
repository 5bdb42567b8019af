//! GGUF files, versions 1 to 3: metadata as keys and values, then tensors.
//!
//! Georgi Gerganov and the authors of llama.cpp defined the format. Everything that a model needs
//! is in one file: configuration, tokenizer, chat template and weights. A large model may be split
//! into several files, of which the first has all metadata.

mod config;
mod file;
#[cfg(test)]
mod model_tests;
mod names;
mod split;
#[cfg(test)]
mod test_writer;
#[cfg(test)]
mod tests;
mod tokenizer;
mod value;
mod writer;

use std::sync::Arc;

use config::ROPE_DIVISORS;
use file::Header;
pub(crate) use file::{GgmlType, MAGIC};
pub use names::gguf_tensor_name;
pub use split::split_model_name;
pub use writer::{GgufTensor, GgufType, GgufValue, gguf_padding, write_gguf_header};

use crate::error::Error;
use crate::header::Entry;
use crate::mapped_file::MappedFile;
use crate::translated::ModelFile;
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
    let (config, tensors) = model?;
    Ok(ModelFile { tensors, ..ModelFile::new(config, files.into_iter().map(Arc::new).collect()) })
}

/// The configuration, and each tensor with the index of its file.
type Contents = (serde_json::Map<String, serde_json::Value>, Vec<(usize, Entry)>);

fn read(files: &[MappedFile]) -> Result<Contents, Error> {
    let headers: Vec<Header<'_>> =
        files.iter().map(|file| Header::read(&file.path, file)).collect::<Result<_, _>>()?;
    let Some(header) = headers.first() else { return Ok(Default::default()) };
    split::check(&headers)?;
    let architecture = config::architecture(header)?;
    let all: Vec<_> = headers.iter().flat_map(|header| &header.tensors).collect();
    let mut divisors = None;
    let mut tensors = Vec::with_capacity(all.len());
    for (index, (header, file)) in headers.iter().zip(files).enumerate() {
        for tensor in &header.tensors {
            if tensor.name == ROPE_DIVISORS {
                divisors = Some(config::divisors(header, tensor, &file[tensor.range.clone()])?);
                continue;
            }
            let name = architecture.naming.translate(&tensor.name);
            let (dtype, shape) = (tensor.dtype.clone(), tensor.shape.clone());
            tensors.push((index, Entry { name, dtype, shape, range: tensor.range.clone() }));
        }
    }
    let config = config::read(&config::Model { header, architecture, tensors: &all, divisors })?;
    Ok((config, tensors))
}

/// Reads the tokenizer of a file. Returns `None` if the file has none.
pub(crate) fn tokenizer(file: &MappedFile) -> Result<Option<TokenizerData>, Error> {
    let tokenizer = Header::read(&file.path, file).and_then(|header| tokenizer::read(&header));
    file.check_readable()?;
    tokenizer
}
