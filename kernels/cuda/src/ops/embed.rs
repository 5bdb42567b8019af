//! Selection of rows by number: embeddings by token, activations by index.

use millrace_backend::{Error, Result};

use super::select::kernel;
use super::shared::embed::{EmbedParams, GatherRowsParams};
use super::sizes::{countable, int, rowwise_grid};
use crate::params::Kernel;
use crate::{Device, Elem, View};

/// The operands of [`embed`].
#[derive(Debug, Clone, Copy)]
pub struct EmbedTokens<'a> {
    /// Number of tokens; 0 is allowed and does nothing.
    pub tokens: usize,
    /// Features of a row.
    pub cols: usize,
    /// i32 `[tokens]`.
    pub ids: View<'a>,
    /// Rows `first..first + rows` of the vocabulary, `[rows, cols]`, f32, f16 or bf16.
    pub table: View<'a>,
    /// The token that the table's first row belongs to.
    pub first: usize,
    /// Rows of the table.
    pub rows: usize,
    /// The factor on the rows: 1, or the square root of `cols` (Gemma).
    pub factor: f32,
    /// `[tokens, cols]`, f32, f16 or bf16.
    pub out: View<'a>,
}

/// Computes `out[t] = factor * table[ids[t] - first]`. A token whose row the table does not hold
/// gets zeros.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, [`Error::Unsupported`] for a type that
/// has no kernel, or an error of the launch.
pub fn embed(device: &Device, e: &EmbedTokens<'_>) -> Result<()> {
    run(device, e, false)
}

/// Does the same by the plain kernel, one element at a time.
///
/// # Errors
/// As for [`embed`].
pub fn embed_plain(device: &Device, e: &EmbedTokens<'_>) -> Result<()> {
    run(device, e, true)
}

fn run(device: &Device, e: &EmbedTokens<'_>, plain: bool) -> Result<()> {
    countable(&[e.tokens, e.cols, e.first, e.rows])?;
    e.ids.expect("ids", Elem::I32, e.tokens)?;
    e.table.expect("table", e.table.elem(), e.rows * e.cols)?;
    e.out.expect("out", e.out.elem(), e.tokens * e.cols)?;
    let per_vector = e.table.elem().per_vector().min(e.out.elem().per_vector());
    let aligned = |view: View<'_>| view.address().is_multiple_of((per_vector * view.elem().size()) as u64);
    let plain = plain || !e.cols.is_multiple_of(per_vector) || !aligned(e.table) || !aligned(e.out);
    let kernel = embed_kernel(e.table.elem(), e.out.elem(), plain)?;
    if e.tokens == 0 || e.cols == 0 {
        return Ok(());
    }
    let units = if plain { e.cols } else { e.cols / per_vector };
    let params = EmbedParams {
        out: e.out.into(),
        table: e.table.into(),
        tokens: e.ids.into(),
        first: int(e.first),
        rows: int(e.rows),
        cols: int(e.cols),
        factor: e.factor,
    };
    // SAFETY: the views were checked; the kernel reads only rows that the table holds.
    unsafe { device.launch(kernel, rowwise_grid(e.tokens, units), &params) }
}

fn embed_kernel(table: Elem, out: Elem, plain: bool) -> Result<Kernel<EmbedParams>> {
    macro_rules! kernels {
        ($name:literal) => {
            match (table, out) {
                (Elem::F32, Elem::F32) => kernel!(EmbedParams, "embed", concat!($name, "_f32_f32")),
                (Elem::F32, Elem::F16) => kernel!(EmbedParams, "embed", concat!($name, "_f32_f16")),
                (Elem::F32, Elem::BF16) => kernel!(EmbedParams, "embed", concat!($name, "_f32_bf16")),
                (Elem::F16, Elem::F32) => kernel!(EmbedParams, "embed", concat!($name, "_f16_f32")),
                (Elem::F16, Elem::F16) => kernel!(EmbedParams, "embed", concat!($name, "_f16_f16")),
                (Elem::F16, Elem::BF16) => kernel!(EmbedParams, "embed", concat!($name, "_f16_bf16")),
                (Elem::BF16, Elem::F32) => kernel!(EmbedParams, "embed", concat!($name, "_bf16_f32")),
                (Elem::BF16, Elem::F16) => kernel!(EmbedParams, "embed", concat!($name, "_bf16_f16")),
                (Elem::BF16, Elem::BF16) => kernel!(EmbedParams, "embed", concat!($name, "_bf16_bf16")),
                (from, to) => {
                    return Err(Error::Unsupported(format!("embeddings of type {from:?} as {to:?}")));
                }
            }
        };
    }
    Ok(if plain { kernels!("embed_plain") } else { kernels!("embed") })
}

/// The operands of [`gather_rows`].
#[derive(Debug, Clone, Copy)]
pub struct GatherRows<'a> {
    /// Rows of the output; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// i32 `[rows]`. Divided by [`GatherRows::divisor`], the numbers are below the number of rows
    /// of `x`, or negative.
    pub index: View<'a>,
    /// 1, or the choices per token where the index names pairs of a token and one of its experts.
    pub divisor: usize,
    /// `[_, cols]`.
    pub x: View<'a>,
    /// `[rows, cols]`, of the type of `x`.
    pub out: View<'a>,
}

/// Computes `out[i] = x[index[i] / divisor]`. A negative index gives zeros.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, or an error of the launch.
pub fn gather_rows(device: &Device, g: &GatherRows<'_>) -> Result<()> {
    gather_rows_by(device, g, false)
}

/// Does the same by the plain kernel, one element at a time.
///
/// # Errors
/// As for [`gather_rows`].
pub fn gather_rows_plain(device: &Device, g: &GatherRows<'_>) -> Result<()> {
    gather_rows_by(device, g, true)
}

fn gather_rows_by(device: &Device, g: &GatherRows<'_>, plain: bool) -> Result<()> {
    let elem = g.x.elem();
    countable(&[g.rows, g.cols, g.divisor])?;
    if g.divisor == 0 {
        return Err(Error::Shape("an index cannot be divided by 0".to_owned()));
    }
    g.index.expect("index", Elem::I32, g.rows)?;
    g.out.expect("out", elem, g.rows * g.cols)?;
    if g.rows == 0 || g.cols == 0 {
        return Ok(());
    }
    let plain = plain || !g.x.is_vectorizable(g.cols) || !g.out.is_vectorizable(g.cols);
    let (kernel, units) = match (plain, elem.size()) {
        (false, size) => (kernel!(GatherRowsParams, "embed", "gather_16"), g.cols * size / 16),
        (true, 4) => (kernel!(GatherRowsParams, "embed", "gather_4"), g.cols),
        (true, 2) => (kernel!(GatherRowsParams, "embed", "gather_2"), g.cols),
        _ => return Err(Error::Unsupported(format!("rows of {} elements of type {elem:?}", g.cols))),
    };
    let params = GatherRowsParams {
        out: g.out.into(),
        x: g.x.into(),
        index: g.index.into(),
        units: int(units),
        divisor: int(g.divisor),
    };
    // SAFETY: the views were checked; indices are valid by contract, like all numbers that lie on
    // the device.
    unsafe { device.launch(kernel, rowwise_grid(g.rows, units), &params) }
}
