//! Adds the keys to a configuration that only some architectures have: one function for each.

pub(super) mod dense;
pub(super) mod encoders;
pub(super) mod experts;
pub(super) mod gemma;
pub(super) mod hybrids;
pub(super) mod keys;
pub(super) mod latent;
pub(super) mod older;
