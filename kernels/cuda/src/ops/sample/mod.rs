//! Sampling: the host's sampler (`millrace_backend::sampling`) on the device, with the same tokens
//! for the same seeds.
//!
//! Penalties are counted anew in every step from the tokens that lie on the device: each chunk of
//! the vocabulary looks through the sequence's history for its own tokens. That costs reading the
//! history once per 4096 tokens of vocabulary, from the L2 cache, and only for rows with penalties;
//! all histories together are no longer than the KV cache has room for. A table of counts per
//! sequence would cost two bytes per token of the vocabulary in memory and in bandwidth, and would
//! have to be updated whenever a sequence comes, goes, or is computed again.

mod choose;
mod rows;
mod score;
mod table;

pub use super::shared::sample_row_h::{COLUMNS, MAX_TOKENS};
pub use choose::{sample, sample_plain};
pub use rows::{SampleOutputs, SampleRows, workspace};
pub use score::{encode_given, score};
pub use table::{RowSampling, SampleBounds, encode, greedy};
