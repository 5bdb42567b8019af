//! The crates of the workspace: its members, and their tests and benchmarks of several files.

use std::fs;
use std::path::{Path, PathBuf};

/// Returns the folders of the members of the workspace.
///
/// # Errors
/// If the manifest of the workspace cannot be read or names no members.
pub(super) fn members(root: &Path) -> Result<Vec<String>, String> {
    let manifest = fs::read_to_string(root.join("Cargo.toml")).map_err(|e| format!("Cargo.toml: {e}"))?;
    match listed(&manifest)[..] {
        [] => Err("Cargo.toml: no members were found".to_owned()),
        ref members => Ok(members.iter().map(|&member| member.to_owned()).collect()),
    }
}

/// Returns the folders whose modules form a crate. The targets below `fuzz/` are not among them,
/// because each is a single file.
///
/// # Errors
/// If a member has no code.
pub(super) fn folders(members: &[String]) -> Result<Vec<PathBuf>, String> {
    let mut folders = Vec::new();
    for member in members {
        let member = Path::new(member);
        let before = folders.len();
        folders.extend(Some(member.join("src")).filter(|src| src.is_dir()));
        folders.extend(["tests", "benches"].iter().flat_map(|kind| with_main(&member.join(kind))));
        if folders.len() == before {
            return Err(format!("{}: a member without code", member.display()));
        }
    }
    Ok(folders)
}

/// The folders inside `folder` that have a `main.rs`, sorted.
fn with_main(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let mut found: Vec<PathBuf> =
        entries.map(|entry| entry.path()).filter(|path| path.join("main.rs").is_file()).collect();
    found.sort();
    found
}

/// The members that the manifest of a workspace lists.
fn listed(manifest: &str) -> Vec<&str> {
    let list = manifest.split_once("\nmembers = [").and_then(|(_, rest)| rest.split_once(']'));
    let quoted = list.map_or("", |(list, _)| list).split('"').skip(1).step_by(2);
    quoted.collect()
}

#[cfg(test)]
mod tests {
    use super::listed;

    #[test]
    fn members_are_read_from_one_line_or_several() {
        let manifest = "[workspace]\nmembers = [\"a\", \"b/c\"]\ndefault-members = [\"a\"]\n";
        assert_eq!(listed(manifest), ["a", "b/c"]);
        assert_eq!(listed("[workspace]\nmembers = [\n  \"a\",\n  \"b\",\n]\n"), ["a", "b"]);
        assert!(listed("[package]\n").is_empty());
    }
}
