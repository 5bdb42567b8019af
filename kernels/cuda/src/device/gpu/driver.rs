//! The implementation of [`Driver`] for a GPU.

use std::ffi::c_void;
use std::sync::atomic::AtomicU32;

use cudarc::driver::result::{self, event, stream};
use cudarc::driver::sys;
use millrace_backend::{Error, Overheads, Result};

use super::context::{Gpu, Products};
use super::raw::{driver_error, elapsed_milliseconds};
use super::{blas, ipc, launch};
use crate::device::driver::params::LaunchParams;
use crate::device::driver::{
    Algorithm, Driver, Freed, Gemm, Grid, KernelName, MatrixLibrary, PeerMemory, Properties, SharedName,
    TensorLayout, TensorMap,
};
use crate::device::elem::Elem;

impl Driver for Gpu {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn properties(&self) -> Properties {
        self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.allocate_bytes(bytes)
    }

    unsafe fn free(&self, at: u64) {
        if self.recorder.may_free(Freed::Device(at)) {
            self.free_now(Freed::Device(at));
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.recorder.forbid("a copy of memory that is not pinned")?;
        self.make_current()?;
        // SAFETY: the caller guarantees the range; the source is read before the second call
        // returns.
        unsafe {
            result::memcpy_htod_async(to, from, self.stream.plain())
                .map_err(|e| driver_error("cuMemcpyHtoD", e))?;
            stream::synchronize(self.stream.plain()).map_err(|e| driver_error("cuStreamSynchronize", e))
        }
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.recorder.forbid("a copy that waits")?;
        self.make_current()?;
        // SAFETY: the caller guarantees the range; it is written before the second call returns.
        unsafe {
            result::memcpy_dtoh_async(to, from, self.stream.plain())
                .map_err(|e| driver_error("cuMemcpyDtoH", e))?;
            stream::synchronize(self.stream.plain()).map_err(|e| driver_error("cuStreamSynchronize", e))
        }
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()> {
        self.make_current()?;
        // SAFETY: the caller guarantees the ranges.
        unsafe { result::memset_d8_async(at, value, bytes, self.stream.plain()) }
            .map_err(|e| driver_error("cuMemsetD8", e))
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.make_current()?;
        // SAFETY: the caller guarantees the ranges.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.plain()) }
            .map_err(|e| driver_error("cuMemcpyDtoD", e))
    }

    unsafe fn launch(&self, function: KernelName, grid: Grid, params: LaunchParams<'_>) -> Result<()> {
        // SAFETY: the caller guarantees the same.
        unsafe { launch::launch(self, function, grid, params) }
    }

    fn make_current(&self) -> Result<()> {
        self.make_context_current()
    }

    /// Estimates, not measured yet. The context is not counted, because it exists before the free
    /// memory is queried.
    fn overheads(&self, ranks: usize) -> Overheads {
        /// Bytes of a group's channels and their buffers.
        const NCCL: usize = 512 << 20;
        /// Bytes of machine code of kernels and libraries, which is loaded on first use, and of
        /// recorded graphs.
        const RUNTIME: usize = 512 << 20;
        let collectives = if ranks > 1 { NCCL } else { 0 };
        Overheads { products: blas::WORKSPACE, collectives, runtime: RUNTIME }
    }

    fn memory_bytes(&self) -> Option<(usize, usize)> {
        self.make_current().ok()?;
        result::mem_get_info().ok()
    }

    fn tensor_map(&self, layout: &TensorLayout<'_>) -> Result<TensorMap> {
        use sys::CUtensorMapDataType_enum as Type;
        let &TensorLayout { at, elem, sizes, strides, tile } = layout;
        if sizes.len() != tile.len() || sizes.len() != strides.len() + 1 || sizes.len() > 5 {
            return Err(Error::Shape(format!("a tensor map of {sizes:?} in boxes of {tile:?}")));
        }
        let data_type = match elem {
            Elem::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Elem::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            other => return Err(Error::Unsupported(format!("tensor copies of {other:?}"))),
        };
        self.make_current()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let steps = [1u32; 5];
        // SAFETY: the arrays are as long as the rank, which was checked; the call writes only
        // `map`.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                data_type,
                sizes.len() as u32,
                at as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        code.result().map_err(|e| driver_error("cuTensorMapEncodeTiled", e))?;
        Ok(TensorMap::from_words(map.opaque))
    }

    fn synchronize(&self) -> Result<()> {
        self.recorder.forbid("a wait")?;
        self.make_current()?;
        // SAFETY: the stream lives as long as the GPU.
        unsafe { stream::synchronize(self.stream.plain()) }
            .map_err(|e| driver_error("cuStreamSynchronize", e))
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.make_current()?;
        let new = || {
            event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(|e| driver_error("cuEventCreate", e))
        };
        let (start, end) = (new()?, new()?);
        // SAFETY: events and stream came from the driver; each event is destroyed once, after it
        // was reached.
        unsafe {
            event::record(start, self.stream.plain()).map_err(|e| driver_error("cuEventRecord", e))?;
            work()?;
            event::record(end, self.stream.plain()).map_err(|e| driver_error("cuEventRecord", e))?;
            event::synchronize(end).map_err(|e| driver_error("cuEventSynchronize", e))?;
            let milliseconds = elapsed_milliseconds(start, end)?;
            let _ = event::destroy(start);
            let _ = event::destroy(end);
            Ok(f64::from(milliseconds) / 1e3)
        }
    }
}

impl MatrixLibrary for Gpu {
    unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        self.make_current()?;
        self.with_blas(|Products { blas, workspace }| {
            if !blas.has_plan(product) {
                self.recorder.forbid("a product of a new shape")?;
            }
            // SAFETY: the context is current, only products of this stream use the workspace, and
            // the caller guarantees the operands.
            unsafe { blas.multiply(product, *workspace, self.stream.for_kernel().0.cast()) }
        })
    }

    fn product_library(&self) -> Option<String> {
        blas::version().ok().map(|version| format!("cuBLASLt {version}"))
    }

    fn algorithms(&self, product: &Gemm, most: usize) -> Result<Vec<Algorithm>> {
        self.make_current()?;
        self.with_blas(|products| products.blas.algorithms(product, most))
    }

    fn supports_algorithm(&self, product: &Gemm) -> Result<bool> {
        self.make_current()?;
        self.with_blas(|products| products.blas.supports_algorithm(product))
    }
}

impl PeerMemory for Gpu {
    fn allocate_shared(&self, bytes: usize) -> Result<(u64, SharedName)> {
        ipc::share(self, bytes)
    }

    fn open_shared(&self, name: &SharedName, _bytes: usize) -> Result<u64> {
        ipc::open(self, name)
    }

    unsafe fn close_shared(&self, at: u64) {
        // SAFETY: the caller guarantees the same.
        unsafe { ipc::close(self, at) }
    }

    fn host_word(&self) -> Result<&AtomicU32> {
        let word = match self.host_word.get() {
            Some(word) => word,
            None => {
                let word = ipc::host_word(self)?;
                self.host_word.get_or_init(|| word)
            }
        };
        // SAFETY: the word stays allocated until the GPU is dropped.
        Ok(unsafe { word.0.as_ref() })
    }
}
