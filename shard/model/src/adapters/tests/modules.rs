//! Compares the names of modules by which adapters are matched with those of transformers. The file
//! `modules.json` has one checkpoint of each kind of model.

use std::collections::{BTreeMap, BTreeSet};

use millrace_formats::Source;

use super::data;
use crate::adapters::adaptable;
use crate::families::{Overrides, modules};

/// The checkpoints whose modules have other names or other parts in transformers. Baichuan and
/// ChatGLM come with code of their own, for which adapters of them are written, and transformers
/// fuses gate and up of MiniMax-M3.
const OTHER_MODULES: [&str; 3] = ["baichuan_7b", "chatglm2", "minimax_m3"];

/// Returns the name of a module with stars for numbers.
fn starred(module: &str) -> String {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = module.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}

#[test]
fn matrices_are_found_under_the_names_of_transformers() {
    let text = std::fs::read(data("golden-adapters/modules.json")).unwrap();
    let all: BTreeMap<String, BTreeSet<String>> = serde_json::from_slice(&text).unwrap();
    let (mut found, mut different) = (0, Vec::new());
    for (name, names) in &all {
        let source = Source::Directory(data("golden").join(name));
        let modules = modules(&source, &Overrides::default()).unwrap();
        let exists = |module: &str| names.contains(&starred(module));
        let mut missing = BTreeSet::new();
        for piece in adaptable(modules.spec()).into_iter().flat_map(|slot| modules.pieces(slot)) {
            match exists(&modules.resolve(&piece.module, exists)) {
                true => found += 1,
                false => _ = missing.insert(piece.module),
            }
        }
        if !missing.is_empty() {
            different.push(name.as_str());
        }
        assert!(missing.is_empty() || OTHER_MODULES.contains(&name.as_str()), "{name} lacks {missing:?}");
    }
    assert_eq!(different, OTHER_MODULES);
    assert!(all.len() > 80 && found > 1000, "{} models, {found} parts", all.len());
}
