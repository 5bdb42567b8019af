//! Detects that a file has been changed, by its size and the time of its last change.
//!
//! The number of a file (inode) is not compared: network file systems give a file another number
//! when they are mounted again, and a server should survive that. A file that is replaced by
//! another one of the same size and time counts as a copy.

use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The longest text that is passed on. Linux limits an argument of a process to 128 KiB.
pub(crate) const MAX_IDENTITY: usize = 100_000;

/// Returns the sizes and times of the files that exist among these, as text, for
/// [`Source::check_unchanged`](crate::Source::check_unchanged). The files may be anywhere.
pub fn identity_of<'a>(files: impl IntoIterator<Item = &'a PathBuf>) -> String {
    let line = |path: &PathBuf| {
        let path = std::path::absolute(path).ok()?;
        let name = path.to_str().filter(|name| !name.contains('\n'))?;
        Some(Stamp::of(&path).ok()?.line(name))
    };
    files.into_iter().filter_map(line).collect()
}

/// The size of a file, and the time of its last change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Stamp {
    bytes: u64,
    /// Time since 1970. It is 0 if the time is unknown or before 1970.
    modified: Duration,
}

impl Stamp {
    /// Reads the stamp of the file at `path`.
    pub(crate) fn of(path: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(path)?;
        let modified = file.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        Ok(Stamp { bytes: file.len(), modified: modified.unwrap_or_default() })
    }

    /// Formats the stamp and the name of its file as one line.
    pub(crate) fn line(self, name: &str) -> String {
        format!("{} {} {name}\n", self.bytes, self.modified.as_nanos())
    }

    /// Parses a line that [`line`](Self::line) has written.
    pub(crate) fn parse(line: &str) -> Option<(Self, &str)> {
        let mut fields = line.splitn(3, ' ');
        let (bytes, nanos) = (fields.next()?.parse().ok()?, fields.next()?.parse::<u64>().ok()?);
        Some((Stamp { bytes, modified: Duration::from_nanos(nanos) }, fields.next()?))
    }

    /// Describes the difference between this stamp and a later one of the same file. Returns `None`
    /// if they are equal.
    pub(crate) fn change(self, now: Stamp) -> Option<String> {
        if self.bytes != now.bytes {
            return Some(format!("it had {} bytes, and has {} now", self.bytes, now.bytes));
        }
        (self != now).then(|| "it has the same size, but was written again".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_parsed_as_it_was_written() {
        let stamp = Stamp { bytes: 7, modified: Duration::new(1_700_000_000, 123_456_789) };
        let line = stamp.line("a name with spaces.safetensors");
        assert_eq!(Stamp::parse(line.trim_end()), Some((stamp, "a name with spaces.safetensors")));
        for nonsense in ["", "7", "7 8", "x 8 name", "7 x name"] {
            assert_eq!(Stamp::parse(nonsense), None, "{nonsense}");
        }
    }
}
