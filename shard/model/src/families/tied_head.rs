//! Decides whether a model's head is its embedding, where the configuration and the checkpoint may
//! contradict each other.

use millrace_formats::{Checkpoint, Tensor};

use super::config::Config;
use super::error::LoadError;
use super::family::Family;
use super::quantization;
use crate::description::DecoderSpec;

/// The keys that say whether the head is the embedding.
const KEYS: [&str; 2] = ["tie_word_embeddings", "tie_embedding"];

/// Sets `tied_head` of a specification that was read from `config`, and `is_absent` of its head.
///
/// A stored head that differs from the embedding is used whatever the configuration says, as
/// transformers 5 does, with a warning if that says otherwise. A head that is not stored is the
/// embedding if the configuration says so or does not say: some versions of transformers leave the
/// key of tied heads out, and others have another default. This is a warning, too, if the family's
/// heads are usually not tied.
///
/// # Errors
/// If the configuration says that the head is not the embedding, and there is no head.
pub(super) fn resolve(
    config: &Config,
    family: &Family,
    checkpoint: &Checkpoint,
    spec: &mut DecoderSpec,
) -> Result<(), LoadError> {
    let is_stored = |name: &str| quantization::is_stored(checkpoint, name);
    let head = family.names.resolve(&family.names.head(), is_stored);
    let embedding = family.names.resolve(&family.names.embedding(), is_stored);
    if spec.head.is_absent {
        // The architecture computes states only.
        spec.head.is_absent = !is_stored(&head);
        spec.tied_head |= spec.head.is_absent;
    } else if is_stored(&head) {
        if spec.tied_head && !are_equal_tensors(checkpoint.find(&head), checkpoint.find(&embedding)) {
            tracing::warn!(
                "config.json ties the head to the embedding, but {head} differs from {embedding}: {head} \
                 is used"
            );
            spec.tied_head = false;
        }
    } else if !spec.tied_head {
        if let Some(key) = says_untied(config)? {
            return Err(config.invalid(key, format!("is false, but the checkpoint has no {head}")).into());
        }
        tracing::warn!(
            "the checkpoint has no {head}, and config.json does not say tie_word_embeddings: {embedding} \
             is the head, too"
        );
        spec.tied_head = true;
    }
    Ok(())
}

/// Returns the key by which a configuration says that the head is not the embedding.
fn says_untied(config: &Config) -> Result<Option<&'static str>, LoadError> {
    for key in KEYS {
        if config.optional::<bool>(key)? == Some(false) {
            return Ok(Some(key));
        }
    }
    Ok(None)
}

/// Returns whether both tensors exist with the same shape, element type and bytes.
pub fn are_equal_tensors(head: Option<Tensor<'_>>, embedding: Option<Tensor<'_>>) -> bool {
    let (Some(head), Some(embedding)) = (head, embedding) else { return false };
    head.shape == embedding.shape && head.dtype == embedding.dtype && head.bytes == embedding.bytes
}
