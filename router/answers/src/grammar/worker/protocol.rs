//! The messages between the router and a worker process, and the limits of a worker.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::grammar::definition::Grammar;
use crate::grammar::error::GrammarError;

/// The CPU time for compiling a grammar.
pub(super) const CPU_TIME: Duration = Duration::from_secs(2);
/// The wall-clock time for compiling a grammar on a busy machine.
pub(super) const WALL_TIME: Duration = Duration::from_secs(10);
/// The address space in bytes for compiling a grammar, in addition to the worker's initial one.
pub(super) const MEMORY: u64 = 256 << 20;

/// The maximum length of a message in bytes. The vocabulary is the longest message.
pub(super) const MAX_MESSAGE_BYTES: usize = 256 << 20;
/// The maximum length of a reply in bytes.
pub(super) const MAX_REPLY_BYTES: usize = 64 << 10;

/// A grammar to try. The first message to a worker is the vocabulary, and jobs follow. Every
/// message is preceded by its length in bytes, a u32 in little-endian order.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkerJob<G> {
    /// The grammar.
    pub(super) grammar: G,
    /// The number of tokens of the model.
    pub(super) vocab_size: u32,
}

/// A worker's reply. The first one says that the worker is ready, and one follows for each grammar.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct WorkerReply {
    /// The result for the last grammar.
    pub(super) verdict: Verdict,
    /// Whether the worker retains too much memory and must be replaced.
    pub(super) is_worn: bool,
}

/// The result of trying a grammar.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Verdict {
    /// The grammar can be compiled within the limits.
    Fits,
    /// Corresponds to [`GrammarError::Invalid`].
    Invalid(String),
    /// Corresponds to [`GrammarError::TooComplex`].
    TooComplex(String),
}

impl From<Result<(), GrammarError>> for Verdict {
    fn from(result: Result<(), GrammarError>) -> Self {
        match result {
            Ok(()) => Verdict::Fits,
            Err(GrammarError::TooComplex(reason)) => Verdict::TooComplex(reason),
            Err(GrammarError::Invalid(reason)) => Verdict::Invalid(reason),
            Err(error @ (GrammarError::Unsupported(_) | GrammarError::Busy)) => {
                Verdict::Invalid(error.to_string())
            }
        }
    }
}

/// Serializes the message that asks a worker to try a grammar. The bytes also identify the grammar.
pub(in crate::grammar) fn job_bytes(grammar: &Grammar, vocab_size: u32) -> Vec<u8> {
    // A value with string keys can always be serialized as JSON.
    serde_json::to_vec(&WorkerJob { grammar, vocab_size }).unwrap_or_default()
}
