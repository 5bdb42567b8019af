//! The files in which sentence-transformers describes how a model makes vectors: a list of modules,
//! and a folder for each of them. They move with a model that is converted or quantized.

use std::fs;
use std::path::{Component, Path};

use millrace_formats::Source;
use serde_json::{Map, Value, json};

/// The list of modules.
const MODULES: &str = "modules.json";
/// The pooling of a folder without a list.
const POOLING: &str = "1_Pooling";
/// The largest size of a file that is copied.
const MAX_COPIED: u64 = 1 << 30;
/// The most modules of a model.
const MAX_MODULES: usize = 32;

/// The numbers by which GGUF files name a pooling, with the names that sentence-transformers has
/// had for it.
const GGUF_POOLINGS: [(u64, &str, &str); 3] = [
    (1, "mean", "pooling_mode_mean_tokens"),
    (2, "cls", "pooling_mode_cls_token"),
    (3, "lasttoken", "pooling_mode_lasttoken"),
];

/// A module in the list.
struct ListedModule {
    /// The folder of its files. It is empty for the transformer.
    folder: String,
    /// The last part of the name of its class.
    class: String,
}

/// Returns the modules that `modules.json` lists, in their order; without this file, the pooling if
/// its folder exists. Folders that lie elsewhere are left out.
fn modules(source: &Source) -> Vec<ListedModule> {
    let text = source.text(MODULES).ok().flatten();
    let Some(list) = text.and_then(|text| serde_json::from_slice::<Vec<Map<String, Value>>>(&text).ok())
    else {
        return vec![ListedModule { folder: POOLING.to_owned(), class: "Pooling".to_owned() }];
    };
    let read = |module: Map<String, Value>| {
        let text = |key: &str| module.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        let class = text("type");
        let class = class.rsplit('.').next().unwrap_or_default().to_owned();
        ListedModule { folder: text("path"), class }
    };
    let is_inside = |module: &ListedModule| {
        Path::new(&module.folder).components().all(|part| matches!(part, Component::Normal(_)))
    };
    list.into_iter().take(MAX_MODULES).map(read).filter(is_inside).collect()
}

/// Returns whether the folder of a model says how vectors are made.
pub(crate) fn describes_vectors(source: &Source) -> bool {
    let exists = |name: &str| source.text(name).is_ok_and(|text| text.is_some());
    exists(MODULES) || exists("1_Pooling/config.json")
}

/// Returns the names of the files in the folders of the modules, such as `1_Pooling/config.json`.
///
/// # Errors
/// If such a folder exists and cannot be read.
pub(crate) fn module_files(source: &Source) -> std::io::Result<Vec<String>> {
    let Source::Directory(place) = source else { return Ok(Vec::new()) };
    let mut names = Vec::new();
    for module in modules(source).iter().filter(|module| !module.folder.is_empty()) {
        let folder = place.join(&module.folder);
        if !folder.is_dir() {
            continue;
        }
        for entry in fs::read_dir(&folder)? {
            let Ok(name) = entry?.file_name().into_string() else { continue };
            let kind = fs::metadata(folder.join(&name))?;
            if kind.is_file() && kind.len() <= MAX_COPIED && !name.starts_with('.') {
                names.push(format!("{}/{name}", module.folder));
            }
        }
    }
    names.sort();
    Ok(names)
}

/// Returns the number of the pooling in GGUF, if the folder of a model describes one, and what a
/// GGUF file cannot have of its modules.
pub(crate) fn gguf_pooling(source: &Source) -> (Option<u64>, Vec<String>) {
    let (mut found, mut notes) = (None, Vec::new());
    for module in modules(source) {
        match module.class.as_str() {
            "Transformer" | "Normalize" => {}
            "Pooling" => {
                let name = format!("{}/config.json", module.folder);
                let Some(text) = source.text(&name).ok().flatten() else { continue };
                let config: Value = serde_json::from_slice(&text).unwrap_or_default();
                let is_on = |key: &str| config[key].as_bool() == Some(true);
                found = GGUF_POOLINGS
                    .iter()
                    .find(|(_, name, switch)| config["pooling_mode"] == *name || is_on(switch))
                    .map(|(number, ..)| *number);
                if found.is_none() {
                    notes.push(format!("GGUF has no number for the pooling of {name}, which is left out"));
                }
            }
            other => {
                notes.push(format!("GGUF has no place for the module {other} of vectors, which is left out"))
            }
        }
    }
    (found, notes)
}

/// Returns the files that describe the pooling with this number in GGUF, with their contents.
pub(crate) fn pooling_files(number: u64, hidden: usize) -> Option<[(String, Vec<u8>); 2]> {
    let (_, name, switch) = GGUF_POOLINGS.iter().find(|(known, ..)| *known == number)?;
    let module = |index: usize, path: &str, class: &str| {
        let class = format!("sentence_transformers.models.{class}");
        json!({"idx": index, "name": index.to_string(), "path": path, "type": class})
    };
    let list = json!([module(0, "", "Transformer"), module(1, POOLING, "Pooling")]);
    let pooling = json!({"word_embedding_dimension": hidden, "pooling_mode": name, *switch: true});
    let bytes = |value: Value| format!("{value:#}\n").into_bytes();
    Some([(MODULES.to_owned(), bytes(list)), (format!("{POOLING}/config.json"), bytes(pooling))])
}
