//! Where this program keeps what it would otherwise find out again.

use std::path::PathBuf;

/// `$XDG_CACHE_HOME/millrace/NAME`, else `~/.cache/millrace/NAME`, else nothing is kept.
pub(crate) fn user_folder(name: &str) -> Option<PathBuf> {
    let absolute = |variable: &str| std::env::var_os(variable).map(PathBuf::from).filter(|p| p.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    base.map(|base| base.join("millrace").join(name))
}
