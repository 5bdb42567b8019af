//! A new file: a header, and then parts of known lengths, one after the other.

use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;

use millrace_formats::WriteError;

use super::error::ConvertError;
use crate::partial::Partial;

/// Bytes after which what has been written is waited for and recorded. A run that is killed loses
/// no more than these.
pub(super) const RECORDED: usize = 16 << 20;

/// A part of a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct FilePart {
    /// Name of the tensor, for errors.
    pub(super) name: String,
    pub(super) bytes: usize,
}

/// A file that is being written.
pub(super) struct NewFile<'a> {
    partial: Partial,
    file: File,
    path: PathBuf,
    parts: Vec<FilePart>,
    /// The part that is being written, and its bytes so far.
    part: usize,
    written: usize,
    /// Bytes of all parts so far.
    done: usize,
    /// Bytes that are not recorded.
    pending: usize,
    progress: &'a mut dyn FnMut(usize, usize),
}

impl<'a> NewFile<'a> {
    /// Begins a file, or continues it behind the parts that an earlier run has written.
    ///
    /// # Errors
    /// If the disk has no room for it, or the file cannot be written.
    pub(super) fn create(
        mut partial: Partial,
        header: &[u8],
        parts: Vec<FilePart>,
        progress: &'a mut dyn FnMut(usize, usize),
    ) -> Result<Self, ConvertError> {
        let path = partial.result();
        let error = |source| ConvertError::File { path: path.display().to_string(), source };
        let behind = |parts: &[FilePart]| parts.iter().map(|part| part.bytes).sum::<usize>();
        let first = partial.done().min(parts.len());
        let mut done = behind(&parts[..first]);
        let mut file = File::options().read(true).write(true).create(true).truncate(false).open(&path);
        if partial.done() > 0 && !file.as_mut().is_ok_and(|file| begins_with(file, header, done)) {
            partial.start_again()?;
            done = 0;
            file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        }
        let part = partial.done().min(parts.len());
        let mut file = file.map_err(error)?;
        partial.check_space(behind(&parts[part..]) + if part == 0 { header.len() } else { 0 })?;
        if part == 0 {
            file.set_len(0).map_err(error)?;
            file.seek(SeekFrom::Start(0)).and_then(|_| file.write_all(header)).map_err(error)?;
        } else {
            let end = (header.len() + done) as u64;
            file.set_len(end).and_then(|()| file.seek(SeekFrom::Start(end))).map_err(error)?;
        }
        Ok(NewFile { partial, file, path, parts, part, written: 0, done, pending: 0, progress })
    }

    /// Returns the number of the part that is written next.
    pub(super) fn part(&self) -> usize {
        self.part
    }

    /// Writes the next bytes of the current part.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), ConvertError> {
        let error = |source| ConvertError::File { path: self.path.display().to_string(), source };
        self.file.write_all(bytes).map_err(error)?;
        self.written += bytes.len();
        self.done += bytes.len();
        self.pending += bytes.len();
        (self.progress)(self.done, self.parts.iter().map(|part| part.bytes).sum());
        Ok(())
    }

    /// Ends the current part.
    ///
    /// # Errors
    /// If it has another length than was announced, or cannot be recorded.
    pub(super) fn end_part(&mut self) -> Result<(), ConvertError> {
        let FilePart { name, bytes } = &self.parts[self.part];
        if self.written != *bytes {
            let (tensor, given, bytes) = (name.clone(), self.written, *bytes);
            return Err(WriteError::Bytes { tensor, given, bytes }.into());
        }
        self.part += 1;
        self.written = 0;
        if self.pending >= RECORDED {
            self.sync()?;
            self.partial.record(self.part)?;
            self.pending = 0;
        }
        Ok(())
    }

    /// Gives the complete file its name.
    ///
    /// # Errors
    /// If it cannot be written, or something has appeared at its place.
    pub(super) fn complete(self) -> Result<(), ConvertError> {
        self.sync()?;
        self.partial.complete()?;
        Ok(())
    }

    fn sync(&self) -> Result<(), ConvertError> {
        let error = |source| ConvertError::File { path: self.path.display().to_string(), source };
        self.file.sync_all().map_err(error)
    }
}

/// Returns whether a file begins with this header, and has so many bytes behind it.
fn begins_with(file: &mut File, header: &[u8], behind: usize) -> bool {
    let mut found = vec![0; header.len()];
    let length = file.metadata().map_or(0, |metadata| metadata.len());
    length >= (header.len() + behind) as u64 && file.read_exact(&mut found).is_ok() && found == header
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::partial::{Job, ResultKind};

    fn parts() -> Vec<FilePart> {
        [3, 5, 2].iter().map(|&bytes| FilePart { name: format!("part of {bytes}"), bytes }).collect()
    }

    fn open(place: &Path) -> Partial {
        let job = Job { description: "a job".to_owned(), can_continue: true };
        Partial::open(place, ResultKind::File, &job).unwrap()
    }

    /// Leaves what a process leaves that is killed when it has written `behind` to the file, and
    /// has recorded `parts`.
    fn killed(folder: &Path, contents: &[u8], parts: usize) {
        let partial = folder.join(".new.partial");
        fs::create_dir_all(&partial).unwrap();
        fs::write(partial.join("job"), "a job").unwrap();
        fs::write(partial.join("journal"), format!("{parts}\n")).unwrap();
        fs::write(partial.join("result"), contents).unwrap();
    }

    #[test]
    fn a_file_is_continued_behind_its_recorded_parts() {
        for (contents, recorded, first) in [
            (&b"headaaabbbbbc"[..], 2, 2),
            (b"headaaabbbb", 1, 1),
            // The file is shorter than the journal says.
            (b"headaaabb", 2, 0),
            // It has another header.
            (b"hexdaaabbbbb", 2, 0),
            (b"headaaa", 9, 0),
        ] {
            let folder = tempfile::tempdir().unwrap();
            let place = folder.path().join("new");
            killed(folder.path(), contents, recorded);
            let mut seen = Vec::new();
            let mut progress = |done, all| seen.push((done, all));
            let mut file = NewFile::create(open(&place), b"head", parts(), &mut progress).unwrap();
            assert_eq!(file.part(), first, "{}", String::from_utf8_lossy(contents));
            for (index, bytes) in [&b"AAA"[..], b"BBBBB", b"CC"].into_iter().enumerate().skip(first) {
                assert_eq!(file.part(), index);
                file.write(bytes).unwrap();
                file.end_part().unwrap();
            }
            file.complete().unwrap();
            let want = [&b"headAAABBBBBCC"[..], b"headaaaBBBBBCC", b"headaaabbbbbCC"][first];
            assert_eq!(fs::read(&place).unwrap(), want);
            assert_eq!(seen.last(), Some(&(10, 10)));
            assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
        }
    }

    #[test]
    fn a_part_of_another_length_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let place = folder.path().join("new");
        let mut progress = |_, _| {};
        let mut file = NewFile::create(open(&place), b"head", parts(), &mut progress).unwrap();
        file.write(b"AA").unwrap();
        let error = file.end_part().unwrap_err().to_string();
        assert!(error.starts_with("tensor part of 3 of the new checkpoint has been given 2 of 3"), "{error}");
        drop(file);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
