//! Sending and receiving values, piece by piece through a buffer that is allocated once.

use std::sync::Arc;

use super::links::Links;
use super::message::{self, CALL, VERDICT};
use crate::collective::{CollectiveError, Operation};

/// Number of values that are converted, sent and received at a time (64 KiB).
pub(super) const PIECE: usize = 16 << 10;

/// The length of the longest prefix in bytes.
const LONGEST_PREFIX: usize = if CALL > VERDICT { CALL } else { VERDICT };

pub(super) struct Transfer {
    links: Arc<Links>,
    /// A piece in its encoded form, with the prefix before it.
    bytes: Box<[u8]>,
}

impl Transfer {
    pub(super) fn new(links: Arc<Links>) -> Transfer {
        Transfer { links, bytes: vec![0; LONGEST_PREFIX + PIECE * 4].into() }
    }

    /// Sends `prefix` and then values to rank 0, or from rank 0 to all others. The prefix and the
    /// first piece are written together, so that a short message is one packet.
    pub(super) fn send(
        &mut self,
        prefix: &[u8],
        values: &[f32],
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let mut used = prefix.len();
        self.bytes[..used].copy_from_slice(prefix);
        let mut pieces = values.chunks(PIECE);
        loop {
            let piece = pieces.next().unwrap_or_default();
            let bytes = &mut self.bytes[..used + piece.len() * 4];
            message::encode(piece, &mut bytes[used..]);
            for rank in self.links.ranks() {
                self.links.send(rank, bytes, operation)?;
            }
            if pieces.len() == 0 {
                return Ok(());
            }
            used = 0;
        }
    }

    /// Receives the values of a rank, and calls `set` with each value and its place in `values`.
    pub(super) fn receive(
        &mut self,
        rank: usize,
        values: &mut [f32],
        operation: Operation,
        set: impl Fn(&mut f32, f32),
    ) -> Result<(), CollectiveError> {
        for piece in values.chunks_mut(PIECE) {
            let bytes = &mut self.bytes[..piece.len() * 4];
            self.links.receive(rank, bytes, operation)?;
            message::decode(bytes, piece, &set);
        }
        Ok(())
    }
}
