//! The private folder of the router's sockets, and the removal of folders that dead servers left.
//!
//! A server locks a file in its folder as long as the folder is in use. The kernel releases the
//! lock when the server dies, however it dies, so the lock distinguishes the folders of dead
//! servers from those of living ones. A process id could not, because ids are reused.

use std::fs::{self, DirEntry, File, Permissions};
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

/// Prefix of the names of the folders.
const PREFIX: &str = "millrace-shards-";

/// Name of the file that is locked while the folder is in use.
const LOCK: &str = "lock";

/// Name of the same file before it is locked.
const UNLOCKED: &str = "lock.new";

/// Prefix of the names of the sockets; the rank follows.
const RANK: &str = "rank-";

/// Age from which a folder without a lock file is removed. The server of a younger folder may be
/// about to create it.
const WITHOUT_LOCK: Duration = Duration::from_secs(3600);

/// A new folder that only this user can enter. Dropping it removes it.
pub(super) struct SocketFolder {
    folder: TempDir,
    owner: u32,
    /// The locked file.
    _lock: File,
}

impl SocketFolder {
    /// Creates a folder in the directory for temporary files.
    ///
    /// # Errors
    /// The error of the system.
    pub(super) fn new() -> io::Result<Self> {
        Self::new_in(&std::env::temp_dir())
    }

    fn new_in(parent: &Path) -> io::Result<Self> {
        let folder = tempfile::Builder::new()
            .prefix(PREFIX)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        let owner = folder.path().metadata()?.uid();
        // The file gets its name after it is locked, so another server never finds it unlocked
        // while this process lives.
        let unlocked = folder.path().join(UNLOCKED);
        let lock = File::create_new(&unlocked)?;
        lock.lock()?;
        fs::rename(&unlocked, folder.path().join(LOCK))?;
        Ok(SocketFolder { folder, owner, _lock: lock })
    }

    /// Path of the socket of a rank.
    pub(super) fn socket(&self, rank: usize) -> PathBuf {
        self.folder.path().join(format!("{RANK}{rank}"))
    }

    /// Id of the user who may enter.
    pub(super) fn owner(&self) -> u32 {
        self.owner
    }
}

/// Removes the folders that dead servers of this user have left in the directory for temporary
/// files. Folders that cannot be read or removed stay.
pub(in crate::engine) fn remove_leftovers() {
    let parent = std::env::temp_dir();
    let Ok(owner) = tempfile::tempfile_in(&parent).and_then(|file| file.metadata()).map(|file| file.uid())
    else {
        return;
    };
    let removed = remove_leftovers_in(&parent, owner);
    if removed > 0 {
        tracing::info!("removed {removed} temporary folders of dead servers from {}", parent.display());
    }
}

/// Removes the folders of dead servers in `parent`, and returns their number.
fn remove_leftovers_in(parent: &Path, owner: u32) -> usize {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    let ours = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(PREFIX));
    ours.filter(|entry| remove_leftover(entry, owner).unwrap_or(false)).count()
}

/// Removes the folder if its server is dead and it contains only files that a server creates.
/// Returns whether it did.
fn remove_leftover(entry: &DirEntry, owner: u32) -> io::Result<bool> {
    // The metadata of the entry itself, so a symbolic link is not a folder.
    let folder = entry.metadata()?;
    if !folder.is_dir() || folder.uid() != owner || folder.mode() & 0o777 != 0o700 {
        return Ok(false);
    }
    let mut files = Vec::new();
    for file in fs::read_dir(entry.path())? {
        let file = file?;
        let name = file.file_name();
        let is_ours = name == LOCK || name == UNLOCKED || name.to_string_lossy().starts_with(RANK);
        if !is_ours || file.file_type()?.is_dir() {
            return Ok(false);
        }
        files.push(file);
    }
    // The lock is held until the folder is removed, so only one of two servers that start at the
    // same time removes it.
    let _lock = match files.iter().find(|file| file.file_name() == LOCK) {
        Some(lock) if lock.file_type()?.is_file() => {
            let lock = File::open(lock.path())?;
            if lock.try_lock().is_err() {
                return Ok(false);
            }
            Some(lock)
        }
        Some(_) => return Ok(false),
        None if SystemTime::now().duration_since(folder.modified()?).unwrap_or_default() < WITHOUT_LOCK => {
            return Ok(false);
        }
        None => None,
    };
    for file in &files {
        fs::remove_file(file.path())?;
    }
    fs::remove_dir(entry.path())?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    /// A folder with these files, as a server would leave it.
    fn leave(parent: &Path, name: &str, files: &[&str]) -> PathBuf {
        let folder = parent.join(format!("{PREFIX}{name}"));
        fs::create_dir(&folder).unwrap();
        fs::set_permissions(&folder, Permissions::from_mode(0o700)).unwrap();
        for file in files {
            match file.starts_with(RANK) {
                true => drop(UnixListener::bind(folder.join(file)).unwrap()),
                false => fs::write(folder.join(file), "").unwrap(),
            }
        }
        folder
    }

    #[test]
    fn folders_of_dead_servers_are_removed_and_no_others() {
        let parent = tempfile::tempdir().unwrap();
        let (at, owner) = (parent.path(), parent.path().metadata().unwrap().uid());
        let living = SocketFolder::new_in(at).unwrap();
        let living_folder = living.socket(0).parent().unwrap().to_owned();
        let dead = leave(at, "dead", &[LOCK, "rank-0", "rank-1"]);
        let starting = leave(at, "starting", &[]);
        let foreign = leave(at, "foreign", &[LOCK, "thesis.txt"]);
        let open = leave(at, "open", &[LOCK]);
        fs::set_permissions(&open, Permissions::from_mode(0o755)).unwrap();
        let other = at.join("millrace-other");
        fs::create_dir(&other).unwrap();
        // A link to a folder that would be removed otherwise.
        let target = leave(at, "target-of-link", &["thesis.txt"]);
        symlink(&target, at.join(format!("{PREFIX}link"))).unwrap();

        assert_eq!(remove_leftovers_in(at, owner + 1), 0, "of another user");
        assert_eq!(remove_leftovers_in(at, owner), 1);
        assert!(!dead.exists());
        for kept in [&living_folder, &starting, &foreign, &open, &other, &target] {
            assert!(kept.exists(), "{} is gone", kept.display());
        }
        assert!(foreign.join("thesis.txt").exists() && foreign.join(LOCK).exists());

        drop(living);
        assert!(!living_folder.exists());
    }

    #[test]
    fn a_folder_that_never_got_its_lock_is_removed_later() {
        let parent = tempfile::tempdir().unwrap();
        let owner = parent.path().metadata().unwrap().uid();
        let folder = leave(parent.path(), "unlocked", &[UNLOCKED]);
        assert_eq!(remove_leftovers_in(parent.path(), owner), 0);
        let long_ago = SystemTime::now() - 2 * WITHOUT_LOCK;
        File::open(&folder).unwrap().set_modified(long_ago).unwrap();
        assert_eq!(remove_leftovers_in(parent.path(), owner), 1);
        assert!(!folder.exists());
    }
}
