//! Hashes the blocks of a prompt, with which the engine finds computed prefixes.

use std::sync::Arc;

use millrace_proto::{PromptHandling, Ready};

use super::error::ServiceError;
use super::setup::Service;
use crate::engine::{AdapterId, BlockHashes};

/// Maximum number of tokens that are hashed on the thread of the request, which takes up to 0.3 ms.
const MAX_INLINE_TOKENS: usize = 16 << 10;

impl Service {
    /// Hashes a prompt, on a thread that may block if the prompt is long. Returns the prompt and
    /// the hashes, which all answers to the prompt share. There are no hashes without a prefix
    /// cache, and for a model whose blocks cannot be shared.
    pub(super) async fn hash_blocks(
        &self,
        prompt: Vec<u32>,
        adapter: Option<AdapterId>,
        salt: Option<Arc<str>>,
        ready: &Ready,
    ) -> Result<(Vec<u32>, Option<BlockHashes>), ServiceError> {
        let are_shared = match ready.prompt_handling() {
            PromptHandling::Shared => true,
            PromptHandling::Unshared => ready.state_checkpoints > 0,
            PromptHandling::Whole => false,
        };
        if !self.0.engine.has_prefix_cache() || !are_shared {
            return Ok((prompt, None));
        }
        let (block_size, is_short) = (ready.block_size as usize, prompt.len() <= MAX_INLINE_TOKENS);
        let hash = move || {
            let hashes = BlockHashes::of_prompt(&prompt, adapter, salt.as_ref(), block_size);
            (prompt, Some(hashes))
        };
        if is_short {
            return Ok(hash());
        }
        let stopped = |_| ServiceError::Unavailable("Server is shutting down".into());
        tokio::task::spawn_blocking(hash).await.map_err(stopped)
    }
}
