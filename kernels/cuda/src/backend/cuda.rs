//! The backend itself: a device, and what is known of it.

use std::sync::{Arc, Mutex, OnceLock};

use millrace_numbers::DType;

use super::loading::WeightUpload;
use super::packed::QuantizedRows;
use super::saved_blocks::SavedBlocks;
use super::tuning::TunedProducts;
use crate::{Device, Elem, Memory};

/// One device that computes a model whose activations and dense weights are of one type.
#[derive(Debug, Clone)]
pub struct Cuda {
    pub(super) device: Device,
    pub(super) dtype: DType,
    /// The path by which matrices are uploaded. It exists from the first matrix until the device is
    /// sealed.
    pub(super) weight_upload: Arc<Mutex<Option<WeightUpload>>>,
    /// Whether one algorithm is used for all numbers of rows.
    pub(super) batch_invariant: bool,
    /// The fastest algorithm of each product, set by `tune`.
    pub(super) tuned: Arc<OnceLock<TunedProducts>>,
    /// Whether the device's library multiplies FP8, once it was asked.
    multiplies_fp8: Arc<OnceLock<bool>>,
    /// The buffer for quantized activations, once a weight needs it.
    pub(super) quantized: Arc<OnceLock<QuantizedRows>>,
    /// Copies of blocks of KV caches in host memory.
    pub(super) saved_blocks: Arc<SavedBlocks>,
    /// The buffer for activations in the order of a weight's columns, once a weight needs it.
    pub(super) ordered: Arc<OnceLock<Memory>>,
}

impl Cuda {
    /// Creates a backend for `device` with activations of type `dtype`.
    pub fn new(device: Device, dtype: DType) -> Cuda {
        Cuda {
            device,
            dtype,
            weight_upload: Arc::default(),
            batch_invariant: false,
            tuned: Arc::default(),
            multiplies_fp8: Arc::default(),
            quantized: Arc::default(),
            ordered: Arc::default(),
            saved_blocks: Arc::default(),
        }
    }

    /// Sets whether a row's results are the same however many rows there are, at some cost in
    /// speed.
    #[must_use]
    pub fn batch_invariant(self, batch_invariant: bool) -> Cuda {
        Cuda { batch_invariant, ..self }
    }

    /// Returns the device.
    pub fn device(&self) -> &Device {
        &self.device
    }

    /// Returns the type of activations.
    pub fn elem(&self) -> Elem {
        self.dtype.into()
    }

    /// Tells whether activations are quantized to FP8 when there are many rows of them.
    pub(super) fn quantizes_rows(&self) -> bool {
        // F32 is for tests, and for operators who want the most exact results.
        !self.batch_invariant
            && self.elem() != Elem::F32
            && *self.multiplies_fp8.get_or_init(|| self.device.multiplies_fp8())
    }
}
