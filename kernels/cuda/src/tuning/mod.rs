//! The fastest method to multiply for each shape of product: found by timing, and kept on disk.

mod file;
mod results;

pub(crate) use file::TuningFile;
pub(crate) use results::{MethodTimer, ProductMethod, TunedProduct, TuningResults, fill_missing};
