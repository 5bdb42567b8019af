//! The directory of a ZIP archive whose entries are stored without compression, as PyTorch writes
//! them. Entries are ranges of the mapped file, so that reading an archive allocates nothing but
//! the names.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::cursor::Cursor;
use crate::fault::FileFault;

/// The first bytes of an archive: those of its first entry.
pub(super) const MAGIC: &[u8; 4] = b"PK\x03\x04";

const ENTRY: &[u8; 4] = b"PK\x01\x02";
const END: &[u8; 4] = b"PK\x05\x06";
const END_64: &[u8; 4] = b"PK\x06\x06";
const LOCATOR_64: &[u8; 4] = b"PK\x06\x07";

/// The length of the record at the end, without its comment.
const END_LENGTH: usize = 22;
const LOCATOR_LENGTH: usize = 20;

/// The longest comment of an archive.
const MAX_COMMENT: usize = u16::MAX as usize;

/// The largest number of entries. Each storage of a tensor is one.
const MAX_ENTRIES: u64 = 1 << 20;

/// The number that says that the value is in a field of 64 bits.
const IN_64_BITS: u64 = u32::MAX as u64;

/// The identifier of the field with values of 64 bits.
const FIELD_64: u16 = 1;

/// The entries of an archive by name, each with the place of its bytes in the file.
pub(super) type Entries = BTreeMap<String, Range<usize>>;

/// Reads the directory at the end of `file`.
pub(super) fn entries(file: &[u8]) -> Result<Entries, FileFault> {
    let (mut cursor, count) = directory(file)?;
    let mut entries = Entries::new();
    for _ in 0..count {
        let (name, range) = entry(file, &mut cursor)?;
        if entries.contains_key(&name) {
            return Err(FileFault::Duplicate { what: format!("the entry {name}") });
        }
        entries.insert(name, range);
    }
    Ok(entries)
}

/// Returns the directory and the number of its entries.
fn directory(file: &[u8]) -> Result<(Cursor<'_>, u64), FileFault> {
    let earliest = file.len().saturating_sub(END_LENGTH + MAX_COMMENT);
    let last = file.len().checked_sub(END_LENGTH);
    let end = last.and_then(|last| (earliest..=last).rev().find(|&at| file[at..].starts_with(END)));
    let Some(end) = end else {
        return Err(damaged("it has no directory at its end; it is incomplete, download it again"));
    };
    let mut cursor = Cursor::new(&file[end..]);
    cursor.take(10, "the end of the archive")?;
    let mut count = u64::from(cursor.u16("the number of entries")?);
    let mut bytes = u64::from(cursor.u32("the size of the directory")?);
    let mut start = u64::from(cursor.u32("the place of the directory")?);
    let locator = end.checked_sub(LOCATOR_LENGTH).map(|at| &file[at..end]);
    if let Some(locator) = locator.filter(|locator| locator.starts_with(LOCATOR_64)) {
        let mut cursor = Cursor::new(locator);
        cursor.take(8, "the place of the end record")?;
        let place = cursor.u64("the place of the end record")?;
        let mut cursor = Cursor::new(file);
        cursor.take(place, "the end record")?;
        if cursor.take(4, "the end record")? != END_64 {
            return Err(damaged("its end record is not where it should be"));
        }
        cursor.take(28, "the end record")?;
        count = cursor.u64("the number of entries")?;
        bytes = cursor.u64("the size of the directory")?;
        start = cursor.u64("the place of the directory")?;
    }
    let mut cursor = Cursor::new(&file[..end]);
    cursor.take(start, "the place of the directory")?;
    let directory = cursor.take(bytes, "the directory")?;
    // The shortest entry has 46 bytes and no name.
    let limit = MAX_ENTRIES.min(directory.len() as u64 / 46);
    if count > limit {
        return Err(FileFault::TooMany { what: "entries", count, limit });
    }
    Ok((Cursor::new(directory), count))
}

/// Reads an entry of the directory, and the header before its bytes.
fn entry(file: &[u8], cursor: &mut Cursor<'_>) -> Result<(String, Range<usize>), FileFault> {
    const WHAT: &str = "an entry of the directory";
    if cursor.take(4, WHAT)? != ENTRY {
        return Err(damaged("its directory has fewer entries than it announces"));
    }
    cursor.take(4, WHAT)?;
    let flags = cursor.u16(WHAT)?;
    let method = cursor.u16(WHAT)?;
    cursor.take(8, WHAT)?;
    let mut stored = u64::from(cursor.u32(WHAT)?);
    let mut bytes = u64::from(cursor.u32(WHAT)?);
    let [name, extra, comment] = [cursor.u16(WHAT)?, cursor.u16(WHAT)?, cursor.u16(WHAT)?];
    cursor.take(8, WHAT)?;
    let mut start = u64::from(cursor.u32(WHAT)?);
    let name = std::str::from_utf8(cursor.take(name.into(), WHAT)?)
        .map_err(|_| FileFault::NotText { what: "the name of an entry".to_owned() })?;
    let extra = cursor.take(extra.into(), WHAT)?;
    cursor.take(comment.into(), WHAT)?;
    wide(extra, [&mut bytes, &mut stored, &mut start])?;
    let shown: String = name.chars().filter(|c| !c.is_control()).take(100).collect();
    if flags & 1 != 0 || method != 0 || stored != bytes {
        let reason = format!("its entry {shown} is compressed or encrypted, which torch.save never does");
        return Err(FileFault::Kind(reason));
    }
    let mut local = Cursor::new(file);
    local.take(start, "the place of an entry")?;
    if local.take(4, "the header of an entry")? != MAGIC {
        return Err(damaged(&format!("its entry {shown} is not where its directory says")));
    }
    local.take(22, "the header of an entry")?;
    let lengths = [local.u16("the header of an entry")?, local.u16("the header of an entry")?];
    local.take(lengths.iter().map(|&length| u64::from(length)).sum(), "the header of an entry")?;
    let start = local.at();
    local.take(bytes, "the data of an entry")?;
    Ok((name.to_owned(), start..local.at()))
}

/// Replaces the values that do not fit 32 bits by those of the field with 64 bits. They are in this
/// order, and only those that do not fit are there.
fn wide(extra: &[u8], values: [&mut u64; 3]) -> Result<(), FileFault> {
    const WHAT: &str = "a field of the directory";
    if values.iter().all(|value| **value != IN_64_BITS) {
        return Ok(());
    }
    let mut cursor = Cursor::new(extra);
    while cursor.left() > 0 {
        let id = cursor.u16(WHAT)?;
        let length = cursor.u16(WHAT)?;
        let mut field = Cursor::new(cursor.take(length.into(), WHAT)?);
        if id == FIELD_64 {
            for value in values {
                if *value == IN_64_BITS {
                    *value = field.u64(WHAT)?;
                }
            }
            return Ok(());
        }
    }
    Ok(())
}

fn damaged(reason: &str) -> FileFault {
    FileFault::Kind(format!("{reason}; the file is damaged"))
}
