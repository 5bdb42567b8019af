//! The files of a repository that Millrace reads.

use std::collections::BTreeSet;

use millrace_router::embedding;
pub(super) use millrace_router::embedding::MODULES;
use serde::Deserialize;
use serde_json::Value;

use super::error::HubError;
use super::listing::{ListedFile, Listing};

/// The configuration, which decides whether the model can be run. It is downloaded first.
pub(super) const CONFIGURATION: &[&str] = &["config.json", "quantize_config.json", "quant_config.json"];

/// The other small files that the router and the shards read, apart from those of the tokenizer and
/// of vectors.
const SMALL: &[&str] = &[
    "generation_config.json",
    "tokenizer_config.json",
    "chat_template.jinja",
    "chat_template.json",
    "additional_chat_templates/tool_use.jinja",
    INDEX,
];

/// The weights of a module, in the order in which the reader looks for them. The reader does not
/// run the pickle in the second file.
pub(super) const MODULE_WEIGHTS: [&str; 2] = ["model.safetensors", "pytorch_model.bin"];

/// The folder of a module of sentence-transformers.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct ModuleFolder {
    /// The path in the repository.
    pub(super) path: String,
    /// Whether the module cannot do without its configuration.
    pub(super) is_configured: bool,
    /// Whether the module has weights.
    pub(super) has_weights: bool,
}

/// The index of weights in several files.
pub(super) const INDEX: &str = "model.safetensors.index.json";

/// The weights in one file.
const SINGLE: &str = "model.safetensors";

/// The largest size of a small file in bytes. Large tokenizers have 35 MB, and the index of a model
/// with many experts has tens of megabytes.
const MAX_SMALL: u64 = 256 << 20;

/// Advice for repositories of GGUF files, of which only one is wanted.
const NO_GGUF: &str = "Repositories are served from safetensors: download one of the files, and give its path as the \
                       model, or take the repository that the files were made from";

/// The files of a repository that are read, without weights.
#[derive(Debug)]
pub(super) struct SmallFiles {
    /// The configuration.
    pub(super) configuration: Vec<ListedFile>,
    /// The others.
    pub(super) others: Vec<ListedFile>,
}

/// Chooses the small files of a repository.
///
/// # Errors
/// If the repository holds no model, or, with `needs_weights`, none in safetensors.
pub(super) fn small_files(id: &str, listing: &Listing, needs_weights: bool) -> Result<SmallFiles, HubError> {
    let has = |name: &str| listing.files.iter().any(|file| file.name == name);
    if !has("config.json") {
        return Err(HubError::Unusable(without_configuration(id, listing)));
    }
    if needs_weights {
        check_weights(id, listing)?;
    }
    // The first of these files is used, and some of the others are large.
    let tokenizer = millrace_text::assets::tokenizer_files().find(|file| has(file));
    if tokenizer.is_none() {
        tracing::warn!(
            "{id} has no tokenizer.json or other file of a tokenizer, which `millrace serve` needs"
        );
    }
    let chosen = |names: &[&str]| -> Result<Vec<ListedFile>, HubError> {
        let files = listing.files.iter().filter(|file| names.contains(&file.name.as_str()));
        files.map(|file| bounded(file.clone())).collect()
    };
    let small: Vec<&str> =
        SMALL.iter().copied().chain(embedding::configuration_files()).chain(tokenizer).collect();
    Ok(SmallFiles { configuration: chosen(CONFIGURATION)?, others: chosen(&small)? })
}

/// Returns the names of the small files with fixed names.
pub(super) fn small_names() -> impl Iterator<Item = &'static str> {
    let tokenizers = millrace_text::assets::tokenizer_files();
    CONFIGURATION.iter().chain(SMALL).copied().chain(embedding::configuration_files()).chain(tokenizers)
}

/// Returns the folders that a list of modules names, without the model's own. A list that is not
/// valid names none; the server refuses it later.
pub(super) fn module_folders(list: &[u8]) -> Vec<ModuleFolder> {
    #[derive(Deserialize)]
    struct Module {
        #[serde(default)]
        path: String,
        r#type: String,
    }
    let modules: Vec<Module> = serde_json::from_slice(list).unwrap_or_default();
    let modules = modules.into_iter().filter(|module| !module.path.is_empty());
    let folder = |Module { path, r#type: kind }: Module| {
        let has_weights = ["Dense", "LayerNorm"].iter().any(|class| kind.ends_with(class));
        ModuleFolder { path, is_configured: has_weights || kind.ends_with("Pooling"), has_weights }
    };
    modules.map(folder).collect()
}

/// Chooses the files of the modules of sentence-transformers.
///
/// # Errors
/// If such a file is larger than is reasonable.
pub(super) fn module_files(listing: &Listing, list: &[u8]) -> Result<Vec<ListedFile>, HubError> {
    let find = |name: String| listing.files.iter().find(|file| file.name == name).cloned();
    let mut files = Vec::new();
    for ModuleFolder { path, has_weights, .. } in module_folders(list) {
        files.extend(find(format!("{path}/config.json")));
        if has_weights {
            files.extend(MODULE_WEIGHTS.iter().find_map(|name| find(format!("{path}/{name}"))));
        }
    }
    // Two modules may name one folder.
    files.sort_by(|a, b| a.name.cmp(&b.name));
    files.dedup_by(|a, b| a.name == b.name);
    files.into_iter().map(bounded).collect()
}

/// Refuses a small file that is not small.
fn bounded(file: ListedFile) -> Result<ListedFile, HubError> {
    match &file.content {
        Some(content) if content.size > MAX_SMALL => Err(HubError::Unusable(format!(
            "{} has {} bytes, more than the {MAX_SMALL} that are reasonable for such a file",
            file.name, content.size
        ))),
        _ => Ok(file),
    }
}

/// Returns why a repository without a configuration is no model.
fn without_configuration(id: &str, listing: &Listing) -> String {
    let has = |end: &str| listing.files.iter().any(|file| file.name.ends_with(end));
    if has("adapter_config.json") {
        format!(
            "{id} holds a LoRA adapter: give its model as the model, and the adapter with --lora-modules \
             NAME={id}"
        )
    } else if has(".gguf") {
        format!("{id} holds GGUF files. {NO_GGUF}")
    } else {
        format!("{id} has no config.json; it is not a model in the layout of transformers")
    }
}

/// Checks that a repository has weights that Millrace reads.
fn check_weights(id: &str, listing: &Listing) -> Result<(), HubError> {
    let ends = |end: &str| listing.files.iter().any(|file| file.name.ends_with(end));
    if plain_safetensors(listing).next().is_some() {
        return Ok(());
    }
    let why = if ends(".gguf") {
        format!("{id} holds GGUF files. {NO_GGUF}")
    } else if ends(".bin") || ends(".pt") || ends(".pth") {
        format!(
            "{id} has weights only as pickle files (.bin, .pt), and downloads take safetensors only: download \
             pytorch_model.bin yourself and serve its folder, or look for a revision with safetensors (often \
             --revision refs/pr/1)"
        )
    } else {
        format!("{id} has no weights in safetensors")
    };
    Err(HubError::Unusable(why))
}

/// Returns the safetensors files beside the configuration. Other folders hold copies.
fn plain_safetensors(listing: &Listing) -> impl Iterator<Item = &ListedFile> {
    let is_plain = |file: &&ListedFile| file.name.ends_with(".safetensors") && !file.name.contains('/');
    listing.files.iter().filter(is_plain)
}

/// Chooses the files with weights, as the loader does: `model.safetensors`, or the files of the
/// index, or the only safetensors file.
///
/// # Errors
/// If the index names files that the repository does not have.
pub(super) fn weight_files(
    id: &str,
    listing: &Listing,
    index: Option<&[u8]>,
) -> Result<Vec<ListedFile>, HubError> {
    let all: Vec<&ListedFile> = plain_safetensors(listing).collect();
    if let Some(single) = all.iter().find(|file| file.name == SINGLE) {
        return Ok(vec![(*single).clone()]);
    }
    let Some(index) = index else {
        return match all.as_slice() {
            [only] => Ok(vec![(*only).clone()]),
            _ => Err(HubError::Unusable(format!(
                "{id} has {} safetensors files, but no {INDEX} that says which tensors are where",
                all.len()
            ))),
        };
    };
    let find = |name: &String| all.iter().find(|file| file.name == *name).map(|file| (*file).clone());
    let names =
        index_files(index).ok_or_else(|| HubError::Unusable(format!("{id}: {INDEX} is not valid")))?;
    names
        .iter()
        .map(|name| {
            let absent =
                || HubError::Unusable(format!("{id}: {INDEX} names {name:?}, which it does not have"));
            find(name).ok_or_else(absent)
        })
        .collect()
}

/// Returns the files that an index names, or `None` if it names none.
pub(super) fn index_files(index: &[u8]) -> Option<BTreeSet<String>> {
    #[derive(Deserialize)]
    struct Index {
        weight_map: serde_json::Map<String, Value>,
    }
    let index: Index = serde_json::from_slice(index).ok()?;
    let names: Option<BTreeSet<String>> =
        index.weight_map.into_values().map(|name| name.as_str().map(str::to_owned)).collect();
    names.filter(|names| !names.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn listing(names: &[&str]) -> Listing {
        let files = names.iter().map(|name| ListedFile { name: (*name).to_owned(), content: None });
        Listing { commit: String::new(), files: files.collect() }
    }

    fn names(files: &[ListedFile]) -> Vec<&str> {
        files.iter().map(|file| file.name.as_str()).collect()
    }

    #[test]
    fn copies_in_other_formats_are_left() {
        let all = listing(&[
            "config.json",
            "consolidated.safetensors",
            "model-1.safetensors",
            "model-2.safetensors",
            INDEX,
            "original/model.safetensors",
            "onnx/model.onnx",
            "pytorch_model.bin",
            "model.gguf",
            "README.md",
            "tokenizer.json",
        ]);
        let small = small_files("o/n", &all, true).unwrap();
        assert_eq!(names(&small.configuration), ["config.json"]);
        assert_eq!(names(&small.others), [INDEX, "tokenizer.json"]);
        let index = br#"{"weight_map": {"a": "model-2.safetensors", "b": "model-1.safetensors"}}"#;
        let weights = weight_files("o/n", &all, Some(index)).unwrap();
        assert_eq!(names(&weights), ["model-1.safetensors", "model-2.safetensors"]);
        let one = listing(&["config.json", "model.safetensors", "consolidated.safetensors"]);
        assert_eq!(names(&weight_files("o/n", &one, None).unwrap()), ["model.safetensors"]);
    }

    #[test]
    fn modules_of_sentence_transformers_are_read_with_their_weights() {
        let all = listing(&[
            "config.json",
            "model.safetensors",
            MODULES,
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "2_Dense/pytorch_model.bin",
            "3_Dense/config.json",
            "3_Dense/pytorch_model.bin",
            "9_Dense/model.safetensors",
        ]);
        let list = br#"[{"path": "", "type": "a.Transformer"}, {"path": "1_Pooling", "type": "a.Pooling"},
            {"path": "2_Dense", "type": "a.Dense"}, {"path": "3_Dense", "type": "b.Dense"},
            {"path": "4_Normalize", "type": "a.Normalize"}, {"path": "../x", "type": "a.Dense"}]"#;
        let expected = [
            "1_Pooling/config.json",
            "2_Dense/config.json",
            "2_Dense/model.safetensors",
            "3_Dense/config.json",
            "3_Dense/pytorch_model.bin",
        ];
        assert_eq!(names(&module_files(&all, list).unwrap()), expected);
        assert!(module_files(&all, b"{").unwrap().is_empty());
        let small = small_files("o/n", &all, true).unwrap();
        assert_eq!(names(&small.others), [MODULES, "1_Pooling/config.json"]);
    }

    #[test]
    fn repositories_without_usable_weights_are_named() {
        let fault = |names: &[&str]| small_files("o/n", &listing(names), true).unwrap_err().to_string();
        assert!(fault(&["config.json", "pytorch_model.bin"]).contains("only as pickle files"));
        assert!(fault(&["config.json", "x.gguf"]).contains("GGUF"));
        assert!(fault(&["config.json", "original/x.safetensors"]).contains("no weights in safetensors"));
        assert!(fault(&["adapter_config.json", "x.safetensors"]).contains("LoRA adapter"));
        assert!(fault(&["x.safetensors"]).contains("no config.json"));
        assert!(small_files("o/n", &listing(&["config.json"]), false).is_ok());
        let two = listing(&["config.json", "a.safetensors", "b.safetensors"]);
        assert!(weight_files("o/n", &two, None).is_err());
        let evil = br#"{"weight_map": {"a": "../a.safetensors"}}"#;
        assert!(weight_files("o/n", &two, Some(evil)).is_err());
    }
}
