//! The file of one rank: a header, a table of slot headers, and the slots.
//!
//! The file can be lost, cut, damaged, or left in the middle of a write at any time, and no block
//! is ever read wrong: a slot is read only if its header is intact, names the block that is asked
//! for, and has the checksum of the slot's bytes. A write stores the bytes first and the header
//! after them, so an interrupted write leaves a header whose checksum does not fit.
//!
//! The table stands before the slots, so that a start reads it in one piece. The file is as long as
//! it will ever be from the start, and takes room on the disk only for slots that were written, if
//! the file system has sparse files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use millrace_proto::DiskEntry;

use super::slot_header::{FILE_HEADER, Hash, SLOT_HEADER, SlotHeader, checksum, file_header};

/// The shape of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct FileShape {
    /// The digest of everything on which the blocks depend, apart from their tokens.
    pub(super) identity: [u8; 32],
    /// Number of slots.
    pub(super) slots: usize,
    /// Bytes of a block.
    pub(super) block_bytes: usize,
}

impl FileShape {
    /// Returns how many slots for blocks of `block_bytes` fit a file of `bytes`.
    pub(super) fn slots_within(bytes: u64, block_bytes: usize) -> usize {
        let slot = (SLOT_HEADER + block_bytes) as u64;
        // The table may be padded.
        usize::try_from(bytes.saturating_sub(2 * FILE_HEADER as u64) / slot).unwrap_or(usize::MAX)
    }

    fn header_at(&self, slot: usize) -> u64 {
        (FILE_HEADER + slot * SLOT_HEADER) as u64
    }

    fn slot_at(&self, slot: usize) -> u64 {
        let table = (self.slots * SLOT_HEADER).next_multiple_of(FILE_HEADER);
        (FILE_HEADER + table) as u64 + slot as u64 * self.block_bytes as u64
    }

    fn len(&self) -> u64 {
        self.slot_at(self.slots)
    }
}

/// An open file of slots.
#[derive(Debug)]
pub(super) struct SlotFile {
    file: File,
    shape: FileShape,
    /// The number of the next write.
    next: u64,
}

/// A file that was opened.
pub(super) struct OpenedFile {
    pub(super) file: SlotFile,
    /// The slots that hold a block, the oldest write first.
    pub(super) entries: Vec<DiskEntry>,
    /// Whether there was a file of another shape, which is gone.
    pub(super) replaced: bool,
}

impl SlotFile {
    /// Opens the file at `path`, which only this user may read. A file of another shape is
    /// replaced by an empty one.
    ///
    /// # Errors
    /// If the file cannot be created, read or enlarged.
    pub(super) fn open(path: &Path, shape: FileShape) -> io::Result<OpenedFile> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let file = options.open(path)?;
        let mut opened = SlotFile { file, shape, next: 0 };
        let before = opened.file.metadata()?.len();
        let header = file_header(&shape.identity, shape.slots as u64, shape.block_bytes as u64);
        let mut found = [0; FILE_HEADER];
        let is_same = before == shape.len() && opened.read_at(0, &mut found).is_ok() && found == header;
        if !is_same {
            opened.file.set_len(0)?;
            opened.file.set_len(shape.len())?;
            opened.write_at(0, &header)?;
        }
        let entries = if is_same { opened.scan()? } else { Vec::new() };
        Ok(OpenedFile { file: opened, entries, replaced: before > 0 && !is_same })
    }

    /// Reads the table, and returns the slots that hold a block.
    fn scan(&mut self) -> io::Result<Vec<DiskEntry>> {
        let mut found = Vec::new();
        (&self.file).seek(SeekFrom::Start(self.shape.header_at(0)))?;
        let mut table = io::BufReader::with_capacity(1 << 20, &self.file);
        let mut bytes = [0; SLOT_HEADER];
        for slot in 0..self.shape.slots {
            table.read_exact(&mut bytes)?;
            found.extend(SlotHeader::decode(&bytes).map(|header| (header.number, slot as u32, header)));
        }
        found.sort_unstable_by_key(|&(number, slot, _)| (number, slot));
        self.next = found.last().map_or(0, |&(number, ..)| number.saturating_add(1));
        Ok(found.iter().map(|(_, slot, header)| header.entry(*slot)).collect())
    }

    /// Writes a block to a slot.
    ///
    /// # Errors
    /// If the disk is full or fails. The slot holds nothing then.
    pub(super) fn write(
        &mut self,
        slot: usize,
        hash: Hash,
        parent: Option<Hash>,
        block: &[u8],
    ) -> io::Result<()> {
        let header = SlotHeader { hash, parent, number: self.next, checksum: checksum(&hash, block) };
        self.next = self.next.saturating_add(1);
        self.write_at(self.shape.slot_at(slot), block)?;
        self.write_at(self.shape.header_at(slot), &header.encode())
    }

    /// Reads the block with this hash from a slot. Returns whether the slot holds it; `block` has
    /// other contents if it does not.
    pub(super) fn read(&self, slot: usize, hash: &Hash, block: &mut [u8]) -> bool {
        let mut header = [0; SLOT_HEADER];
        let is_read = self.read_at(self.shape.header_at(slot), &mut header).is_ok();
        let header = SlotHeader::decode(&header).filter(|header| is_read && header.hash == *hash);
        header.is_some_and(|header| {
            self.read_at(self.shape.slot_at(slot), block).is_ok() && header.checksum == checksum(hash, block)
        })
    }

    /// Makes a slot empty.
    ///
    /// # Errors
    /// If the disk fails.
    pub(super) fn erase(&self, slot: usize) -> io::Result<()> {
        self.write_at(self.shape.header_at(slot), &[0; SLOT_HEADER])
    }

    fn read_at(&self, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at))?;
        file.read_exact(bytes)
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        let mut file = &self.file;
        file.seek(SeekFrom::Start(at))?;
        file.write_all(bytes)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    const SHAPE: FileShape = FileShape { identity: [5; 32], slots: 70, block_bytes: 100 };

    fn hash(n: u8) -> Hash {
        [n; 16]
    }

    fn block(n: u8) -> Vec<u8> {
        (0..100).map(|index| index ^ n).collect()
    }

    fn open(path: &Path) -> OpenedFile {
        SlotFile::open(path, SHAPE).unwrap()
    }

    fn holds(file: &SlotFile, slot: usize, n: u8) -> bool {
        let mut bytes = vec![0; 100];
        let is_held = file.read(slot, &hash(n), &mut bytes);
        assert!(!is_held || bytes == block(n), "wrong bytes in slot {slot}");
        is_held
    }

    /// A file whose slots 3 and 0 hold blocks 1 and 2, one after the other.
    fn written() -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("rank.kv");
        let mut file = open(&path).file;
        file.write(3, hash(1), None, &block(1)).unwrap();
        file.write(0, hash(2), Some(hash(1)), &block(2)).unwrap();
        (folder, path)
    }

    #[test]
    fn another_process_finds_the_blocks_in_the_order_of_their_writes() {
        let (_folder, path) = written();
        let mut opened = open(&path);
        assert!(!opened.replaced);
        let entry =
            |slot, n, parent: &[u8]| DiskEntry { slot, hash: hash(n).to_vec(), parent: parent.to_vec() };
        assert_eq!(opened.entries, [entry(3, 1, &[]), entry(0, 2, &hash(1))]);
        assert!(holds(&opened.file, 3, 1) && holds(&opened.file, 0, 2));
        assert!(!holds(&opened.file, 3, 2) && !holds(&opened.file, 1, 1));
        opened.file.write(69, hash(4), None, &block(4)).unwrap();
        opened.file.write(3, hash(3), None, &block(3)).unwrap();
        opened.file.erase(0).unwrap();
        let opened = open(&path);
        assert_eq!(opened.entries, [entry(69, 4, &[]), entry(3, 3, &[])]);
        assert!(!holds(&opened.file, 0, 2) && !holds(&opened.file, 3, 1) && holds(&opened.file, 3, 3));
    }

    #[test]
    fn a_damaged_byte_is_a_miss_or_harmless_wherever_it_is() {
        let (_folder, path) = written();
        let intact = std::fs::read(&path).unwrap();
        assert_eq!(intact.len() as u64, SHAPE.len());
        let places = [SHAPE.header_at(3), SHAPE.slot_at(3), SHAPE.header_at(0), SHAPE.slot_at(0)];
        let (mut missed, mut emptied) = (0, 0);
        for at in (0..68).chain(places.iter().flat_map(|&at| at..at + 100)) {
            let mut damaged = intact.clone();
            damaged[at as usize] ^= 0x40;
            std::fs::write(&path, &damaged).unwrap();
            let opened = open(&path);
            emptied += usize::from(opened.replaced);
            missed += usize::from(!holds(&opened.file, 3, 1)) + usize::from(!holds(&opened.file, 0, 2));
        }
        assert_eq!(emptied, 68, "every byte of the file's header counts");
        // The bytes of both headers and both blocks. The range of a header reaches into its
        // neighbour, where nothing of the other slot is.
        assert_eq!(missed, 2 * 68 + 2 * (SLOT_HEADER + 100));
    }

    #[test]
    fn an_interrupted_write_leaves_no_block() {
        let (_folder, path) = written();
        let file = open(&path).file;
        file.write_at(SHAPE.slot_at(3), &block(9)[..50]).unwrap();
        assert!(!holds(&file, 3, 1) && !holds(&file, 3, 9));
        assert!(holds(&file, 0, 2));
    }

    #[test]
    fn a_file_that_is_cut_or_of_another_shape_begins_empty() {
        let (_folder, path) = written();
        let intact = std::fs::read(&path).unwrap();
        for len in [0, 10, FILE_HEADER, FILE_HEADER + 100, intact.len() - 1] {
            std::fs::write(&path, &intact[..len]).unwrap();
            let opened = open(&path);
            assert_eq!((opened.entries.len(), opened.replaced), (0, len > 0), "{len} bytes");
            assert!(!holds(&opened.file, 3, 1), "{len} bytes");
        }
        for shape in [
            FileShape { identity: [6; 32], ..SHAPE },
            FileShape { slots: 71, ..SHAPE },
            FileShape { block_bytes: 99, ..SHAPE },
        ] {
            std::fs::write(&path, &intact).unwrap();
            let opened = SlotFile::open(&path, shape).unwrap();
            assert!(opened.replaced && opened.entries.is_empty(), "{shape:?}");
            assert_eq!(std::fs::metadata(&path).unwrap().len(), shape.len());
        }
    }

    #[test]
    fn a_file_that_is_cut_while_it_is_open_is_a_miss() {
        let (_folder, path) = written();
        let file = open(&path).file;
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(SHAPE.slot_at(1)).unwrap();
        assert!(holds(&file, 0, 2) && !holds(&file, 3, 1));
    }

    #[test]
    fn a_write_that_fails_is_an_error_and_changes_nothing() {
        let (_folder, path) = written();
        let mut file = SlotFile { file: File::open(&path).unwrap(), shape: SHAPE, next: 2 };
        assert!(file.write(3, hash(9), None, &block(9)).is_err() && file.erase(3).is_err());
        assert!(holds(&file, 3, 1) && holds(&file, 0, 2));
    }

    #[test]
    fn the_size_of_the_file_is_a_hard_limit() {
        for bytes in [0, 9000, 100_000, 1 << 20] {
            let slots = FileShape::slots_within(bytes, 100);
            assert!(slots == 0 || FileShape { slots, ..SHAPE }.len() <= bytes, "{bytes} bytes");
        }
        assert!(FileShape::slots_within(1 << 20, 100) > 6000);
    }

    #[cfg(unix)]
    #[test]
    fn only_the_user_can_read_the_file() {
        let (_folder, path) = written();
        let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&path).unwrap().permissions());
        assert_eq!(mode & 0o777, 0o600);
    }
}
