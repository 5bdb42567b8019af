//! The flags of the disk cache.

use std::path::PathBuf;

use clap::Args;

use super::values::bytes;

/// Flags of the cache of evicted prefixes on disk.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Disk cache")]
pub(crate) struct DiskCacheArgs {
    /// Folder and size of a disk cache, such as /var/cache/kv,200G: prefixes that leave the KV
    /// cache are read from files there instead of being computed again. On the CPU only
    #[arg(long, env = "KV_DISK", value_name = "PATH,SIZE", value_parser = kv_disk)]
    pub(crate) kv_disk: Option<KvDisk>,
    /// Keep the files of --kv-disk when the server ends, and use them at the next start with the
    /// same model. Otherwise they are removed at the start and at the end
    #[arg(long, env = "KV_PERSIST", requires = "kv_disk",
          value_parser = clap::builder::BoolishValueParser::new())]
    pub(crate) kv_persist: bool,
}

/// The value of `--kv-disk`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct KvDisk {
    /// The folder of the files.
    pub(crate) folder: PathBuf,
    /// Maximum size of all files together, in bytes.
    pub(crate) bytes: u64,
}

/// Parses a folder and a size.
fn kv_disk(text: &str) -> Result<KvDisk, String> {
    // The folder may have commas in its name.
    let (folder, size) = text
        .rsplit_once(',')
        .filter(|(folder, _)| !folder.is_empty())
        .ok_or_else(|| "not a folder and a size such as /var/cache/kv,200G".to_owned())?;
    Ok(KvDisk { folder: folder.into(), bytes: bytes(size)? as u64 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_cache_is_a_folder_and_a_size() {
        let disk = |folder: &str, bytes| Ok(KvDisk { folder: folder.into(), bytes });
        assert_eq!(kv_disk("/var/cache/kv,200G"), disk("/var/cache/kv", 200_000_000_000));
        assert_eq!(kv_disk("a, b,4096"), disk("a, b", 4096));
        for text in ["/var/cache/kv", ",5G", "", "kv,", "kv,five", "kv,0"] {
            assert!(kv_disk(text).is_err(), "{text}");
        }
    }
}
