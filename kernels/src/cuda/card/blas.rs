//! Matrix products by cuBLASLt, which is opened at run time.

use std::collections::HashMap;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;

use crate::cuda::driver::Gemm;
use crate::cuda::memory::Elem;
use crate::{Error, Result};

/// What products may use beside their operands: as much as NVIDIA recommends for Hopper.
pub(super) const WORKSPACE: usize = 32 << 20;

/// The library, and how it multiplies each shape that was asked for so far.
#[derive(Debug)]
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    plans: HashMap<Shape, Plan>,
}

// SAFETY: the handle and the descriptors may be used from any thread, one at a time, which `&mut self` sees to.
unsafe impl Send for Blas {}

/// The library's version, such as `13.0.2`.
///
/// # Errors
/// [`Error::Device`] if it is not installed.
pub(in crate::cuda) fn version() -> Result<String> {
    check_present()?;
    // SAFETY: the library is there; the call takes nothing.
    let version = unsafe { sys::cublasLtGetVersion() };
    Ok(format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100))
}

fn check_present() -> Result<()> {
    // SAFETY: the call only tries to open the library.
    if unsafe { sys::is_culib_present() } {
        return Ok(());
    }
    Err(Error::Device(
        "cuBLASLt was not found: install the CUDA toolkit's libcublasLt (or the nvidia-cublas wheel) and put its folder on \
         LD_LIBRARY_PATH"
            .to_owned(),
    ))
}

/// What the choice of an algorithm depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Shape {
    rows: usize,
    inputs: usize,
    outputs: usize,
    elem: Elem,
    out_elem: Elem,
}

impl Shape {
    fn of(product: &Gemm) -> Shape {
        let &Gemm { rows, inputs, outputs, elem, out_elem, .. } = product;
        Shape { rows, inputs, outputs, elem, out_elem }
    }
}

/// A product of one shape. The library thinks in columns: it sees `outᵀ [outputs, rows] = w · xᵀ`, both operands with `inputs` as
/// their leading axis.
#[derive(Debug)]
struct Plan {
    description: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

impl Blas {
    /// Opens the library. The card's context must be current.
    ///
    /// # Errors
    /// [`Error::Device`] if it is not installed, or does not work.
    pub(super) fn open() -> Result<Blas> {
        check_present()?;
        let handle = result::create_handle().map_err(|e| failed("cublasLtCreate", e))?;
        Ok(Blas { handle, plans: HashMap::new() })
    }

    /// Whether products of this shape have been planned.
    pub(super) fn knows(&self, product: &Gemm) -> bool {
        self.plans.contains_key(&Shape::of(product))
    }

    /// Starts a product on `stream`.
    ///
    /// # Safety
    /// The card's context is current, the operands are as long as the shape says, and `workspace` has [`WORKSPACE`] bytes that
    /// nothing else uses on this stream's time.
    pub(super) unsafe fn multiply(
        &mut self,
        product: &Gemm,
        workspace: u64,
        stream: sys::cudaStream_t,
    ) -> Result<()> {
        let shape = Shape::of(product);
        if !self.plans.contains_key(&shape) {
            let plan = self.plan(shape)?;
            self.plans.insert(shape, plan);
        }
        let plan = &self.plans[&shape];
        let (one, zero) = (1f32, 0f32);
        // SAFETY: the layouts describe the operands, which the caller vouches for; the factors are f32 on the host, as the
        // description says.
        unsafe {
            result::matmul(
                self.handle,
                plan.description,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                product.w as *const _,
                plan.w,
                product.x as *const _,
                plan.x,
                product.out as *const _,
                plan.out,
                product.out as *mut _,
                plan.out,
                &raw const plan.algorithm,
                workspace as *mut _,
                WORKSPACE,
                stream,
            )
        }
        .map_err(|e| failed("cublasLtMatmul", e))
    }

    fn plan(&self, shape: Shape) -> Result<Plan> {
        use sys::cublasLtMatmulDescAttributes_t::CUBLASLT_MATMUL_DESC_TRANSA;
        use sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let Shape { rows, inputs, outputs, elem, out_elem } = shape;
        let layout = |kind, rows: usize, cols: usize| {
            result::create_matrix_layout(kind, rows as u64, cols as u64, rows as i64)
                .map_err(|e| failed("cublasLtMatrixLayoutCreate", e))
        };
        // Single precision stays so: TF32 would lose what f32 was chosen for.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F)
            .map_err(|e| failed("cublasLtMatmulDescCreate", e))?;
        /// `CUBLAS_OP_T`.
        static TRANSPOSED: i32 = 1;
        // SAFETY: the attribute is an i32, and is copied.
        unsafe {
            result::set_matmul_desc_attribute(
                description,
                CUBLASLT_MATMUL_DESC_TRANSA,
                (&raw const TRANSPOSED).cast(),
                size_of::<i32>(),
            )
        }
        .map_err(|e| failed("cublasLtMatmulDescSetAttribute", e))?;
        let w = layout(data_type(elem)?, inputs, outputs)?;
        let x = layout(data_type(elem)?, inputs, rows)?;
        let out = layout(data_type(out_elem)?, outputs, rows)?;
        let preference =
            result::create_matmul_pref().map_err(|e| failed("cublasLtMatmulPreferenceCreate", e))?;
        // SAFETY: the attribute is a u64, and is copied; the descriptors above are the library's own.
        let found = unsafe {
            let bytes = WORKSPACE as u64;
            let set = result::set_matmul_pref_attribute(
                preference,
                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<u64>(),
            );
            let found = set.and_then(|()| {
                result::get_matmul_algo_heuristic(self.handle, description, w, x, out, out, preference)
            });
            let _ = result::destroy_matmul_pref(preference);
            found
        };
        let found = found.map_err(|e| failed("cublasLtMatmulAlgoGetHeuristic", e))?;
        Ok(Plan { description, w, x, out, algorithm: found.algo })
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        // Nothing can be done about a failure here.
        // SAFETY: what is given back is the library's and is not used again.
        unsafe {
            for plan in self.plans.values() {
                let _ = result::destroy_matmul_desc(plan.description);
                for layout in [plan.w, plan.x, plan.out] {
                    let _ = result::destroy_matrix_layout(layout);
                }
            }
            let _ = result::destroy_handle(self.handle);
        }
    }
}

fn data_type(elem: Elem) -> Result<sys::cudaDataType_t> {
    match elem {
        Elem::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        Elem::F16 => Ok(sys::cudaDataType_t::CUDA_R_16F),
        Elem::BF16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        other => Err(Error::Unsupported(format!("a product of {other:?}"))),
    }
}

fn failed(call: &str, error: CublasError) -> Error {
    Error::Device(format!("{call}: {:?}", error.0))
}
