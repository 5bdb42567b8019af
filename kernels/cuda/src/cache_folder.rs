//! The user's folder of cached results.

use std::path::PathBuf;

/// Returns `$XDG_CACHE_HOME/millrace/NAME`, or else `~/.cache/millrace/NAME`; `None` if neither
/// variable holds an absolute path.
pub(crate) fn user_folder(name: &str) -> Option<PathBuf> {
    let absolute = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    base.map(|base| base.join("millrace").join(name))
}
