//! Finds the paths that recent commits and uncommitted changes touch.

use std::process::Command;

/// The time before the date of the last commit in which commits count as recent. A submission is
/// younger.
const RECENT: u64 = 2 * 86_400;

/// A path that was touched, and what touched it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) path: String,
    /// The abbreviated commit, or [`UNCOMMITTED`].
    pub(super) commit: String,
}

/// Stands for a commit in changes that are not committed.
const UNCOMMITTED: &str = "uncommitted";

/// Returns all recent changes, or `None` if Git does not know them: outside of a repository, or
/// where the history is too short to tell.
pub(super) fn recent() -> Option<Vec<Change>> {
    if git(&["rev-parse", "--is-shallow-repository"])?.trim() == "true" {
        return None;
    }
    let head: u64 = git(&["log", "-1", "--format=%ct"])?.trim().parse().ok()?;
    let since = format!("--since={}", head.saturating_sub(RECENT));
    let log = git(&["log", &since, "-m", "--no-renames", "--name-only", "--format=commit %h"])?;
    let status = git(&["status", "--porcelain", "--no-renames"])?;
    Some(committed(&log).chain(uncommitted(&status)).collect())
}

fn committed(log: &str) -> impl Iterator<Item = Change> {
    let mut commit = "";
    log.lines().filter(|line| !line.is_empty()).filter_map(move |line| match line.strip_prefix("commit ") {
        Some(hash) => {
            commit = hash;
            None
        }
        None => Some(Change { path: line.to_owned(), commit: commit.to_owned() }),
    })
}

fn uncommitted(status: &str) -> impl Iterator<Item = Change> {
    let paths = status.lines().filter_map(|line| line.get(3..));
    paths.map(|path| Change { path: path.to_owned(), commit: UNCOMMITTED.to_owned() })
}

/// Returns what Git prints, or `None` if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    let done = Command::new("git").args(["-c", "core.quotepath=off"]).args(arguments).output().ok()?;
    done.status.success().then(|| String::from_utf8_lossy(&done.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_have_the_commit_that_touched_them() {
        let log = "commit a1\n\ndocs/x.md\nrouter/src/lib.rs\ncommit b2\n\nshard/a.rs\n";
        let found: Vec<_> = committed(log).map(|change| (change.commit, change.path)).collect();
        let want = [("a1", "docs/x.md"), ("a1", "router/src/lib.rs"), ("b2", "shard/a.rs")];
        assert_eq!(found, want.map(|(commit, path)| (commit.to_owned(), path.to_owned())));
        let found: Vec<_> = uncommitted(" M a.rs\n?? new/\n").map(|change| change.path).collect();
        assert_eq!(found, ["a.rs", "new/"]);
    }
}
