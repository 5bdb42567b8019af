//! The contract between the router and the shards: protobuf messages, and their framing on a stream
//! socket.
//!
//! A frame is a little-endian `u32` length followed by that many bytes of one message. Frames
//! longer than [`MAX_FRAME`] are refused before anything is allocated for them.

pub mod frame;
pub mod handshake;
pub mod liveness;
pub mod rules;

/// Messages generated from `proto/shard.proto`; the comments there are the reference.
/// `tests/generated.rs` says how.
#[allow(missing_docs, clippy::all)]
#[rustfmt::skip]
mod generated;

pub use frame::{FrameError, MAX_FRAME};
pub use generated::*;

impl Row {
    /// Returns the number of drafts that the row is to have, of either kind.
    pub fn draft_count(&self) -> usize {
        self.drafts.len() + self.model_drafts as usize
    }
}
