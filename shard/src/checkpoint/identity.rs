//! How it is noticed that a file has been changed: by its size and the time of its last change.
//!
//! A file's number (inode) is left out: network file systems give another one when they are mounted again, and a server
//! should survive that. A file that is replaced by another one of the same size and time is taken for a copy.

use std::io;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// The size of a file, and when it was changed last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stamp {
    bytes: u64,
    /// Since 1970; 0 if it was before that or is not known.
    modified: Duration,
}

impl Stamp {
    /// The stamp of the file at `path`.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let file = std::fs::metadata(path)?;
        let modified = file.modified().ok().and_then(|time| time.duration_since(SystemTime::UNIX_EPOCH).ok());
        Ok(Stamp { bytes: file.len(), modified: modified.unwrap_or_default() })
    }

    /// The stamp and the name of its file as one line.
    pub(super) fn line(self, name: &str) -> String {
        format!("{} {} {name}\n", self.bytes, self.modified.as_nanos())
    }

    /// What [`line`](Self::line) has written.
    pub(super) fn parse(line: &str) -> Option<(Self, &str)> {
        let mut fields = line.splitn(3, ' ');
        let (bytes, nanos) = (fields.next()?.parse().ok()?, fields.next()?.parse::<u64>().ok()?);
        Some((Stamp { bytes, modified: Duration::from_nanos(nanos) }, fields.next()?))
    }

    /// What has changed from this stamp to a later one of the same file, in words; `None` if nothing has.
    pub(super) fn change(self, now: Stamp) -> Option<String> {
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
    fn a_line_is_read_as_it_was_written() {
        let stamp = Stamp { bytes: 7, modified: Duration::new(1_700_000_000, 123_456_789) };
        let line = stamp.line("a name with spaces.safetensors");
        assert_eq!(Stamp::parse(line.trim_end()), Some((stamp, "a name with spaces.safetensors")));
        for nonsense in ["", "7", "7 8", "x 8 name", "7 x name"] {
            assert_eq!(Stamp::parse(nonsense), None, "{nonsense}");
        }
    }
}
