//! Checkpoints that are quantized: the scheme that a configuration describes, and the tensors of a
//! module.
//!
//! The tensors decide which modules are quantized: a module that has a plain `weight` of type F32,
//! F16 or BF16 is dense, whatever the configuration says of it. So lists of modules that were left
//! out (`ignore`, `modules_to_not_convert`, `lm_head`) need no reading. The configuration decides
//! what the tensors mean, and every tensor must have the shape that follows from it.

//!
//! What the tensors of each format are is known to [`millrace_numbers::formats`].

use millrace_formats::Checkpoint;
use millrace_numbers::formats::{mxfp4, tensor_names};

mod compressed;
mod scheme;
mod tensors;

pub(super) use scheme::read;
pub(super) use tensors::ModuleTensors;

/// Returns the names of the tensors that store a weight of experts quantized, in all formats.
pub(super) fn expert_tensors(weight: &str) -> [String; 2] {
    mxfp4::EXPERT_TENSORS.map(|end| format!("{weight}{end}"))
}

/// Returns whether a weight is stored, dense or quantized.
pub(super) fn is_stored(checkpoint: &Checkpoint, weight: &str) -> bool {
    let module = weight.strip_suffix("weight").unwrap_or(weight);
    tensor_names().any(|end| checkpoint.contains(&format!("{module}{end}")))
        || expert_tensors(weight).iter().all(|tensor| checkpoint.contains(tensor))
}
