//! Checks of the module structure: no module may depend on one that depends on it.

mod cycles;
mod graph;
mod paths;
mod source;

use std::path::Path;

/// The folders of the crates that are checked, from the workspace's root.
const CRATES: [&str; 6] = ["formats", "kernels", "launcher", "proto", "router", "shard"];

/// Checks every crate for module cycles and prints those it finds. Returns whether there are none.
pub(crate) fn check() -> bool {
    let mut found = 0;
    for folder in CRATES.iter().map(Path::new).filter(|folder| folder.exists()) {
        let graph = match graph::of_crate(&folder.join("src")) {
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
