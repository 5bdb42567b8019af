//! Checks of the structure: no module may depend on one that depends on it, and the diagram of
//! crates in the documentation has the dependencies of the manifests.

mod crates;
mod cycles;
mod diagram;
mod graph;
mod paths;
mod source;

use std::path::{Path, PathBuf};

/// Checks every crate of the workspace for module cycles, and the diagram of crates. Prints what it
/// finds, and returns whether there is nothing.
pub(crate) fn check() -> bool {
    let members = crates::members(Path::new("."));
    let checked = members.and_then(|members| {
        let mistakes = diagram::mistakes(Path::new("."), &members)?;
        mistakes.iter().for_each(|mistake| eprintln!("{mistake}"));
        Ok(without_cycles(&crates::folders(&members)?) && mistakes.is_empty())
    });
    checked.unwrap_or_else(|error| {
        eprintln!("{error}");
        false
    })
}

/// Prints the module cycles of crates. Returns whether there are none.
fn without_cycles(folders: &[PathBuf]) -> bool {
    let mut found = 0;
    for folder in folders {
        let graph = match graph::of_crate(folder) {
            Ok(graph) => graph,
            Err(error) => {
                eprintln!("{}: {error}", folder.display());
                return false;
            }
        };
        for cycle in cycles::find(&graph) {
            found += 1;
            eprintln!("module cycle in {}:", folder.display());
            for edge in cycle {
                eprintln!("  {} uses {} of {}", edge.from, edge.names.join(", "), edge.to);
            }
        }
    }
    if found > 0 {
        eprintln!("{found} module cycles: move what both sides use into a third module");
    }
    found == 0
}
