//! Rows by number: embeddings by token, activations by index.

use super::countable;
use super::rowwise::grid;
use crate::cuda::{Args, Cost, Device, Elem, View};
use crate::{Error, Result};

/// What to look up.
#[derive(Debug, Clone, Copy)]
pub struct Embed<'a> {
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
    /// What the rows are multiplied with: 1, or the square root of `cols` (Gemma).
    pub factor: f32,
    /// `[tokens, cols]`, f32, f16 or bf16.
    pub out: View<'a>,
}

/// `out[t] = factor * table[ids[t] - first]`; zeros for a token whose row the table does not hold.
///
/// # Errors
/// [`Error::Shape`] for views that are too short, [`Error::Unsupported`] for a type that has no kernel, or what the launch fails with.
pub fn embed(device: &Device, e: &Embed<'_>) -> Result<()> {
    run(device, e, false)
}

/// The same by the obvious kernel, one element at a time.
///
/// # Errors
/// As for [`embed`].
pub fn embed_plain(device: &Device, e: &Embed<'_>) -> Result<()> {
    run(device, e, true)
}

/// What looking up `tokens` different rows costs.
pub fn embed_cost(table: Elem, out: Elem, tokens: usize, cols: usize) -> Cost {
    Cost::moving(tokens * (cols * (table.size() + out.size()) + 4))
}

fn run(device: &Device, e: &Embed<'_>, plain: bool) -> Result<()> {
    countable(&[e.tokens, e.cols, e.first, e.rows])?;
    e.ids.expect("ids", Elem::I32, e.tokens)?;
    e.table.expect("table", e.table.elem(), e.rows * e.cols)?;
    e.out.expect("out", e.out.elem(), e.tokens * e.cols)?;
    let per_vector = e.table.elem().per_vector().min(e.out.elem().per_vector());
    let aligned = |view: View<'_>| view.address().is_multiple_of((per_vector * view.elem().size()) as u64);
    let plain = plain || !e.cols.is_multiple_of(per_vector) || !aligned(e.table) || !aligned(e.out);
    let name = match (e.table.elem(), e.out.elem(), plain) {
        (Elem::F32, Elem::F32, false) => "embed_f32_f32",
        (Elem::F32, Elem::F16, false) => "embed_f32_f16",
        (Elem::F32, Elem::BF16, false) => "embed_f32_bf16",
        (Elem::F16, Elem::F32, false) => "embed_f16_f32",
        (Elem::F16, Elem::F16, false) => "embed_f16_f16",
        (Elem::F16, Elem::BF16, false) => "embed_f16_bf16",
        (Elem::BF16, Elem::F32, false) => "embed_bf16_f32",
        (Elem::BF16, Elem::F16, false) => "embed_bf16_f16",
        (Elem::BF16, Elem::BF16, false) => "embed_bf16_bf16",
        (Elem::F32, Elem::F32, true) => "embed_plain_f32_f32",
        (Elem::F32, Elem::F16, true) => "embed_plain_f32_f16",
        (Elem::F32, Elem::BF16, true) => "embed_plain_f32_bf16",
        (Elem::F16, Elem::F32, true) => "embed_plain_f16_f32",
        (Elem::F16, Elem::F16, true) => "embed_plain_f16_f16",
        (Elem::F16, Elem::BF16, true) => "embed_plain_f16_bf16",
        (Elem::BF16, Elem::F32, true) => "embed_plain_bf16_f32",
        (Elem::BF16, Elem::F16, true) => "embed_plain_bf16_f16",
        (Elem::BF16, Elem::BF16, true) => "embed_plain_bf16_bf16",
        (from, to, _) => return Err(Error::Unsupported(format!("embeddings of type {from:?} as {to:?}"))),
    };
    if e.tokens == 0 || e.cols == 0 {
        return Ok(());
    }
    let units = if plain { e.cols } else { e.cols / per_vector };
    let args = Args::new().with(e.out).with(e.table).with(e.ids).with(e.first).with(e.rows).with(e.cols);
    // SAFETY: the views were checked; the kernel reads only rows that the table holds.
    unsafe { device.launch("embed", name, grid(e.tokens, units), &args.with(e.factor)) }
}

/// Which rows to copy.
#[derive(Debug, Clone, Copy)]
pub struct Gather<'a> {
    /// Rows of the output; 0 is allowed and does nothing.
    pub rows: usize,
    /// Features of a row.
    pub cols: usize,
    /// i32 `[rows]`; divided by [`Gather::divisor`], they are below the number of rows of `x`, or negative.
    pub index: View<'a>,
    /// 1, or the choices per token where the index names pairs of a token and one of its experts.
    pub divisor: usize,
    /// `[_, cols]`.
    pub x: View<'a>,
    /// `[rows, cols]`, of the type of `x`.
    pub out: View<'a>,
}

/// `out[i] = x[index[i] / divisor]`; zeros where the index is negative.
///
/// # Errors
/// [`Error::Shape`] for views that are too short or of another type, or what the launch fails with.
pub fn gather(device: &Device, g: &Gather<'_>) -> Result<()> {
    gather_by(device, g, false)
}

/// The same by the obvious kernel, one element at a time.
///
/// # Errors
/// As for [`gather`].
pub fn gather_plain(device: &Device, g: &Gather<'_>) -> Result<()> {
    gather_by(device, g, true)
}

/// What copying `rows` different rows costs.
pub fn gather_cost(elem: Elem, rows: usize, cols: usize) -> Cost {
    Cost::moving(rows * (2 * cols * elem.size() + 4))
}

fn gather_by(device: &Device, g: &Gather<'_>, plain: bool) -> Result<()> {
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
    let plain = plain || !g.x.is_vectorisable(g.cols) || !g.out.is_vectorisable(g.cols);
    let (name, units) = match (plain, elem.size()) {
        (false, size) => ("gather_16", g.cols * size / 16),
        (true, 4) => ("gather_4", g.cols),
        (true, 2) => ("gather_2", g.cols),
        _ => return Err(Error::Unsupported(format!("rows of {} elements of type {elem:?}", g.cols))),
    };
    let args = Args::new().with(g.out).with(g.x).with(g.index).with(units).with(g.divisor);
    // SAFETY: the views were checked; indices are valid by contract, like all numbers that lie on the device.
    unsafe { device.launch("embed", name, grid(g.rows, units), &args) }
}
