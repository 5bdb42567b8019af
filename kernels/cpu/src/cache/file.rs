//! The file of a cache: how it is written and read.
//!
//! A file begins with [`MAGIC`] and a text that says what it holds, its label. Then come arrays of
//! bytes, each at a multiple of [`ALIGNMENT`], and a table of them: for each array its start, its
//! length, and a CRC-32 of each chunk of [`CHUNK`] bytes. The last [`TRAILER`] bytes are the start
//! of the table, its length, its CRC-32 and [`MAGIC`] again. All numbers are little-endian.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

use millrace_backend::ThreadPool;

use super::super::memory::Shared;

const MAGIC: &[u8; 8] = b"MILLPAK1";
/// Bytes of the largest page of any system, so that an array can be mapped.
const ALIGNMENT: u64 = 64 << 10;
/// Bytes that are read or written, and checked, at once.
const CHUNK: usize = 4 << 20;
const TRAILER: u64 = 8 + 8 + 4 + 8;
/// Bound on the bytes of a label.
const LONGEST_LABEL: u32 = 16 << 20;

/// The place and the checksums of an array.
#[derive(Debug)]
struct Entry {
    start: u64,
    len: u64,
    chunks: Vec<u32>,
}

/// A file that is being written. It gets its name when it is complete, and is removed if it is
/// dropped before.
#[derive(Debug)]
pub(super) struct CacheWriter {
    file: File,
    /// The name until the file is complete.
    part: PathBuf,
    path: PathBuf,
    end: u64,
    table: Vec<Entry>,
}

impl CacheWriter {
    /// Begins a file that will be `path`.
    pub(super) fn create(path: &Path, label: &str) -> io::Result<Self> {
        if let Some(folder) = path.parent() {
            fs::create_dir_all(folder)?;
        }
        let part = path.with_extension(format!("{}.part", std::process::id()));
        // Nobody else may change the weights that a server will use.
        // What a process with the same id has left there is replaced, and a link is not followed.
        if let Err(error) = fs::remove_file(&part)
            && error.kind() != io::ErrorKind::NotFound
        {
            return Err(error);
        }
        let file = File::options().read(true).write(true).create_new(true).mode(0o600).open(&part)?;
        let mut writer = CacheWriter { file, part, path: path.to_owned(), end: 0, table: Vec::new() };
        let head = [MAGIC, &(label.len() as u32).to_le_bytes()[..], label.as_bytes()].concat();
        writer.file.write_all_at(&head, 0)?;
        writer.end = (head.len() as u64).next_multiple_of(ALIGNMENT);
        Ok(writer)
    }

    /// Appends an array. Returns where it starts.
    pub(super) fn append(&mut self, bytes: &[u8], pool: &ThreadPool) -> io::Result<u64> {
        let start = self.end;
        let mut chunks = vec![0; bytes.len().div_ceil(CHUNK)];
        let sums = Shared::new(&mut chunks);
        in_parallel(pool, bytes.len(), |index, at, len| {
            let bytes = &bytes[at..at + len];
            // SAFETY: each chunk has an element of its own.
            unsafe { sums.slice(index, 1)[0] = crc32fast::hash(bytes) };
            self.file.write_all_at(bytes, start + at as u64)
        })?;
        self.table.push(Entry { start, len: bytes.len() as u64, chunks });
        self.end = (start + bytes.len() as u64).next_multiple_of(ALIGNMENT);
        Ok(start)
    }

    /// Writes the table and gives the file its name.
    pub(super) fn finish(self) -> io::Result<()> {
        let mut table = Vec::new();
        for entry in &self.table {
            table.extend(entry.start.to_le_bytes());
            table.extend(entry.len.to_le_bytes());
            entry.chunks.iter().for_each(|chunk| table.extend(chunk.to_le_bytes()));
        }
        let (len, sum) = (table.len() as u64, crc32fast::hash(&table));
        table.extend(self.end.to_le_bytes());
        table.extend(len.to_le_bytes());
        table.extend(sum.to_le_bytes());
        table.extend(MAGIC);
        self.file.write_all_at(&table, self.end)?;
        // There is no `sync`: a file that a power failure has cut has no valid table, or chunks
        // whose sums are wrong.
        fs::rename(&self.part, &self.path)
    }

    /// Returns the file, for mapping arrays that have been written.
    pub(super) fn file(&self) -> &File {
        &self.file
    }
}

impl Drop for CacheWriter {
    fn drop(&mut self) {
        // After `finish` there is no such file.
        let _ = fs::remove_file(&self.part);
    }
}

/// A complete file.
#[derive(Debug)]
pub(super) struct CacheReader {
    file: File,
    path: PathBuf,
    table: Vec<Entry>,
}

impl CacheReader {
    /// Opens a file. Returns `None` if there is none, or if its label is another one.
    ///
    /// # Errors
    /// If the file is damaged or cannot be read.
    pub(super) fn open(path: &Path, label: &str) -> io::Result<Option<Self>> {
        // Opening a FIFO would wait for a writer.
        let file = match File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        let metadata = file.metadata()?;
        if !metadata.is_file() {
            return Err(damaged("it is not a regular file"));
        }
        let length = metadata.len();
        let mut head = [0; 12];
        file.read_exact_at(&mut head, 0)?;
        let label_len = u32::from_le_bytes([head[8], head[9], head[10], head[11]]);
        if &head[..8] != MAGIC || label_len > LONGEST_LABEL {
            return Err(damaged("it does not begin as a cache does"));
        }
        let mut found = vec![0; label_len as usize];
        file.read_exact_at(&mut found, 12)?;
        if found != label.as_bytes() {
            return Ok(None);
        }
        let table = read_table(&file, length)?;
        Ok(Some(CacheReader { file, path: path.to_owned(), table }))
    }

    /// Returns the place of an array of `len` bytes.
    pub(super) fn start(&self, index: usize, len: usize) -> io::Result<u64> {
        self.entry(index, len).map(|entry| entry.start)
    }

    fn entry(&self, index: usize, len: usize) -> io::Result<&Entry> {
        let entry = self.table.get(index).filter(|entry| entry.len == len as u64);
        entry.ok_or_else(|| damaged("it has other arrays than expected"))
    }

    /// Reads an array and checks it. `to` has the array's length.
    pub(super) fn read(&self, index: usize, to: &mut [u8], pool: &ThreadPool) -> io::Result<()> {
        let entry = self.entry(index, to.len())?;
        let (len, bytes) = (to.len(), Shared::new(to));
        in_parallel(pool, len, |index, at, len| {
            // SAFETY: chunks do not overlap.
            let bytes = unsafe { bytes.slice(at, len) };
            self.file.read_exact_at(bytes, entry.start + at as u64)?;
            match crc32fast::hash(bytes) == entry.chunks[index] {
                true => Ok(()),
                false => Err(damaged("the checksum of its contents is wrong")),
            }
        })
    }

    /// Returns the file, for mapping its arrays.
    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Removes the file, so that the next start writes it anew.
    pub(super) fn remove(&self) -> io::Result<()> {
        fs::remove_file(&self.path)
    }
}

fn read_table(file: &File, length: u64) -> io::Result<Vec<Entry>> {
    let cut = || damaged("it has no table of contents");
    let trailer_at = length.checked_sub(TRAILER).ok_or_else(cut)?;
    let mut trailer = [0; TRAILER as usize];
    file.read_exact_at(&mut trailer, trailer_at)?;
    let (mut fields, magic) = trailer.split_at(TRAILER as usize - MAGIC.len());
    let start = take_u64(&mut fields).ok_or_else(cut)?;
    let len = take_u64(&mut fields).ok_or_else(cut)?;
    let sum = take_u32(&mut fields).ok_or_else(cut)?;
    if magic != MAGIC || start.checked_add(len) != Some(trailer_at) {
        return Err(cut());
    }
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| cut())?];
    file.read_exact_at(&mut bytes, start)?;
    if crc32fast::hash(&bytes) != sum {
        return Err(damaged("the checksum of its table of contents is wrong"));
    }
    let (mut table, mut rest) = (Vec::new(), &bytes[..]);
    while !rest.is_empty() {
        let (at, len) = (take_u64(&mut rest).ok_or_else(cut)?, take_u64(&mut rest).ok_or_else(cut)?);
        if at.checked_add(len).is_none_or(|end| end > start) || !at.is_multiple_of(ALIGNMENT) {
            return Err(cut());
        }
        let chunks = (0..len.div_ceil(CHUNK as u64)).map(|_| take_u32(&mut rest)).collect::<Option<_>>();
        table.push(Entry { start: at, len, chunks: chunks.ok_or_else(cut)? });
    }
    Ok(table)
}

fn take_u64(bytes: &mut &[u8]) -> Option<u64> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*first))
}

fn take_u32(bytes: &mut &[u8]) -> Option<u32> {
    let (first, rest) = bytes.split_first_chunk()?;
    *bytes = rest;
    Some(u32::from_le_bytes(*first))
}

fn damaged(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// Calls `body(index, start, length)` for each chunk of `len` bytes, and returns the first error.
fn in_parallel(
    pool: &ThreadPool,
    len: usize,
    body: impl Fn(usize, usize, usize) -> io::Result<()> + Sync,
) -> io::Result<()> {
    let failed = Mutex::new(Ok(()));
    pool.run(len.div_ceil(CHUNK), |index, _| {
        let at = index * CHUNK;
        if let Err(error) = body(index, at, CHUNK.min(len - at)) {
            let mut failed = failed.lock().unwrap_or_else(PoisonError::into_inner);
            if failed.is_ok() {
                *failed = Err(error);
            }
        }
    });
    failed.into_inner().unwrap_or_else(PoisonError::into_inner)
}
