//! tiktoken's files: on each line a byte string in base64, a space, and its rank.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use super::{ByteVocabulary, MAX_TOKEN_BYTES, VocabularyError, sentencepiece};

const FORMAT: &str = "tiktoken";

/// Whether the first line of a file has the form of a tiktoken file. Several models use the name
/// `tokenizer.model` for it, which is otherwise the name of a SentencePiece model.
pub fn is_tiktoken(bytes: &[u8]) -> bool {
    let line = bytes.split(|&byte| byte == b'\n').next().unwrap_or_default();
    line.len() <= 2 * MAX_TOKEN_BYTES && parse_line(line.trim_ascii_end()).is_ok()
}

/// Reads a tiktoken file. The ranks must be consecutive from 0, in any order.
///
/// # Errors
/// [`VocabularyError`] names the first line that is wrong.
pub fn read_tiktoken(bytes: &[u8]) -> Result<ByteVocabulary, VocabularyError> {
    if bytes.starts_with(sentencepiece::LFS) {
        return Err(VocabularyError::LfsPointer);
    }
    let mut ranked = Vec::new();
    for (index, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() {
            continue;
        }
        let entry = parse_line(line)
            .map_err(|reason| VocabularyError::format(FORMAT, format!("line {}: {reason}", index + 1)))?;
        ranked.push(entry);
    }
    ranked.sort_by_key(|(_, rank)| *rank);
    if let Some(at) = (0..ranked.len()).find(|&at| ranked[at].1 as usize != at) {
        let rank = ranked[at].1;
        let reason = match at.checked_sub(1).is_some_and(|before| ranked[before].1 == rank) {
            true => format!("rank {rank} occurs twice"),
            false => format!("rank {at} is missing"),
        };
        return Err(VocabularyError::format(FORMAT, reason));
    }
    let tokens = ranked.into_iter().map(|(token, _)| token).collect();
    ByteVocabulary { tokens, first_id: 0 }.checked()
}

fn parse_line(line: &[u8]) -> Result<(Vec<u8>, u32), &'static str> {
    let space = line.iter().position(|&byte| byte == b' ').ok_or("there is no space")?;
    let token = STANDARD.decode(&line[..space]).map_err(|_| "the token is not base64")?;
    let rank = std::str::from_utf8(&line[space + 1..]).ok().and_then(|rank| rank.parse().ok());
    Ok((token, rank.ok_or("the rank is not a number")?))
}
