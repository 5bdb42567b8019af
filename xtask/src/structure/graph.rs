//! The graph of a crate's modules: which module uses items that another one defines.
//!
//! The analysis reads text, not types: it follows paths in `use` declarations and in code. Calls of
//! methods are invisible to it. A re-export (`pub use`) makes no edge by itself: users of the
//! re-exported item depend on the module that defines it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::{fs, io};

use super::paths::{Import, imports, mentioned};
use super::source::code_of;

/// The use of one module's items by another.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Edge {
    /// Path of the module that uses the items.
    pub(super) from: String,
    /// Path of the module that defines them.
    pub(super) to: String,
    /// The items.
    pub(super) names: Vec<String>,
}

/// A module in a file of its own.
struct Module {
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
    imports: Vec<Import>,
    mentioned: Vec<Vec<String>>,
}

type Modules = BTreeMap<Vec<String>, Module>;

/// Reads the modules below `src`, apart from tests.
///
/// # Errors
/// If a file cannot be read.
pub(super) fn of_crate(src: &Path) -> io::Result<Vec<Edge>> {
    let mut modules = Modules::new();
    read(src, &[], &mut modules)?;
    Ok(edges(&modules))
}

fn read(folder: &Path, path: &[String], modules: &mut Modules) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let file = entry?.path();
        let Some(stem) = file.file_stem().and_then(|stem| stem.to_str()) else { continue };
        let is_test = stem == "tests" || stem.ends_with("_tests") || stem == "test_support";
        if is_test {
            continue;
        }
        let mut module = path.to_vec();
        if file.is_dir() {
            module.push(stem.to_owned());
            read(&file, &module, modules)?;
        } else if file.extension().is_some_and(|extension| extension == "rs") {
            if !matches!(stem, "mod" | "lib" | "main") {
                module.push(stem.to_owned());
            }
            modules.insert(module, parse(&fs::read_to_string(&file)?));
        }
    }
    Ok(())
}

fn parse(text: &str) -> Module {
    let (imports, rest) = imports(&code_of(text));
    Module { items: items(&rest), imports, mentioned: mentioned(&rest) }
}

/// Names that follow the keywords of items at the outermost level.
fn items(code: &str) -> BTreeSet<String> {
    const KEYWORDS: [&str; 9] =
        ["struct", "enum", "trait", "type", "fn", "const", "static", "union", "macro_rules!"];
    let mut depth = 0;
    let mut outer = String::new();
    for character in code.chars() {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            _ if depth == 0 => outer.push(character),
            _ => {}
        }
        if character == '}' && depth == 0 {
            outer.push(' ');
        }
    }
    let words: Vec<&str> = outer.split_whitespace().collect();
    let named = words
        .windows(2)
        .filter(|pair| KEYWORDS.contains(&pair[0]))
        .map(|pair| pair[1].chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect::<String>());
    named.filter(|name| !name.is_empty() && name != "_").collect()
}

fn edges(modules: &Modules) -> Vec<Edge> {
    let mut found: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    let mut add = |from: &[String], target: Option<(Vec<String>, String)>| {
        if let Some((to, name)) = target
            && to != from
        {
            found.entry((shown(from), shown(&to))).or_default().insert(name);
        }
    };
    for (at, module) in modules {
        for import in module.imports.iter().filter(|import| !import.is_public) {
            match &import.name {
                Some(_) => add(at, resolve(modules, at, &import.path, 0)),
                None => {
                    let to = walk(modules, at, &import.path);
                    add(at, to.filter(|to| !at.starts_with(to)).map(|to| (to, "*".to_owned())));
                }
            }
        }
        for path in &module.mentioned {
            add(at, resolve(modules, at, path, 0));
        }
    }
    let edge = |((from, to), names): ((String, String), BTreeSet<String>)| Edge {
        from,
        to,
        names: names.into_iter().collect(),
    };
    found.into_iter().map(edge).collect()
}

fn shown(path: &[String]) -> String {
    if path.is_empty() { "crate".to_owned() } else { path.join("::") }
}

/// The module that a path names in whole, if it names one.
fn walk(modules: &Modules, from: &[String], path: &[String]) -> Option<Vec<String>> {
    let (mut at, rest) = start(modules, from, path)?;
    for segment in rest {
        at.push(segment.clone());
        modules.get(&at)?;
    }
    Some(at)
}

/// The module that a path begins in, and the segments that are left.
fn start<'a>(modules: &Modules, from: &[String], path: &'a [String]) -> Option<(Vec<String>, &'a [String])> {
    let mut at = from.to_vec();
    let mut rest = path;
    match path.first()?.as_str() {
        "crate" => (at, rest) = (Vec::new(), &path[1..]),
        "self" => rest = &path[1..],
        "super" => {
            while let Some((_, tail)) = rest.split_first().filter(|(first, _)| *first == "super") {
                at.pop();
                rest = tail;
            }
        }
        first => {
            at.push(first.to_owned());
            let is_child = modules.contains_key(&at);
            at.pop();
            let is_imported = modules.get(from)?.imports.iter().any(|i| i.name.as_deref() == Some(first));
            if !is_child && !is_imported {
                return None;
            }
        }
    }
    Some((at, rest))
}

/// The module that defines the item that `path` names in module `from`, with the item's name.
fn resolve(
    modules: &Modules,
    from: &[String],
    path: &[String],
    depth: usize,
) -> Option<(Vec<String>, String)> {
    // Imports that lead back to themselves would go on for ever.
    if depth > 16 {
        return None;
    }
    let (mut at, mut rest) = start(modules, from, path)?;
    loop {
        let (segment, tail) = rest.split_first()?;
        let module = modules.get(&at)?;
        let mut child = at.clone();
        child.push(segment.clone());
        if modules.contains_key(&child) {
            if tail.is_empty() {
                return None;
            }
            (at, rest) = (child, tail);
            continue;
        }
        if module.items.contains(segment) {
            return Some((at, segment.clone()));
        }
        let import = module.imports.iter().find(|import| import.name.as_ref() == Some(segment))?;
        // A path through an imported module or type goes on where the import leads.
        let mut onward = import.path.clone();
        if walk(modules, &at, &import.path).is_some() {
            onward.extend(tail.iter().cloned());
        }
        return resolve(modules, &at, &onward, depth + 1);
    }
}

#[cfg(test)]
mod tests {
    use super::{Modules, edges, parse};

    fn shown(files: &[(&str, &str)]) -> Vec<String> {
        let path = |name: &str| name.split("::").filter(|s| !s.is_empty()).map(str::to_owned).collect();
        let modules: Modules = files.iter().map(|(name, text)| (path(name), parse(text))).collect();
        edges(&modules).iter().map(|e| format!("{} -> {} {}", e.from, e.to, e.names.join(","))).collect()
    }

    #[test]
    fn users_of_a_reexport_depend_on_the_module_that_defines_the_item() {
        let files = [
            ("", "mod a; mod b;"),
            ("a", "pub mod inner; pub use inner::Thing; pub struct Own;"),
            ("a::inner", "pub struct Thing;"),
            ("b", "use crate::a::{Own, Thing}; fn f() { crate::a::inner::Thing::new() }"),
        ];
        assert_eq!(shown(&files), ["b -> a Own", "b -> a::inner Thing"]);
    }

    #[test]
    fn a_child_that_uses_its_parent_is_seen_through_super_and_imports() {
        let files = [
            ("", "mod p;"),
            ("p", "mod c; use c::Child; use std::fmt; pub struct Parent(Child); fn g() { c::help() }"),
            ("p::c", "use super::Parent; pub struct Child; pub fn help() {} impl Parent { fn x() {} }"),
        ];
        assert_eq!(shown(&files), ["p -> p::c Child,help", "p::c -> p Parent"]);
    }
}
