//! The files beside the weights of a model.

use std::fs;

use millrace_formats::Source;

use super::error::QuantizeError;
use crate::vectors::module_files;

/// The largest size of a file that is copied.
const MAX_COPIED: u64 = 100 << 20;

/// Ends of the names of weights, and of what describes the former weights.
const NOT_COPIED: [&str; 11] = [
    ".safetensors",
    ".index.json",
    ".bin",
    ".pt",
    ".pth",
    ".gguf",
    ".h5",
    ".msgpack",
    ".onnx",
    "quantize_config.json",
    "quant_config.json",
];

const CONFIG: &str = "config.json";

/// Returns the names of the files beside the weights and `config.json` that belong to a model:
/// tokenizer, templates, licence, modules that make vectors, and so on.
pub(crate) fn small_files(source: &Source) -> Result<Vec<String>, QuantizeError> {
    let is_wanted = |name: &str| {
        name != CONFIG && !name.starts_with('.') && !NOT_COPIED.iter().any(|end| name.ends_with(end))
    };
    let mut names = Vec::new();
    match source {
        // Configuration and tokenizer are in the file with the weights.
        Source::File(_) => {}
        Source::Memory(files) => names.extend(files.iter().map(|(name, _)| (*name).to_owned())),
        Source::Directory(folder) => {
            let error = |source| QuantizeError::Folder { path: folder.display().to_string(), source };
            for entry in fs::read_dir(folder).map_err(error)? {
                let Ok(name) = entry.map_err(error)?.file_name().into_string() else { continue };
                // Files of a cache are links.
                let kind = fs::metadata(folder.join(&name)).map_err(error)?;
                if kind.is_file() && kind.len() <= MAX_COPIED {
                    names.push(name);
                }
            }
        }
    }
    names.retain(|name| is_wanted(name));
    names.sort();
    let modules = module_files(source);
    let path = || source.place();
    names.extend(modules.map_err(|source| QuantizeError::Folder { path: path(), source })?);
    Ok(names)
}
