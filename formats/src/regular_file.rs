//! Opens regular files, and nothing else.
//!
//! A path of the operator, of a cache or of a model may lead to anything. Opening a FIFO waits for
//! a writer, reading a device may never end, and a link at the place of a new file leads its bytes
//! to another file. These functions refuse all three at once.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Opens a regular file for reading.
///
/// # Errors
/// Those of the system, and [`ErrorKind::InvalidInput`] if it is not a regular file.
pub fn open(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true);
    open_with(options, path, 0)
}

/// Reads a regular file of at most `limit` bytes.
///
/// # Errors
/// As for [`open`], and [`ErrorKind::FileTooLarge`] if it is larger.
pub fn read(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    let file = open(path)?;
    let length = file.metadata()?.len();
    if length > limit {
        let reason = format!("it has {length} bytes, and may have at most {limit}");
        return Err(io::Error::new(ErrorKind::FileTooLarge, reason));
    }
    let mut bytes = Vec::with_capacity(usize::try_from(length).unwrap_or(0));
    file.take(limit).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Reads a regular file of at most `limit` bytes as UTF-8.
///
/// # Errors
/// As for [`read`], and [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, limit: u64) -> io::Result<String> {
    let text = String::from_utf8(read(path, limit)?);
    text.map_err(|_| io::Error::new(ErrorKind::InvalidData, "it is not text (UTF-8)"))
}

/// Opens a regular file for reading and writing, and creates it if there is none. It keeps its
/// bytes. A link is not followed.
///
/// # Errors
/// Those of the system, and [`ErrorKind::InvalidInput`] if it is not a regular file.
pub fn open_or_create(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.read(true).write(true).create(true).truncate(false);
    #[cfg(target_os = "linux")]
    let result = open_with(options, path, libc::O_NOFOLLOW);
    #[cfg(not(target_os = "linux"))]
    let result = open_with(options, path, 0);
    #[cfg(target_os = "linux")]
    if result.as_ref().is_err_and(|error| error.raw_os_error() == Some(libc::ELOOP)) {
        return Err(io::Error::new(ErrorKind::InvalidInput, "it is a symbolic link"));
    }
    result
}

fn open_with(mut options: OpenOptions, path: &Path, flags: i32) -> io::Result<File> {
    // With O_NONBLOCK, a FIFO opens without a writer. Regular files ignore the flag.
    #[cfg(target_os = "linux")]
    std::os::unix::fs::OpenOptionsExt::custom_flags(&mut options, flags | libc::O_NONBLOCK);
    #[cfg(not(target_os = "linux"))]
    let _ = (&mut options, flags);
    let file = options.open(path)?;
    match file.metadata()?.is_file() {
        true => Ok(file),
        false => Err(io::Error::new(ErrorKind::InvalidInput, "it is not a regular file")),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::process::Command;

    use super::*;

    #[test]
    fn only_regular_files_are_opened() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        assert!(Command::new("mkfifo").arg(path("fifo")).status().unwrap().success());
        fs::write(path("file"), "text").unwrap();
        symlink(path("file"), path("link")).unwrap();
        symlink(path("fifo"), path("link-to-fifo")).unwrap();
        for name in ["fifo", "link-to-fifo", "/dev/zero", "."] {
            let error = read(&path(name), 10).unwrap_err();
            assert!(error.to_string().contains("not a regular file"), "{name}: {error}");
        }
        // Nobody reads the FIFO.
        assert!(open_or_create(&path("fifo")).is_err());
        assert_eq!(read_text(&path("link"), 4).unwrap(), "text");
        let error = read(&path("file"), 3).unwrap_err();
        assert_eq!(error.to_string(), "it has 4 bytes, and may have at most 3");
        fs::write(path("bytes"), [0xff]).unwrap();
        assert_eq!(read_text(&path("bytes"), 4).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(open(&path("none")).unwrap_err().kind(), ErrorKind::NotFound);
    }

    #[test]
    fn a_file_is_not_written_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (target, link) = (folder.path().join("target"), folder.path().join("link"));
        symlink(&target, &link).unwrap();
        assert_eq!(open_or_create(&link).unwrap_err().to_string(), "it is a symbolic link");
        assert!(!target.exists(), "a dangling link creates nothing");
        drop(open_or_create(&target).unwrap());
        assert!(target.exists());
    }
}
