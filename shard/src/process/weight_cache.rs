//! The names under which a device keeps packed weights for the next start.

use std::fmt::Write;
use std::time::UNIX_EPOCH;

use millrace_model::split::Split;
use millrace_model::{DecoderSpec, WeightError, WeightSource, WeightStorage};
use millrace_numbers::Part;

/// Bytes of each stored tensor that are part of the version. Files with the same name, size and
/// time may still hold other weights: container images often give all files the same time.
const SAMPLE: usize = 64;

/// The label of weights in the cache of a device.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct WeightLabel {
    /// The model, the formats and the rank. A cache has one version of each subject.
    pub(super) subject: String,
    /// A text that is different for different weights, and for different versions of this program,
    /// which may pack them differently.
    pub(super) version: String,
}

impl WeightLabel {
    /// Returns the label of the share `split` of a model's weights, or `None` if they do not come
    /// from files.
    ///
    /// # Errors
    /// If a weight cannot be read.
    pub(super) fn new(
        spec: &DecoderSpec,
        storage: &WeightStorage,
        split: Split,
        source: &dyn WeightSource,
    ) -> Result<Option<Self>, WeightError> {
        let files = source.identity();
        if files.is_empty() {
            return Ok(None);
        }
        let Split { rank, world_size } = split;
        // The files of a model may hold a head of its own as well.
        let of = if spec.reads_states { "head, " } else { "" };
        let subject = format!("{}\n{storage:?}\n{of}rank {rank} of {world_size}", source.place());
        let mut version = format!("{files}\n{spec:?}\n{}\n", program());
        for slot in spec.slots() {
            for part in source.parts(slot)? {
                for byte in sample(&part) {
                    // Writing to a string cannot fail.
                    let _ = write!(version, "{byte:02x}");
                }
            }
            version.push('\n');
        }
        Ok(Some(WeightLabel { subject, version }))
    }
}

/// Returns some bytes from the middle of a part's tensor.
fn sample(part: &Part) -> &[u8] {
    let bytes = &part.tensor.bytes;
    let start = bytes.len() / 2;
    &bytes[start..bytes.len().min(start + SAMPLE)]
}

/// Returns the version of this program: its number, and the size and time of its file, which differ
/// between builds of one version.
fn program() -> String {
    let file = std::env::current_exe().and_then(std::fs::metadata);
    let stamp = file.map(|file| {
        let time = file.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
        (file.len(), time)
    });
    format!("{} {:?}", env!("CARGO_PKG_VERSION"), stamp.ok())
}
