//! Matrix products of the device's library (cuBLASLt on a GPU).

use millrace_backend::Result;

use super::super::elem::Elem;

/// An algorithm of the matrix library. Only the same version of the library understands it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Algorithm(pub(crate) [u64; 8]);

/// Addresses of the factors of each row of two matrices: f32, at multiples of 16 bytes.
#[derive(Debug, Clone, Copy)]
pub struct RowScales {
    /// The factors of `x`: `[rows]`.
    pub x: u64,
    /// The factors of `w`: `[outputs]`.
    pub w: u64,
}

/// One product: `out [rows, outputs] = x [rows, inputs] · (w [outputs, inputs])ᵀ`, with sums in
/// f32.
#[derive(Debug, Clone, Copy)]
pub struct Gemm {
    /// Rows of `x`; at least 1.
    pub rows: usize,
    /// Columns of `x` and `w`; at least 1.
    pub inputs: usize,
    /// Rows of `w`; at least 1.
    pub outputs: usize,
    /// Type of `x` and `w`: f32, f16, bf16, or e4m3 with row factors.
    pub elem: Elem,
    /// Type of `out`: the type of `x` or f32; for e4m3 f32, f16 or bf16.
    pub out_elem: Elem,
    /// Address of `x`.
    pub x: u64,
    /// Address of `w`.
    pub w: u64,
    /// Address of `out`.
    pub out: u64,
    /// Factors of the rows of `x` and `w`: given for e4m3 and only for it.
    pub scales: Option<RowScales>,
    /// The algorithm. If it is missing or does not fit, the library's first choice is used.
    pub algorithm: Option<Algorithm>,
}

impl Gemm {
    /// The shape of a product of FP8 matrices with a factor per row. The addresses are
    /// placeholders, for questions that depend on the shape alone.
    pub(crate) fn scaled_fp8(rows: usize, inputs: usize, outputs: usize, out_elem: Elem) -> Gemm {
        let scales = Some(RowScales { x: 16, w: 16 });
        let elem = Elem::E4M3;
        Gemm { rows, inputs, outputs, elem, out_elem, x: 0, w: 0, out: 0, scales, algorithm: None }
    }
}

/// The part of [`super::interface::Driver`] for products by the device's library.
pub trait MatrixLibrary {
    /// Multiplies with the device's matrix library.
    ///
    /// # Safety
    /// The operands lie in allocations and are as long as the shape says.
    unsafe fn gemm(&self, product: &Gemm) -> Result<()>;
    /// The name and version of the matrix library; `None` if it offers no choice of algorithms.
    fn product_library(&self) -> Option<String> {
        None
    }
    /// Returns up to `most` algorithms for a product, the most promising first. Only the shape of
    /// the product counts. The list is empty for e4m3 if the device or the library has no such
    /// products.
    fn algorithms(&self, _product: &Gemm, _most: usize) -> Result<Vec<Algorithm>> {
        Ok(Vec::new())
    }
    /// Whether the library can use the algorithm that the product asks for.
    fn supports_algorithm(&self, _product: &Gemm) -> Result<bool> {
        Ok(true)
    }
}
