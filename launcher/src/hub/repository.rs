//! Names of repositories and revisions, and names of files in them. All of them become parts of
//! paths and URLs, so all of them are checked.

use std::path::{Component, Path};

/// The longest name of an owner, a repository or a revision that is accepted.
const MAX_NAME: usize = 200;

/// The longest name of a file that is accepted.
const MAX_FILE_NAME: usize = 500;

/// A repository on the hub and a revision of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Repository {
    /// The name, `org/name`.
    pub(crate) id: String,
    /// Branch, tag, commit, or a reference such as `refs/pr/1`.
    pub(crate) revision: String,
}

impl Repository {
    /// Returns the repository with this name, or `None` if the name cannot be that of a repository.
    /// Names of folders (`./name`, `/models/name`, `name`) are not names of repositories.
    pub(crate) fn named(id: &str, revision: &str) -> Option<Repository> {
        let (owner, name) = id.split_once('/')?;
        let is_valid = is_plain_name(owner) && is_plain_name(name);
        is_valid.then(|| Repository { id: id.to_owned(), revision: revision.to_owned() })
    }

    /// Returns the name of the repository's folder in the cache.
    pub(crate) fn folder_name(&self) -> String {
        format!("models--{}", self.id.replace('/', "--"))
    }

    /// Returns why the revision cannot be used, if it cannot.
    pub(crate) fn revision_fault(&self) -> Option<&'static str> {
        let revision = &self.revision;
        if revision.is_empty() || revision.len() > MAX_NAME {
            return Some("is empty or too long");
        }
        let stays_inside = Path::new(revision).components().all(|part| matches!(part, Component::Normal(_)));
        let allowed = |c: char| c.is_ascii_alphanumeric() || "-._/+@#".contains(c);
        let is_plain = stays_inside && !revision.ends_with('/') && revision.chars().all(allowed);
        (!is_plain).then_some("is not the name of a branch, a tag or a commit")
    }

    /// Returns whether the revision is a complete commit hash, whose content never changes.
    pub(crate) fn is_commit(&self) -> bool {
        is_hexadecimal(&self.revision, 40)
    }
}

impl std::fmt::Display for Repository {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.id)
    }
}

/// Returns whether a text has `digits` lower-case hexadecimal digits and nothing else.
pub(super) fn is_hexadecimal(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns whether a name of a file in a repository stays inside the repository's folder.
pub(super) fn is_safe_file_name(name: &str) -> bool {
    let stays_inside = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    let is_plain = !name.contains(['\\', ':']) && !name.chars().any(char::is_control);
    // `components` skips a `.` and doubled slashes, so they are looked for in the text.
    let is_normal = name.split('/').all(|part| !matches!(part, "" | "." | ".."));
    stays_inside && is_plain && is_normal && name.len() <= MAX_FILE_NAME
}

/// Returns whether a text can be the name of an owner or of a repository on the hub.
fn is_plain_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    begins_well && name.len() <= MAX_NAME && name.chars().all(allowed) && !name.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_repositories() {
        for path in [
            "./models/x",
            "../models/x",
            "/models/x",
            "models/x/",
            "models/a/b",
            "~/models",
            "name",
            "",
            "/",
            "a\\b/c",
            ".cache/x",
            "C:/x",
            "org/..",
            "org/",
            "org/a b",
        ] {
            assert_eq!(Repository::named(path, "main"), None, "{path}");
        }
        for id in ["org/name", "meta-llama/Llama-3.2-1B", "01-ai/Yi", "org/name--x_y.z"] {
            assert_eq!(Repository::named(id, "main").unwrap().id, id);
        }
    }

    #[test]
    fn names_of_files_stay_inside_the_folder() {
        for bad in ["../x", "/etc/passwd", "a/../../x", "a\\b", "C:x", "a//b", "./x", "", "a/", "a\nb", ".."]
        {
            assert!(!is_safe_file_name(bad), "{bad:?}");
        }
        for good in ["config.json", "1_Pooling/config.json", "a..b.safetensors", "ü.txt"] {
            assert!(is_safe_file_name(good), "{good}");
        }
    }

    #[test]
    fn revisions_stay_inside_the_folder() {
        let fault = |revision: &str| Repository::named("a/b", revision).unwrap().revision_fault();
        for bad in ["", "../x", "/x", "a/../b", "a b", "a\n", "a?b", "a/"] {
            assert!(fault(bad).is_some(), "{bad:?}");
        }
        for good in ["main", "refs/pr/1", "v1.0", "feature/x"] {
            assert_eq!(fault(good), None, "{good}");
        }
    }
}
