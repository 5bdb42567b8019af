//! The table of the rows' sampling parameters, as the kernels read it.

use millrace_backend::{Error, Result, SamplingParams};

use crate::ops::shared::sample_row_h::{ADJUSTED, COLUMNS, DO_SAMPLE, MAX_TOKENS, SampleColumn, WARPED};

/// The sampling of one row: its parameters, and the places on the device of its sequence's data.
#[derive(Debug, Clone, Copy)]
pub struct RowSampling<'a> {
    /// Parameters of the choice. Their biases are not read: they lie on the device, see `biases`.
    pub params: &'a SamplingParams,
    /// Tokens of the sequence so far; the new one will have this position.
    pub tokens: usize,
    /// Tokens of the prompt.
    pub prompt_len: usize,
    /// The sequence's row of [`super::SampleRows::history`], which is read if a penalty or a
    /// watermark is on.
    pub slot: usize,
    /// The sequence's row of [`super::SampleRows::masks`], if only some tokens are allowed.
    pub mask: Option<usize>,
    /// The sequence's biases among [`super::SampleRows::biases`]: the first one and their number.
    /// They are added in this order. A bias of minus infinity makes a token impossible, as for end
    /// tokens that would come too early.
    pub biases: (usize, usize),
}

/// The sizes of the memory that goes with a table; rows must stay within them.
#[derive(Debug, Clone, Copy, Default)]
pub struct SampleBounds {
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
/// [`Error::Shape`] for a row that reaches outside of `bounds`, or if the table does not
/// hold the rows.
pub fn encode<'a>(
    rows: impl ExactSizeIterator<Item = RowSampling<'a>>,
    bounds: &SampleBounds,
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

/// The words of a row that takes the most likely token, without anything else.
pub fn greedy() -> [u32; COLUMNS] {
    let params = SamplingParams::default();
    words(&RowSampling { params: &params, tokens: 0, prompt_len: 0, slot: 0, mask: None, biases: (0, 0) })
}

fn check(row: usize, c: &RowSampling<'_>, bounds: &SampleBounds) -> Result<()> {
    let p = c.params;
    let looks_back = is_penalized(p) || p.watermark.is_some();
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

fn is_penalized(p: &SamplingParams) -> bool {
    p.repetition_penalty != 1.0 || p.frequency_penalty != 0.0 || p.presence_penalty != 0.0
}

/// The words of a row, by [`SampleColumn`].
fn words(c: &RowSampling<'_>) -> [u32; COLUMNS] {
    let p = c.params;
    let floor = if p.min_p > 0.0 { p.min_p.min(1.0).ln() } else { f32::NEG_INFINITY };
    // A watermark follows from the token before.
    let watermark = p.watermark.filter(|_| c.tokens > 0);
    let adjusted = is_penalized(p) || watermark.is_some() || c.biases.1 > 0 || c.mask.is_some();
    let flag = |is_set: bool, bit: usize| if is_set { bit as u32 } else { 0 };
    let mut words = [0; COLUMNS];
    let mut set = |column: SampleColumn, word: u32| words[column as usize] = word;
    set(
        SampleColumn::Flags,
        flag(p.do_sample, DO_SAMPLE) | flag(p.warped_logprobs, WARPED) | flag(adjusted, ADJUSTED),
    );
    set(SampleColumn::Temperature, p.temperature.to_bits());
    set(SampleColumn::TopK, p.top_k.min(MAX_TOKENS as u32));
    set(SampleColumn::TopP, p.top_p.to_bits());
    // The host takes the logarithm, so that host and device agree on a token at the edge.
    set(SampleColumn::Floor, floor.to_bits());
    set(SampleColumn::TypicalP, p.typical_p.to_bits());
    set(SampleColumn::Repetition, p.repetition_penalty.to_bits());
    set(SampleColumn::Frequency, p.frequency_penalty.to_bits());
    set(SampleColumn::Presence, p.presence_penalty.to_bits());
    set(SampleColumn::SeedLow, p.seed as u32);
    set(SampleColumn::SeedHigh, (p.seed >> 32) as u32);
    set(SampleColumn::Position, c.tokens as u32);
    set(SampleColumn::PromptLen, c.prompt_len.min(c.tokens) as u32);
    set(SampleColumn::Slot, c.slot as u32);
    set(SampleColumn::TopN, p.top_n);
    set(SampleColumn::MaskRow, c.mask.map_or(u32::MAX, |mask| mask as u32));
    set(SampleColumn::BiasStart, c.biases.0 as u32);
    set(SampleColumn::BiasCount, c.biases.1 as u32);
    // The host compares a word with gamma * 2^32.
    let below = watermark.map_or(0, |of| (f64::from(of.gamma) * 2f64.powi(32)).ceil() as u32);
    set(SampleColumn::GreenBelow, below);
    set(SampleColumn::GreenBias, watermark.map_or(0, |of| of.delta.to_bits()));
    words
}
