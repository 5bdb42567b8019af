//! SentencePiece's compiled table of replacements.
//!
//! The table is a double-array trie in the format of Darts-clone, preceded by its length in bytes,
//! and followed by the replacements, each of which ends with a NUL byte.

use super::VocabularyError;

/// The maximum length of a replaced text in bytes. It bounds the work for each character.
const MAX_KEY_BYTES: usize = 256;

const FORMAT: &str = "SentencePiece model";

/// A table of texts and their replacements.
#[derive(Debug, Clone, PartialEq)]
pub struct CharsMap {
    units: Vec<u32>,
    replacements: String,
}

impl CharsMap {
    /// Reads a table; `None` if it is empty.
    ///
    /// # Errors
    /// [`VocabularyError::Format`] if the lengths or the encoding are wrong.
    pub fn read(bytes: &[u8]) -> Result<Option<Self>, VocabularyError> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let wrong = |reason| VocabularyError::format(FORMAT, reason);
        let (length, rest) =
            bytes.split_first_chunk().ok_or_else(|| wrong("its table of characters is too short"))?;
        let length = u32::from_le_bytes(*length) as usize;
        if !length.is_multiple_of(4) || length > rest.len() {
            return Err(wrong("the length of its table of characters is wrong"));
        }
        let (units, replacements) = rest.split_at(length);
        let units =
            units.chunks_exact(4).map(|unit| u32::from_le_bytes([unit[0], unit[1], unit[2], unit[3]]));
        let replacements = std::str::from_utf8(replacements)
            .map_err(|_| wrong("its table of characters contains text that is not UTF-8"))?;
        Ok(Some(CharsMap { units: units.collect(), replacements: replacements.to_owned() }))
    }

    /// Checks every place that a search can reach, for a reader that does not check it itself.
    ///
    /// # Errors
    /// [`VocabularyError::Format`] if a place is outside of the table, or a replacement begins
    /// outside of the text or within a character.
    pub fn check(&self) -> Result<(), VocabularyError> {
        let wrong = |reason| VocabularyError::format(FORMAT, reason);
        let unit = |at: usize| {
            let unit = self.units.get(at).copied();
            unit.ok_or_else(|| wrong("its table of characters refers to a place outside of it"))
        };
        let mut is_known = vec![false; self.units.len()];
        let mut open = vec![offset(unit(0)?)];
        while let Some(children) = open.pop() {
            for byte in 1..=255 {
                let at = children ^ byte;
                let child = unit(at)?;
                if child & (1 << 31 | 0xFF) != byte as u32 || std::mem::replace(&mut is_known[at], true) {
                    continue;
                }
                let below = at ^ offset(child);
                open.push(below);
                let value = (child & (1 << 8) != 0).then(|| unit(below)).transpose()?;
                let is_text = |value| self.replacements.is_char_boundary((value & !(1 << 31)) as usize);
                if value.is_some_and(|value| !is_text(value)) {
                    return Err(wrong("its table of characters refers to a place outside of its texts"));
                }
            }
        }
        Ok(())
    }

    /// Returns the length in bytes of the longest key at the start of a text, and its replacement.
    pub fn longest(&self, text: &str) -> Option<(usize, &str)> {
        let mut at = offset(*self.units.first()?);
        let mut found = None;
        for (index, byte) in text.bytes().take(MAX_KEY_BYTES).enumerate() {
            at ^= usize::from(byte);
            let Some(&unit) = self.units.get(at) else { break };
            if unit & (1 << 31 | 0xFF) != u32::from(byte) {
                break;
            }
            at ^= offset(unit);
            if unit & (1 << 8) != 0
                && let Some(&value) = self.units.get(at)
            {
                found = Some((index + 1, (value & !(1 << 31)) as usize));
            }
        }
        let (length, start) = found?;
        // A damaged table can end a key within a character or start a replacement within one.
        if !text.is_char_boundary(length) {
            return None;
        }
        let rest = self.replacements.get(start..)?;
        Some((length, rest.split('\0').next().unwrap_or_default()))
    }
}

/// Returns the offset of the children of a unit, which also has a label of one byte and a mark for
/// a value.
fn offset(unit: u32) -> usize {
    ((unit >> 10) << ((unit & (1 << 9)) >> 6)) as usize
}
