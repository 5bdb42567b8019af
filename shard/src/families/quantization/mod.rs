//! Checkpoints that are quantized: the scheme that a configuration describes, and the tensors of a
//! module.
//!
//! The tensors decide which modules are quantized: a module that has a plain `weight` of type F32,
//! F16 or BF16 is dense, whatever the configuration says of it. So lists of modules that were left
//! out (`ignore`, `modules_to_not_convert`, `lm_head`) need no reading. The configuration decides
//! what the tensors mean, and every tensor must have the shape that follows from it.

mod compressed;
mod scheme;
mod tensors;

pub(super) use scheme::{Scheme, read};
pub(super) use tensors::{ModuleTensors, SUFFIXES};
