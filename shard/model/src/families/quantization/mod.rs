//! Checkpoints that are quantized: the scheme that a configuration describes, and the tensors of a
//! module.
//!
//! The tensors decide which modules are quantized: a module that has a plain `weight` of type F32,
//! F16 or BF16 is dense, whatever the configuration says of it. So lists of modules that were left
//! out (`ignore`, `modules_to_not_convert`, `lm_head`) need no reading. The configuration decides
//! what the tensors mean, and every tensor must have the shape that follows from it.

use millrace_formats::Checkpoint;

mod compressed;
mod mxfp4;
mod scheme;
mod tensors;

pub(super) use mxfp4::{read as read_mxfp4, tensors as mxfp4_tensors};
pub(super) use scheme::{Scheme, read};
pub(super) use tensors::{ModuleTensors, SUFFIXES};

/// Returns whether a weight is stored, dense or quantized.
pub(super) fn is_stored(checkpoint: &Checkpoint, weight: &str) -> bool {
    let module = weight.strip_suffix("weight").unwrap_or(weight);
    SUFFIXES.iter().any(|suffix| checkpoint.contains(&format!("{module}{suffix}")))
        || mxfp4_tensors(weight).iter().all(|tensor| checkpoint.contains(tensor))
}
