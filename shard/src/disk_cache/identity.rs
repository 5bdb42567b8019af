//! The identity of a disk cache: everything on which a block depends, apart from its tokens.

use std::fmt::Write as _;

use millrace_model::DecoderSpec;
use millrace_proto::Ready;

use crate::options::{DiskCacheOptions, RankPlacement};

/// The parts of the identity of a disk cache that follow from the model and the device.
pub(crate) struct CacheIdentity<'a> {
    /// The rank's share of the model.
    pub(crate) spec: &'a DecoderSpec,
    /// The announcement, without the disk cache.
    pub(crate) ready: &'a Ready,
    /// Whether each rank has some of the layers.
    pub(crate) pipeline: bool,
}

impl CacheIdentity<'_> {
    /// Returns a digest of everything on which the blocks of this rank depend: the program, the
    /// files of the model, the model, the types of its numbers, the device with its instruction
    /// set, and the rank. Without `--kv-persist`, also the run of the server. Adapters are no part
    /// of it: with them, files are not kept.
    pub(super) fn digest(&self, placement: &RankPlacement, options: &DiskCacheOptions) -> [u8; 32] {
        let mut text = program();
        let Ready { checkpoint, dtype, quantize, activations, kv_cache_dtype, .. } = self.ready;
        let Ready { device, block_size, rotation, .. } = self.ready;
        let RankPlacement { rank, world_size, .. } = placement;
        // A list in the notation of Debug has one reading: strings are quoted.
        let fields = [checkpoint, dtype, quantize, activations, kv_cache_dtype, device, rotation];
        let (pipeline, run) = (self.pipeline, &options.run);
        let _ =
            write!(text, "{fields:?} {block_size} {rank} {world_size} {pipeline} {run:?} {:?}", self.spec);
        blake3::hash(text.as_bytes()).into()
    }
}

/// Describes this program: its version, and the size and time of its file. Kernels of another build
/// may round differently.
fn program() -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata);
    let file = file.map(|file| (file.len(), file.modified().ok()));
    format!("{} {:?} ", env!("CARGO_PKG_VERSION"), file.ok())
}
