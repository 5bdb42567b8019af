//! A cache of compiled kernels on disk, so that each machine compiles them only once.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use sha2::{Digest, Sha256};

use crate::cache_folder::user_folder;

/// Bytes of the checksum at the start of an entry.
const CHECKSUM: usize = 32;

/// A folder of compiled kernels, or no folder. The cache never fails: an entry that cannot be read
/// is compiled again, and an entry that cannot be written is skipped.
#[derive(Debug, Clone)]
pub(crate) struct Cache {
    folder: Option<PathBuf>,
}

impl Cache {
    /// The user's cache: `$XDG_CACHE_HOME/millrace/kernels`, or else `~/.cache/millrace/kernels`.
    pub(crate) fn of_user() -> Cache {
        Cache { folder: user_folder("kernels") }
    }

    /// A cache in this folder, which is created by the first write.
    #[cfg(test)]
    pub(crate) fn at(folder: PathBuf) -> Cache {
        Cache { folder: Some(folder) }
    }

    /// A cache that stores nothing.
    #[cfg(test)]
    pub(crate) fn none() -> Cache {
        Cache { folder: None }
    }

    /// The cached code, if it is there and its checksum is right.
    pub(crate) fn get(&self, module: &str, key: &str) -> Option<Vec<u8>> {
        let entry = fs::read(self.entry(module, key)?).ok()?;
        let (checksum, code) = entry.split_at_checked(CHECKSUM)?;
        (Sha256::digest(code)[..] == *checksum).then(|| code.to_vec())
    }

    /// Stores `code`. Other processes see the whole entry or none.
    pub(crate) fn put(&self, module: &str, key: &str, code: &[u8]) {
        static NUMBER: AtomicU64 = AtomicU64::new(0);
        let Some(entry) = self.entry(module, key) else { return };
        let number = NUMBER.fetch_add(1, Ordering::Relaxed);
        let partial = entry.with_extension(format!("{}-{number}.partial", std::process::id()));
        let _ = self.folder.as_ref().map(fs::create_dir_all);
        let bytes = [&Sha256::digest(code)[..], code].concat();
        if fs::write(&partial, bytes).and_then(|()| fs::rename(&partial, &entry)).is_err() {
            let _ = fs::remove_file(&partial);
        }
    }

    fn entry(&self, module: &str, key: &str) -> Option<PathBuf> {
        Some(Path::new(self.folder.as_ref()?).join(format!("{module}-{key}.cubin")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn get_returns_only_complete_entries() {
        let folder = std::env::temp_dir().join(format!("millrace-cache-{}", std::process::id()));
        let cache = Cache::at(folder.clone());
        assert_eq!(cache.get("norm", "sm_80"), None);
        cache.put("norm", "sm_80", b"machine code");
        assert_eq!(cache.get("norm", "sm_80").unwrap(), b"machine code");
        assert_eq!(cache.get("norm", "sm_86"), None);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1, "a partial file is left");
        let file = cache.entry("norm", "sm_80").unwrap();
        let good = fs::read(&file).unwrap();
        for broken in [&good[..good.len() - 1], &good[..10], b"", &[&good[..], b"!"].concat()[..]] {
            fs::write(&file, broken).unwrap();
            assert_eq!(cache.get("norm", "sm_80"), None);
        }
        cache.put("norm", "sm_80", b"again");
        assert_eq!(cache.get("norm", "sm_80").unwrap(), b"again");
        fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn an_unwritable_folder_is_not_an_error() {
        let cache = Cache::at(PathBuf::from("/proc/millrace"));
        cache.put("norm", "sm_80", b"lost");
        assert_eq!(cache.get("norm", "sm_80"), None);
        Cache::none().put("norm", "sm_80", b"lost");
    }
}
