//! Matrix products with cuBLASLt, which is opened at run time.

use std::collections::HashMap;
use std::mem::MaybeUninit;

use cudarc::cublaslt::result::{self, CublasError};
use cudarc::cublaslt::sys;
use cudarc::cublaslt::sys::cublasLtMatmulDescAttributes_t::{
    self, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
    CUBLASLT_MATMUL_DESC_B_SCALE_MODE, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, CUBLASLT_MATMUL_DESC_TRANSA,
};
use millrace_backend::{Error, Result};

use crate::device::driver::{Algorithm, Gemm};
use crate::device::elem::Elem;

/// Bytes of workspace for products: as much as NVIDIA recommends for Hopper.
pub(super) const WORKSPACE: usize = 32 << 20;

/// The library, and a plan for each shape of product so far.
#[derive(Debug)]
pub(super) struct Blas {
    handle: sys::cublasLtHandle_t,
    /// Plans by shape and by the algorithm that was asked for.
    plans: HashMap<(ProductKey, Option<Algorithm>), PlannedProduct>,
}

// SAFETY: the handle and the descriptors may be used from any thread, by one thread at a time,
// which `&mut self` ensures.
unsafe impl Send for Blas {}

/// The library's version, such as `13.0.2`.
///
/// # Errors
/// [`Error::Device`] if it is not installed.
pub(crate) fn version() -> Result<String> {
    check_present()?;
    // SAFETY: the library is loaded; the call takes no arguments.
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

/// The part of a product that determines its algorithm.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct ProductKey {
    rows: usize,
    inputs: usize,
    outputs: usize,
    elem: Elem,
    out_elem: Elem,
}

impl ProductKey {
    fn of(product: &Gemm) -> ProductKey {
        let &Gemm { rows, inputs, outputs, elem, out_elem, .. } = product;
        ProductKey { rows, inputs, outputs, elem, out_elem }
    }
}

/// The descriptors of a product and its algorithm.
#[derive(Debug)]
struct PlannedProduct {
    operands: Operands,
    algorithm: sys::cublasLtMatmulAlgo_t,
}

/// The library's descriptors of a product. The library uses column-major matrices: it sees `outᵀ
/// [outputs, rows] = w · xᵀ`, where both operands have `inputs` as their leading dimension.
#[derive(Debug)]
struct Operands {
    description: sys::cublasLtMatmulDesc_t,
    w: sys::cublasLtMatrixLayout_t,
    x: sys::cublasLtMatrixLayout_t,
    out: sys::cublasLtMatrixLayout_t,
}

impl Blas {
    /// Opens the library. The GPU's context must be current.
    ///
    /// # Errors
    /// [`Error::Device`] if it is not installed or does not work.
    pub(super) fn open() -> Result<Blas> {
        check_present()?;
        let handle = result::create_handle().map_err(|e| blas_error("cublasLtCreate", e))?;
        Ok(Blas { handle, plans: HashMap::new() })
    }

    /// Whether there is a plan for products of this shape.
    pub(super) fn has_plan(&self, product: &Gemm) -> bool {
        self.plans.contains_key(&(ProductKey::of(product), product.algorithm))
    }

    /// Up to `most` algorithms for products of this shape, fastest first by the library's estimate.
    pub(super) fn algorithms(&self, product: &Gemm, most: usize) -> Result<Vec<Algorithm>> {
        let found =
            Operands::of(ProductKey::of(product)).and_then(|operands| self.heuristic(&operands, most));
        let found = match found {
            // Libraries before 12.9 do not have the scale mode, and only Hopper has products for
            // it.
            Err(_) if product.elem == Elem::E4M3 => Vec::new(),
            found => found?,
        };
        Ok(found.into_iter().map(|algorithm| Algorithm(algorithm.data)).collect())
    }

    /// Whether the product's algorithm works for its shape within the workspace.
    pub(super) fn supports_algorithm(&self, product: &Gemm) -> Result<bool> {
        let operands = Operands::of(ProductKey::of(product))?;
        Ok(product.algorithm.is_none_or(|algorithm| self.works(&operands, algorithm)))
    }

    /// Starts a product on `stream`.
    ///
    /// # Safety
    /// The GPU's context is current, the operands are as long as the shape says, and `workspace`
    /// has [`WORKSPACE`] bytes that only this stream uses.
    pub(super) unsafe fn multiply(
        &mut self,
        product: &Gemm,
        workspace: u64,
        stream: sys::cudaStream_t,
    ) -> Result<()> {
        let key = (ProductKey::of(product), product.algorithm);
        if !self.plans.contains_key(&key) {
            let plan = self.plan(key.0, key.1)?;
            self.plans.insert(key, plan);
        }
        let PlannedProduct { operands, algorithm } = &self.plans[&key];
        if let Some(scales) = product.scales {
            // `w` is the library's operand A. It reads the addresses when the product starts.
            operands.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, scales.w)?;
            operands.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, scales.x)?;
        }
        let (one, zero) = (1f32, 0f32);
        // SAFETY: the layouts describe the operands, which the caller guarantees; the factors are
        // f32 on the host, as the description says.
        unsafe {
            result::matmul(
                self.handle,
                operands.description,
                (&raw const one).cast(),
                (&raw const zero).cast(),
                product.w as *const _,
                operands.w,
                product.x as *const _,
                operands.x,
                product.out as *const _,
                operands.out,
                product.out as *mut _,
                operands.out,
                algorithm,
                workspace as *mut _,
                WORKSPACE,
                stream,
            )
        }
        .map_err(|e| blas_error("cublasLtMatmul", e))
    }

    fn plan(&self, shape: ProductKey, wanted: Option<Algorithm>) -> Result<PlannedProduct> {
        let operands = Operands::of(shape)?;
        let algorithm = match wanted {
            Some(wanted) if self.works(&operands, wanted) => sys::cublasLtMatmulAlgo_t { data: wanted.0 },
            _ => {
                let found = self.heuristic(&operands, 1)?;
                *found
                    .first()
                    .ok_or_else(|| Error::Device(format!("cuBLASLt has no algorithm for {shape:?}")))?
            }
        };
        Ok(PlannedProduct { operands, algorithm })
    }

    fn works(&self, operands: &Operands, algorithm: Algorithm) -> bool {
        let algorithm = sys::cublasLtMatmulAlgo_t { data: algorithm.0 };
        let mut found = MaybeUninit::<sys::cublasLtMatmulHeuristicResult_t>::zeroed();
        let &Operands { description, w, x, out } = operands;
        // SAFETY: the descriptors came from the library, which checks the algorithm; the last
        // argument points to the result.
        let checked = unsafe {
            sys::cublasLtMatmulAlgoCheck(
                self.handle,
                description,
                w,
                x,
                out,
                out,
                &algorithm,
                found.as_mut_ptr(),
            )
        };
        // SAFETY: zeroed bytes are a valid result.
        checked.result().is_ok() && unsafe { found.assume_init() }.workspaceSize <= WORKSPACE
    }

    fn heuristic(&self, operands: &Operands, most: usize) -> Result<Vec<sys::cublasLtMatmulAlgo_t>> {
        use sys::cublasLtMatmulPreferenceAttributes_t::CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES;
        let preference =
            result::create_matmul_pref().map_err(|e| blas_error("cublasLtMatmulPreferenceCreate", e))?;
        let &Operands { description, w, x, out } = operands;
        let empty = sys::cublasLtMatmulHeuristicResult_t {
            algo: sys::cublasLtMatmulAlgo_t { data: [0; 8] },
            workspaceSize: 0,
            state: sys::cublasStatus_t::CUBLAS_STATUS_NOT_SUPPORTED,
            wavesCount: 0.0,
            reserved: [0; 4],
        };
        let (mut found, mut count) = (vec![empty; most], 0);
        // SAFETY: the attribute is a u64 and is copied; the descriptors came from the library;
        // there is space for as many results as requested.
        let result = unsafe {
            let bytes = WORKSPACE as u64;
            let set = result::set_matmul_pref_attribute(
                preference,
                CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                (&raw const bytes).cast(),
                size_of::<u64>(),
            );
            let queried = set.and_then(|()| {
                sys::cublasLtMatmulAlgoGetHeuristic(
                    self.handle,
                    description,
                    w,
                    x,
                    out,
                    out,
                    preference,
                    most as i32,
                    found.as_mut_ptr(),
                    &mut count,
                )
                .result()
            });
            let _ = result::destroy_matmul_pref(preference);
            queried
        };
        result.map_err(|e| blas_error("cublasLtMatmulAlgoGetHeuristic", e))?;
        found.truncate(count.max(0) as usize);
        found.retain(|found| found.state == sys::cublasStatus_t::CUBLAS_STATUS_SUCCESS);
        Ok(found.into_iter().map(|found| found.algo).collect())
    }
}

impl Operands {
    fn of(shape: ProductKey) -> Result<Operands> {
        use sys::cublasLtMatmulMatrixScale_t::CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F;
        let ProductKey { rows, inputs, outputs, elem, out_elem } = shape;
        let layout = |kind, rows: usize, cols: usize| {
            result::create_matrix_layout(kind, rows as u64, cols as u64, rows as i64)
                .map_err(|e| blas_error("cublasLtMatrixLayoutCreate", e))
        };
        // f32 products do not use TF32, which would lose precision.
        let compute = sys::cublasComputeType_t::CUBLAS_COMPUTE_32F;
        let description = result::create_matmul_desc(compute, sys::cudaDataType_t::CUDA_R_32F)
            .map_err(|e| blas_error("cublasLtMatmulDescCreate", e))?;
        let w = layout(data_type(elem)?, inputs, outputs)?;
        let x = layout(data_type(elem)?, inputs, rows)?;
        let out = layout(data_type(out_elem)?, outputs, rows)?;
        let operands = Operands { description, w, x, out };
        /// `CUBLAS_OP_T`.
        const TRANSPOSED: i32 = 1;
        operands.set(CUBLASLT_MATMUL_DESC_TRANSA, TRANSPOSED)?;
        if elem == Elem::E4M3 {
            /// Any address that is not null: the heuristic only checks that there is one.
            const PLACEHOLDER: u64 = 16;
            let mode = CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F as i32;
            operands.set(CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode)?;
            operands.set(CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode)?;
            operands.set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, PLACEHOLDER)?;
            operands.set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, PLACEHOLDER)?;
        }
        Ok(operands)
    }

    /// Sets an attribute of the product: an i32 or an address.
    fn set<V: Copy>(&self, attribute: cublasLtMatmulDescAttributes_t, value: V) -> Result<()> {
        // SAFETY: the value is copied; the library compares its size with the attribute's.
        unsafe {
            result::set_matmul_desc_attribute(
                self.description,
                attribute,
                (&raw const value).cast(),
                size_of::<V>(),
            )
        }
        .map_err(|e| blas_error("cublasLtMatmulDescSetAttribute", e))
    }
}

impl Drop for Operands {
    fn drop(&mut self) {
        // SAFETY: the descriptors came from the library and are not used again. Failures are
        // ignored.
        unsafe {
            let _ = result::destroy_matmul_desc(self.description);
            for layout in [self.w, self.x, self.out] {
                let _ = result::destroy_matrix_layout(layout);
            }
        }
    }
}

impl Drop for Blas {
    fn drop(&mut self) {
        self.plans.clear();
        // SAFETY: the handle came from the library and is not used again.
        let _ = unsafe { result::destroy_handle(self.handle) };
    }
}

fn data_type(elem: Elem) -> Result<sys::cudaDataType_t> {
    match elem {
        Elem::F32 => Ok(sys::cudaDataType_t::CUDA_R_32F),
        Elem::F16 => Ok(sys::cudaDataType_t::CUDA_R_16F),
        Elem::BF16 => Ok(sys::cudaDataType_t::CUDA_R_16BF),
        Elem::E4M3 => Ok(sys::cudaDataType_t::CUDA_R_8F_E4M3),
        other => Err(Error::Unsupported(format!("a product of {other:?}"))),
    }
}

fn blas_error(call: &str, error: CublasError) -> Error {
    Error::Device(format!("{call}: {:?}", error.0))
}
