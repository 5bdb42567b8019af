//! The messages between the ranks: a call before its values, and a verdict before the result. All
//! numbers are little-endian.

use crate::collective::{Call, Operation};

/// Length of an encoded call in bytes: sequence, operation, length.
pub(super) const CALL: usize = 20;

/// Length of an encoded verdict in bytes: whether all calls agree, then the rank whose call
/// differs, its call, and rank 0's call.
pub(super) const VERDICT: usize = 4 + 4 + 2 * CALL;

pub(super) fn encode_call(call: &Call) -> [u8; CALL] {
    let mut bytes = [0; CALL];
    bytes[..8].copy_from_slice(&call.sequence.to_le_bytes());
    bytes[8..12].copy_from_slice(&(call.operation as u32).to_le_bytes());
    bytes[12..].copy_from_slice(&call.length.to_le_bytes());
    bytes
}

/// Decodes a call. Returns `None` if this version does not know the operation.
pub(super) fn decode_call(bytes: &[u8; CALL]) -> Option<Call> {
    let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| bytes[at + i]));
    let operation = u32::from_le_bytes(std::array::from_fn(|i| bytes[8 + i]));
    Some(Call { sequence: word(0), operation: Operation::from_code(operation)?, length: word(12) })
}

/// A call of a rank that differs from rank 0's call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Disagreement {
    pub(super) rank: usize,
    pub(super) call: Call,
    pub(super) lead: Call,
}

pub(super) fn encode_verdict(disagreement: Option<Disagreement>) -> [u8; VERDICT] {
    let mut bytes = [0; VERDICT];
    if let Some(Disagreement { rank, call, lead }) = disagreement {
        bytes[..4].copy_from_slice(&1_u32.to_le_bytes());
        bytes[4..8].copy_from_slice(&(rank as u32).to_le_bytes());
        bytes[8..8 + CALL].copy_from_slice(&encode_call(&call));
        bytes[8 + CALL..].copy_from_slice(&encode_call(&lead));
    }
    bytes
}

/// Decodes a verdict. Returns `None` if the bytes are not a verdict.
pub(super) fn decode_verdict(bytes: &[u8; VERDICT]) -> Option<Option<Disagreement>> {
    let (head, calls) = bytes.split_first_chunk::<8>()?;
    let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|i| head[at + i]));
    match word(0) {
        0 => Some(None),
        1 => {
            let (call, lead) = (calls.first_chunk()?, calls.last_chunk()?);
            let (call, lead) = (decode_call(call)?, decode_call(lead)?);
            Some(Some(Disagreement { rank: word(4) as usize, call, lead }))
        }
        _ => None,
    }
}

/// Encodes values one after the other. `bytes` has four times as many elements.
pub(super) fn encode(values: &[f32], bytes: &mut [u8]) {
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = value.to_le_bytes();
    }
}

/// Decodes values, and calls `set` with the place of each value and the value.
pub(super) fn decode(bytes: &[u8], values: &mut [f32], set: impl Fn(&mut f32, f32)) {
    for (bytes, value) in bytes.as_chunks().0.iter().zip(values) {
        set(value, f32::from_le_bytes(*bytes));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_and_verdicts_survive_encoding() {
        let call = Call { sequence: u64::MAX - 1, operation: Operation::Broadcast, length: 77 };
        let lead = Call { sequence: 3, operation: Operation::AllReduce, length: 1 << 40 };
        assert_eq!(decode_call(&encode_call(&call)), Some(call));
        let disagreement = Some(Disagreement { rank: 5, call, lead });
        assert_eq!(decode_verdict(&encode_verdict(disagreement)), Some(disagreement));
        assert_eq!(decode_verdict(&encode_verdict(None)), Some(None));
        assert_eq!(decode_verdict(&[9; VERDICT]), None);
        assert_eq!(decode_call(&[9; CALL]), None);
    }
}
