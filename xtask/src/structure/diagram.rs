//! Compares the diagram of crates in the documentation with the manifests.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

/// The page whose first diagram shows the crates.
const PAGE: &str = "docs/architecture.md";

/// Crates that the diagram leaves out, because they only test others or run tasks.
const LEFT_OUT: [&str; 4] = ["integration-tests", "integration-tests/patience", "kernels/suite", "xtask"];

/// Returns the dependencies between crates that the diagram lacks or invents.
///
/// # Errors
/// If the page or a manifest cannot be read.
pub(super) fn mistakes(root: &Path, members: &[String]) -> Result<Vec<String>, String> {
    let read =
        |file: &Path| fs::read_to_string(root.join(file)).map_err(|e| format!("{}: {e}", file.display()));
    let drawn = drawn(&read(Path::new(PAGE))?);
    let mut real = BTreeSet::new();
    for member in members.iter().filter(|member| !LEFT_OUT.contains(&member.as_str())) {
        let manifest = read(&Path::new(member).join("Cargo.toml"))?;
        let from = name(member);
        real.extend(dependencies(&manifest).into_iter().map(|(to, arrow)| edge(from, arrow, &to)));
    }
    let missing = real.difference(&drawn).map(|edge| format!("{PAGE}: the diagram lacks {edge}"));
    let invented = drawn.difference(&real).map(|edge| format!("{PAGE}: no manifest has {edge}"));
    Ok(missing.chain(invented).collect())
}

/// The name of a member as the diagram has it.
fn name(member: &str) -> &str {
    member.rsplit('/').next().unwrap_or(member)
}

fn edge(from: &str, arrow: &str, to: &str) -> String {
    format!("{from} {arrow} {to}")
}

/// The arrows of the first diagram of a page.
fn drawn(page: &str) -> BTreeSet<String> {
    let diagram = page.split_once("```mermaid\n").and_then(|(_, rest)| rest.split_once("```"));
    let lines = diagram.map_or("", |(diagram, _)| diagram).lines().skip(1);
    lines.map(|line| line.trim().to_owned()).filter(|line| !line.is_empty()).collect()
}

/// The crates of the workspace that a manifest names, each with its arrow: dotted for those that
/// only tests use.
fn dependencies(manifest: &str) -> Vec<(String, &'static str)> {
    let (mut arrow, mut found) = (None, Vec::<(String, &str)>::new());
    for line in manifest.lines() {
        match line.trim() {
            "[dependencies]" => arrow = Some("-->"),
            "[dev-dependencies]" => arrow = Some("-. tests .->"),
            section if section.starts_with('[') => arrow = None,
            _ => {}
        }
        let named = line.strip_prefix("millrace-").and_then(|rest| rest.split(['.', ' ', '=']).next());
        if let (Some(arrow), Some(name)) = (arrow, named)
            && name != "test-patience"
            // Tests may name a dependency again to turn on more of its features.
            && !found.iter().any(|(known, _)| known == name)
        {
            found.push((name.to_owned(), arrow));
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::{dependencies, drawn, mistakes};

    #[test]
    fn arrows_and_dependencies_are_read() {
        let page = "a\n```mermaid\nflowchart LR\n    a --> b\n    b -. tests .-> c\n```\n```mermaid\nx\n    c --> d\n```\n";
        assert_eq!(drawn(page).into_iter().collect::<Vec<_>>(), ["a --> b", "b -. tests .-> c"]);
        let manifest = "[package]\nname = \"millrace-x\"\n[dependencies]\nmillrace-b.workspace = true\nserde = \"1\"\n\
                        [dev-dependencies]\nmillrace-b = { workspace = true, features = [] }\n\
                        millrace-c = { path = \"c\" }\nmillrace-test-patience.workspace = true\n";
        let wanted = [("b".to_owned(), "-->"), ("c".to_owned(), "-. tests .->")];
        assert_eq!(dependencies(manifest), wanted);
    }

    #[test]
    fn the_diagram_of_the_documentation_is_that_of_the_manifests() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let members = super::super::crates::members(&root).unwrap();
        assert_eq!(mistakes(&root, &members), Ok(Vec::new()));
    }
}
