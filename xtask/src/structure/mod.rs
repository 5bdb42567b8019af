//! Checks of the module structure: no module may depend on one that depends on it.

mod crates;
mod cycles;
mod graph;
mod paths;
mod source;

/// Checks every crate of the workspace for module cycles and prints those it finds. Returns whether
/// there are none.
pub(crate) fn check() -> bool {
    let folders = match crates::folders() {
        Ok(folders) => folders,
        Err(error) => {
            eprintln!("{error}");
            return false;
        }
    };
    let mut found = 0;
    for folder in folders {
        let graph = match graph::of_crate(&folder) {
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
