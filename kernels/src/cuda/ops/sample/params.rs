//! The parameters of the rows, as the kernels read them.

use crate::cuda::Elem;
use crate::sampling::SamplingParams;
use crate::{Error, Result};

/// Columns of the table: see `Column` in `sample_row.cuh`, which has the same order.
pub const COLUMNS: usize = 20;

/// The column of how many top tokens a row wants.
pub(super) const TOP_N: usize = 14;

/// The largest vocabulary: ids are the low 20 bits of the kernels' keys.
pub const MOST_TOKENS: usize = 1 << 20;

/// One row: how to choose, and where on the device the rest lies.
#[derive(Debug, Clone, Copy)]
pub struct Choice<'a> {
    /// How to choose. Its biases are not read: they lie on the device, see `biases`.
    pub params: &'a SamplingParams,
    /// Tokens of the sequence so far; the new one will have this position.
    pub tokens: usize,
    /// How many of them are the prompt.
    pub prompt_len: usize,
    /// The sequence's row of [`super::Rows::history`], which is read if a penalty or a watermark is on.
    pub slot: usize,
    /// The sequence's row of [`super::Rows::masks`], if only some tokens are allowed.
    pub mask: Option<usize>,
    /// The sequence's biases among [`super::Rows::biases`]: the first one and how many. They are added in this order. A bias of minus infinity
    /// makes a token impossible: end tokens that would come too early are such.
    pub biases: (usize, usize),
}

/// What the memory that goes with a table holds; rows must stay within it.
#[derive(Debug, Clone, Copy, Default)]
pub struct Bounds {
    /// Rows of the history, and tokens that each has room for.
    pub history: (usize, usize),
    /// Rows of the masks.
    pub masks: usize,
    /// Number of biases.
    pub biases: usize,
    /// The most top tokens that a row may ask for.
    pub top_n: usize,
}

/// Fills `table`, u32 `[COLUMNS, stride]`, with the rows' parameters.
///
/// # Errors
/// [`Error::Shape`] for a row that reaches outside of `bounds`, or if the table does not hold the rows.
pub fn encode<'a>(
    rows: impl ExactSizeIterator<Item = Choice<'a>>,
    bounds: &Bounds,
    stride: usize,
    table: &mut [u32],
) -> Result<()> {
    if rows.len() > stride || table.len() < COLUMNS * stride {
        return Err(Error::Shape(format!(
            "a table of {} words and stride {stride} for {} rows",
            table.len(),
            rows.len()
        )));
    }
    for (row, choice) in rows.enumerate() {
        check(row, &choice, bounds)?;
        for (column, word) in words(&choice).into_iter().enumerate() {
            table[column * stride + row] = word;
        }
    }
    Ok(())
}

/// The words of a row that takes the most likely token and wants nothing else.
pub fn greedy() -> [u32; COLUMNS] {
    let params = SamplingParams::default();
    words(&Choice { params: &params, tokens: 0, prompt_len: 0, slot: 0, mask: None, biases: (0, 0) })
}

/// The type of the table's words.
pub const ELEM: Elem = Elem::U32;

fn check(row: usize, c: &Choice<'_>, bounds: &Bounds) -> Result<()> {
    let p = c.params;
    let looks_back = is_penalised(p) || p.watermark.is_some();
    let (slots, longest) = bounds.history;
    let what = if looks_back && (c.slot >= slots || c.tokens > longest) {
        "its history"
    } else if c.mask.is_some_and(|mask| mask >= bounds.masks) {
        "its mask"
    } else if c.biases.0.checked_add(c.biases.1).is_none_or(|end| end > bounds.biases) {
        "its biases"
    } else if p.top_n as usize > bounds.top_n {
        "its top tokens"
    } else if u32::try_from(c.tokens).is_err() || c.slot > i32::MAX as usize {
        "its position"
    } else {
        return Ok(());
    };
    Err(Error::Shape(format!("row {row} to sample: {what} are not within the memory for them")))
}

fn is_penalised(p: &SamplingParams) -> bool {
    p.repetition_penalty != 1.0 || p.frequency_penalty != 0.0 || p.presence_penalty != 0.0
}

fn words(c: &Choice<'_>) -> [u32; COLUMNS] {
    let p = c.params;
    let floor = if p.min_p > 0.0 { p.min_p.min(1.0).ln() } else { f32::NEG_INFINITY };
    let (top_k, top_p) = (p.top_k.min(MOST_TOKENS as u32), p.top_p);
    // It follows from the token before.
    let watermark = p.watermark.filter(|_| c.tokens > 0);
    let adjusted = is_penalised(p) || watermark.is_some() || c.biases.1 > 0 || c.mask.is_some();
    [
        u32::from(p.do_sample) | u32::from(p.warped_logprobs) << 1 | u32::from(adjusted) << 2,
        p.temperature.to_bits(),
        top_k,
        top_p.to_bits(),
        // As the host takes it, so that the two agree on a token at the edge.
        floor.to_bits(),
        p.typical_p.to_bits(),
        p.repetition_penalty.to_bits(),
        p.frequency_penalty.to_bits(),
        p.presence_penalty.to_bits(),
        p.seed as u32,
        (p.seed >> 32) as u32,
        c.tokens as u32,
        c.prompt_len.min(c.tokens) as u32,
        c.slot as u32,
        p.top_n,
        c.mask.map_or(u32::MAX, |mask| mask as u32),
        c.biases.0 as u32,
        c.biases.1 as u32,
        // As the host compares a word with gamma * 2^32.
        watermark.map_or(0, |of| (f64::from(of.gamma) * 2f64.powi(32)).ceil() as u32),
        watermark.map_or(0, |of| of.delta.to_bits()),
    ]
}
