//! Sizes, allocation and weights.

use std::convert::Infallible;
use std::sync::PoisonError;

use millrace_backend::{
    Backend, DeviceTypes, HeadRows, KvSpec, ModelLoading, Overheads, ProductShape, Result, RoutingSpec,
    Segment, Sizing, StateSpec, StepSize, WeightLoading,
};
use millrace_numbers::{DType, Part, WeightFormat};

use super::buffers::{self, Buf, Kv, Matrix, MatrixStorage, Vector};
use super::cuda::Cuda;
use super::experts::{Experts, Routing};
use super::latent::HeadMatrices;
use super::loading::WeightUpload;
use super::packed::{PackedSizes, QuantizedRows};
use super::queue::Queue;
use super::recurrent::States;
use super::tuning::{TunedProducts, TuningPolicy};
use crate::Elem;
use crate::device::arena::ALIGNMENT;
use crate::weights::{stored_expert_format, stored_format};

impl DeviceTypes for Cuda {
    type Buf = Buf;
    type Vector = Vector;
    type Matrix = Matrix;
    type Experts = Experts;
    type HeadMatrices = HeadMatrices;
    type Adapters = Infallible;
    type Routing = Routing;
    type Kv = Kv;
    type States = States;
    type Queue = Queue;
}

impl Backend for Cuda {
    fn name(&self) -> String {
        self.device.name()
    }

    fn block_bytes(&self, kv: &Kv) -> Option<usize> {
        Some(kv.block(0).ok()?.map(|piece| piece.bytes()).sum())
    }

    fn reserve_saved_blocks(&self, bytes: usize) -> Result<()> {
        self.saved_blocks.reserve(&self.device, bytes)
    }

    fn save_block(&self, kv: &Kv, block: usize, at: usize) -> Result<()> {
        self.saved_blocks.save(&self.device, kv, block, at)
    }

    fn restore_block(&self, kv: &mut Kv, block: usize, at: usize) -> Result<()> {
        self.saved_blocks.restore(&self.device, kv, block, at)
    }
}

impl Sizing for Cuda {
    fn stored_format(&self, parts: &[Part]) -> Option<WeightFormat> {
        stored_format(parts)
    }

    fn stored_expert_format(&self, parts: &[Part]) -> Option<WeightFormat> {
        stored_expert_format(parts)
    }

    fn stacks(&self, format: WeightFormat) -> bool {
        buffers::stacks(format)
    }

    fn matrix_bytes(&self, out: usize, cols: usize, format: WeightFormat) -> usize {
        Matrix::bytes(out, cols, format)
    }

    fn experts_bytes(&self, count: usize, out: usize, cols: usize, format: WeightFormat) -> usize {
        count.saturating_mul(MatrixStorage::bytes(out, cols, format))
    }

    fn routing_bytes(&self, spec: &RoutingSpec) -> usize {
        Routing::bytes(self.elem(), spec)
    }

    fn kv_bytes(&self, spec: &KvSpec) -> usize {
        spec.bytes()
    }

    fn scratch_bytes(&self, products: &[ProductShape]) -> usize {
        let quantized = if self.quantizes_rows() { QuantizedRows::bytes(products) } else { 0 };
        let ordered = PackedSizes::ordered(products).elements.saturating_mul(self.dtype.size());
        quantized.saturating_add(ordered)
    }

    fn activation_bytes(&self, elements: usize) -> usize {
        elements.saturating_mul(self.dtype.size())
    }

    fn gather_bytes(&self, ranks: usize, elements: usize) -> usize {
        ranks.saturating_mul(elements).saturating_mul(Elem::F32.size())
    }

    fn step_bytes(&self, size: &StepSize<'_>) -> usize {
        Queue::bytes(size, self.dtype.into())
    }

    fn overheads(&self, ranks: usize) -> Overheads {
        self.device.overheads(ranks)
    }
}

impl WeightLoading for Cuda {
    fn vector(&self, parts: &[Part]) -> Result<Vector> {
        Vector::new(&self.device, parts)
    }

    fn matrix(&self, segments: &[Segment<'_>]) -> Result<Matrix> {
        let matrix = self.upload_weights(|upload| Matrix::new(&self.device, upload, segments))?;
        if matrix.is_fp8_by_row() {
            self.allocate_quantized_rows()?;
        }
        if matrix.has_ordered_columns() {
            self.allocate_ordered_rows()?;
        }
        Ok(matrix)
    }

    fn experts(&self, experts: &[Vec<Part>], format: WeightFormat) -> Result<Experts> {
        self.upload_weights(|upload| Experts::new(&self.device, upload, experts, format))
    }

    fn head_matrices(&self, heads: &[Vec<Part>], rows: HeadRows, dtype: DType) -> Result<HeadMatrices> {
        HeadMatrices::new(&self.device, heads, rows, dtype)
    }
}

impl ModelLoading for Cuda {
    fn tune(&self, products: &[ProductShape]) -> Result<Vec<String>> {
        let policy =
            TuningPolicy { one_for_all: self.batch_invariant, quantizes_rows: self.quantizes_rows() };
        let (tuned, warnings) = TunedProducts::new(&self.device, self.dtype.into(), products, policy)?;
        // A second call changes nothing.
        let _ = self.tuned.set(tuned);
        Ok(warnings)
    }

    fn reserve(&self, bytes: usize, pieces: usize) -> Result<()> {
        self.device.reserve(bytes.saturating_add(pieces.saturating_mul(ALIGNMENT)))
    }

    fn seal(&self) -> usize {
        *self.weight_upload.lock().unwrap_or_else(PoisonError::into_inner) = None;
        self.device.seal();
        self.device.reserved().beyond
    }

    fn free_bytes(&self) -> Option<usize> {
        self.device.memory_bytes().map(|(free, _)| free)
    }

    fn buf(&self, rows: usize, cols: usize) -> Result<Buf> {
        Buf::new(&self.device, self.dtype.into(), rows, cols)
    }

    fn logits(&self, rows: usize, cols: usize) -> Result<Buf> {
        Buf::new(&self.device, Elem::F32, rows, cols)
    }

    fn routing(&self, spec: &RoutingSpec) -> Result<Routing> {
        Routing::new(&self.device, self.elem(), spec)
    }

    fn kv(&self, spec: KvSpec) -> Result<Kv> {
        Kv::new(&self.device, spec)
    }

    fn states(&self, spec: StateSpec) -> Result<States> {
        States::new(&self.device, spec)
    }

    fn queue(&self, size: &StepSize<'_>) -> Result<Queue> {
        Queue::new(&self.device, size, self.dtype.into())
    }
}

impl Cuda {
    /// Calls `upload` with the path of weights to the device.
    fn upload_weights<T>(&self, upload: impl FnOnce(&mut WeightUpload) -> Result<T>) -> Result<T> {
        let mut path = self.weight_upload.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *path {
            Some(path) => upload(path),
            none => upload(none.insert(WeightUpload::new(&self.device)?)),
        }
    }

    /// Allocates the buffer for quantized activations, if it is needed and not there yet.
    fn allocate_quantized_rows(&self) -> Result<()> {
        if let (Some(tuned), None, true) = (self.tuned.get(), self.quantized.get(), self.quantizes_rows()) {
            // `matrix` is called for one weight after the other, so that nothing is lost here.
            let _ = self.quantized.set(QuantizedRows::new(&self.device, tuned.packed_sizes())?);
        }
        Ok(())
    }

    /// Allocates the buffer for activations in the order of a weight's columns, if it is not there
    /// yet.
    fn allocate_ordered_rows(&self) -> Result<()> {
        if let (Some(tuned), None) = (self.tuned.get(), self.ordered.get()) {
            let _ = self.ordered.set(self.device.allocate(self.elem(), tuned.ordered_elements())?);
        }
        Ok(())
    }
}
