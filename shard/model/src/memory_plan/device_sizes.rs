//! The sizes of a device that is not there.

use millrace_backend::{KvSpec, ProductShape, Sizing};
use millrace_numbers::formats::exact_format;
use millrace_numbers::{Part, WeightFormat};

/// A device without padding and workspace, for estimates without a device. It keeps the
/// same stored formats as the CPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnpaddedDevice;

impl Sizing for UnpaddedDevice {
    fn stored_format(&self, parts: &[Part]) -> Option<WeightFormat> {
        exact_format(parts)
    }

    fn matrix_bytes(&self, out: usize, cols: usize, format: WeightFormat) -> usize {
        format.bytes(out, cols)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        spec.bytes()
    }

    fn scratch_bytes(&self, _products: &[ProductShape]) -> usize {
        0
    }
}
