//! Values over the connections, piece by piece through a kept buffer.

use std::sync::Arc;

use super::links::Links;
use super::message::{self, CALL, VERDICT};
use crate::collective::{CollectiveError, Operation};

/// Values that are converted, sent and received at once: 64 KiB.
pub(super) const PIECE: usize = 16 << 10;

/// The longest message that goes ahead of values.
const AHEAD: usize = if CALL > VERDICT { CALL } else { VERDICT };

pub(super) struct Transfer {
    links: Arc<Links>,
    /// A piece as it goes over the wire, and what goes ahead of it.
    bytes: Box<[u8]>,
}

impl Transfer {
    pub(super) fn new(links: Arc<Links>) -> Transfer {
        Transfer { links, bytes: vec![0; AHEAD + PIECE * 4].into() }
    }

    /// Sends `ahead` and then values to rank 0, or from rank 0 to all others. `ahead` goes with the first values, in one
    /// packet if they are few.
    pub(super) fn send(
        &mut self,
        ahead: &[u8],
        values: &[f32],
        operation: Operation,
    ) -> Result<(), CollectiveError> {
        let mut used = ahead.len();
        self.bytes[..used].copy_from_slice(ahead);
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

    /// Hands each of the values that a rank sends, as they arrive, to `set`, with its place in `values`.
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
