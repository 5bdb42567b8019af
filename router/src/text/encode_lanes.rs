//! Bounds on concurrent encoding.

use crate::turns::TenantTurns;

/// The turns of tenants for the three kinds of encoding work.
#[derive(Debug)]
pub(super) struct EncodeLanes {
    /// Bounds the short texts that are encoded at the same time.
    pub(super) short: TenantTurns,
    /// Bounds the chunks of long texts that are encoded at the same time.
    pub(super) long: TenantTurns,
    /// Allows one large chunk at a time. A chunk is large if the text has no split points in it.
    pub(super) large: TenantTurns,
}

impl EncodeLanes {
    pub(super) fn new(workers: usize) -> Self {
        EncodeLanes {
            short: TenantTurns::new(workers),
            long: TenantTurns::new(workers),
            large: TenantTurns::new(1),
        }
    }
}
