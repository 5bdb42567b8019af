//! The folder of the disk cache, for as long as the server runs.

use std::fs::{DirBuilder, File, OpenOptions, TryLockError};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use anyhow::{Context, Result, bail, ensure};
use millrace_shard::DiskCacheOptions;

use crate::cli::{DeviceArg, DiskCacheArgs, EngineArgs, KvDisk};

/// The file that a server locks, so that no other one uses the folder.
const LOCK: &str = "millrace.lock";

/// The ending of the files of the shards.
const ENDING: &str = ".kv";

/// The locked folder of the disk cache. Unless it is kept, its files are removed at the end.
#[derive(Debug)]
pub(crate) struct DiskFolder {
    options: DiskCacheOptions,
    #[expect(dead_code, reason = "holds the lock of the folder")]
    lock: File,
}

impl DiskFolder {
    /// Opens the folder that the flags name, if they name one. `has_adapters` says whether requests
    /// may name adapters.
    ///
    /// # Errors
    /// If other flags exclude a disk cache, the folder cannot be written to, or another server uses
    /// it.
    pub(crate) fn open(
        args: &DiskCacheArgs,
        engine: &EngineArgs,
        nodes: usize,
        has_adapters: bool,
    ) -> Result<Option<DiskFolder>> {
        let Some(KvDisk { folder, bytes }) = args.kv_disk.clone() else { return Ok(None) };
        ensure!(
            engine.kv_host_memory.is_none(),
            "--kv-disk and --kv-host-memory cannot be combined; omit one of them"
        );
        ensure!(engine.device == DeviceArg::Cpu, "--kv-disk needs the CPU; give --device cpu as well");
        ensure!(nodes == 1, "--kv-disk and --nnodes cannot be combined; omit one of them");
        ensure!(engine.replicas() == 1, "--kv-disk and --replicas cannot be combined; omit one of them");
        ensure!(
            engine.prefix_caching,
            "--kv-disk needs the prefix cache, which --prefix-caching=false turns off"
        );
        // Blocks are kept by the numbers of adapters, which another server gives to others.
        ensure!(
            !(args.kv_persist && has_adapters),
            "--kv-persist cannot be combined with LoRA adapters or --enable-lora; --kv-disk alone can"
        );
        let lock = lock(&folder)?;
        let run = (!args.kv_persist).then(run_name);
        let opened = DiskFolder { options: DiskCacheOptions { folder, bytes, run }, lock };
        opened.remove_unless_kept().context("--kv-disk: cannot remove the files of an earlier server")?;
        Ok(Some(opened))
    }

    /// Returns the options of the shards.
    pub(crate) fn options(&self) -> &DiskCacheOptions {
        &self.options
    }

    /// Returns whether the files are kept for the next server.
    pub(crate) fn is_kept(&self) -> bool {
        self.options.run.is_none()
    }

    /// Removes the files of the shards, unless they are kept.
    fn remove_unless_kept(&self) -> std::io::Result<()> {
        if self.is_kept() {
            return Ok(());
        }
        slot_files(&self.options.folder)?.iter().try_for_each(std::fs::remove_file)
    }
}

impl Drop for DiskFolder {
    fn drop(&mut self) {
        if let Err(error) = self.remove_unless_kept() {
            tracing::warn!("the files in {} could not be removed: {error}", self.options.folder.display());
        }
    }
}

/// Creates the folder if it does not exist, for this user alone, and locks it.
fn lock(folder: &Path) -> Result<File> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    let name = folder.display();
    builder.create(folder).with_context(|| format!("--kv-disk: cannot create the folder {name}"))?;
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(folder.join(LOCK));
    let file = file.with_context(|| format!("--kv-disk: cannot write to the folder {name}"))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => bail!("--kv-disk: another server uses the folder {name}"),
        Err(TryLockError::Error(error)) => {
            Err(error).with_context(|| format!("--kv-disk: cannot lock the folder {name}"))
        }
    }
}

/// Returns the paths of the files of the shards.
fn slot_files(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        if name.starts_with("rank-") && name.ends_with(ENDING) {
            files.push(path);
        }
    }
    Ok(files)
}

/// Returns a name that no other run of a server has.
fn run_name() -> String {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    format!("{}-{}", std::process::id(), since.as_nanos())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn open(flags: &[&str]) -> Result<Option<DiskFolder>> {
        let cli = Cli::parse_from([&["millrace", "serve"][..], flags].concat());
        let Command::Serve(args) = cli.command else { panic!("not serve") };
        let has_adapters = flags.contains(&"--enable-lora");
        DiskFolder::open(&args.disk_cache, &args.engine, args.nodes.count(), has_adapters)
    }

    #[test]
    fn files_stay_only_if_they_are_kept_and_nothing_else_is_removed() {
        let folder = tempfile::tempdir().unwrap();
        let (slots, other) = (folder.path().join("rank-0-of-1.kv"), folder.path().join("notes.kv"));
        let flag = format!("--kv-disk={},5M", folder.path().display());
        let write = || [&slots, &other].map(|path| std::fs::write(path, "x").unwrap());
        write();
        let kept = open(&["--device=cpu", &flag, "--kv-persist"]).unwrap().unwrap();
        assert!(kept.is_kept() && kept.options().run.is_none() && kept.options().bytes == 5_000_000);
        let error = open(&["--device=cpu", &flag]).unwrap_err().to_string();
        assert!(error.contains("another server uses the folder"), "{error}");
        drop(kept);
        assert!(slots.exists());
        let cleared = open(&["--device=cpu", &flag]).unwrap().unwrap();
        assert!(!slots.exists() && other.exists());
        write();
        drop(cleared);
        assert!(!slots.exists() && other.exists());
    }

    #[test]
    fn flags_that_exclude_a_disk_cache_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let flag = format!("--kv-disk={},5M", folder.path().display());
        assert!(open(&["--device=cpu"]).unwrap().is_none());
        for (flags, text) in [
            (&["--device=null"][..], "--kv-disk needs the CPU"),
            (&["--device=cuda"], "--kv-disk needs the CPU"),
            (&["--device=cpu", "--kv-persist", "--enable-lora"], "--kv-persist cannot be combined with LoRA"),
            (&["--device=cpu", "--prefix-caching=false"], "--prefix-caching=false turns off"),
        ] {
            let error = open(&[flags, &[&flag]].concat()).unwrap_err().to_string();
            assert!(error.contains(text), "{error}");
        }
        let file = folder.path().join("file");
        std::fs::write(&file, "x").unwrap();
        let error = open(&["--device=cpu", &format!("--kv-disk={},5M", file.display())]).unwrap_err();
        assert!(error.to_string().contains("cannot create the folder"), "{error:#}");
    }
}
