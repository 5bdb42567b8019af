//! The two kinds of headers in the file of a disk cache: one for the file, and one for each slot.

use millrace_proto::DiskEntry;

/// Bytes of a hash of a block.
pub(super) const HASH: usize = 16;

/// The hash of a block.
pub(super) type Hash = [u8; HASH];

/// Bytes of the header of the file, and the unit in which its parts are aligned.
pub(super) const FILE_HEADER: usize = 4096;

/// Bytes of the header of a slot.
pub(super) const SLOT_HEADER: usize = 64;

/// The beginning of the file. The number changes with the layout.
const MAGIC: &[u8; 16] = b"millrace kv\x001\0\0\0";

/// Bytes of the file's header that are not padding.
const FILE_FIELDS: usize = 16 + 32 + 8 + 8;

/// The header of a slot that holds a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct SlotHeader {
    /// The hash of the block.
    pub(super) hash: Hash,
    /// The hash of the block before it; `None` if the block begins a sequence.
    pub(super) parent: Option<Hash>,
    /// Number of writes to the file before this one.
    pub(super) number: u64,
    /// The checksum of the block's hash and its bytes.
    pub(super) checksum: u32,
}

impl SlotHeader {
    /// Returns the header in the order of bytes of the file.
    pub(super) fn encode(&self) -> [u8; SLOT_HEADER] {
        let mut bytes = [0; SLOT_HEADER];
        bytes[..16].copy_from_slice(&self.hash);
        bytes[16..32].copy_from_slice(&self.parent.unwrap_or_default());
        bytes[32] = 1 + u8::from(self.parent.is_some());
        bytes[40..48].copy_from_slice(&self.number.to_le_bytes());
        bytes[48..52].copy_from_slice(&self.checksum.to_le_bytes());
        let own = crc32fast::hash(&bytes[..60]);
        bytes[60..].copy_from_slice(&own.to_le_bytes());
        bytes
    }

    /// Reads a header. Returns `None` if the slot is empty, or the header is damaged.
    pub(super) fn decode(bytes: &[u8; SLOT_HEADER]) -> Option<SlotHeader> {
        let (fields, own) = bytes.split_last_chunk::<4>()?;
        if crc32fast::hash(fields) != u32::from_le_bytes(*own) {
            return None;
        }
        let hash = |at: usize| fields[at..].first_chunk::<HASH>().copied();
        let parent = match fields[32] {
            1 => None,
            2 => Some(hash(16)?),
            _ => return None,
        };
        Some(SlotHeader {
            hash: hash(0)?,
            parent,
            number: u64::from_le_bytes(*fields[40..].first_chunk()?),
            checksum: u32::from_le_bytes(*fields[48..].first_chunk()?),
        })
    }

    /// Returns the slot in the terms of the router.
    pub(super) fn entry(&self, slot: u32) -> DiskEntry {
        let parent = self.parent.map_or_else(Vec::new, |parent| parent.to_vec());
        DiskEntry { slot, hash: self.hash.to_vec(), parent }
    }
}

/// Returns the checksum of a block with its hash.
pub(super) fn checksum(hash: &Hash, block: &[u8]) -> u32 {
    let mut hasher = crc32fast::Hasher::new();
    hasher.update(hash);
    hasher.update(block);
    hasher.finalize()
}

/// Returns the header of a file with `slots` slots of `slot_bytes` bytes for blocks of one
/// identity.
pub(super) fn file_header(identity: &[u8; 32], slots: u64, slot_bytes: u64) -> [u8; FILE_HEADER] {
    let mut bytes = [0; FILE_HEADER];
    bytes[..16].copy_from_slice(MAGIC);
    bytes[16..48].copy_from_slice(identity);
    bytes[48..56].copy_from_slice(&slots.to_le_bytes());
    bytes[56..64].copy_from_slice(&slot_bytes.to_le_bytes());
    let own = crc32fast::hash(&bytes[..FILE_FIELDS]);
    bytes[FILE_FIELDS..FILE_FIELDS + 4].copy_from_slice(&own.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_with_a_changed_bit_is_no_header() {
        for parent in [None, Some([7; HASH])] {
            let header = SlotHeader { hash: [3; HASH], parent, number: 1 << 40, checksum: 0xdead_beef };
            let bytes = header.encode();
            assert_eq!(SlotHeader::decode(&bytes), Some(header));
            for bit in 0..8 * SLOT_HEADER {
                let mut changed = bytes;
                changed[bit / 8] ^= 1 << (bit % 8);
                assert_eq!(SlotHeader::decode(&changed), None, "bit {bit}");
            }
        }
        assert_eq!(SlotHeader::decode(&[0; SLOT_HEADER]), None);
    }

    #[test]
    fn files_of_other_identities_and_sizes_have_other_headers() {
        let headers = [
            file_header(&[1; 32], 2, 3),
            file_header(&[2; 32], 2, 3),
            file_header(&[1; 32], 3, 3),
            file_header(&[1; 32], 2, 4),
        ];
        for (index, header) in headers.iter().enumerate() {
            assert!(!headers[..index].contains(header), "{index}");
        }
    }
}
