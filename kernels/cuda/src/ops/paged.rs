//! The operands that prologue and attention share: the paged cache of one layer, and where the
//! tokens of a step lie in it.

use millrace_backend::{Error, KeyWindow, Result};

use super::shared::attention_h::{ScoreParams, SequenceParams};
use super::sizes::{countable, int};
use crate::{Elem, View};

/// One layer's keys and values, each `[blocks, kv_heads, block_size, head_dim]`.
#[derive(Debug, Clone, Copy)]
pub struct PagedKv<'a> {
    /// Keys: f32, f16, bf16, e4m3 or i8.
    pub keys: View<'a>,
    /// Values, of the type of the keys.
    pub values: View<'a>,
    /// For e4m3 and i8: the scale of each row of keys and of values, f32 `[blocks, kv_heads,
    /// block_size]`.
    pub scales: Option<(View<'a>, View<'a>)>,
    /// Blocks of the pool.
    pub blocks: usize,
    /// Tokens per block.
    pub block_size: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    /// Features per head.
    pub head_dim: usize,
}

impl PagedKv<'_> {
    /// Checks that the views are as long as the shape says, and that there are scales if and only
    /// if the type needs them.
    ///
    /// # Errors
    /// [`Error::Shape`] if not, [`Error::Unsupported`] for a type that is not cached.
    pub fn check(&self) -> Result<()> {
        let elem = self.keys.elem();
        countable(&[self.blocks, self.block_size, self.kv_heads, self.head_dim])?;
        let rows = self.blocks * self.block_size * self.kv_heads;
        self.keys.expect("keys", elem, rows * self.head_dim)?;
        self.values.expect("values", elem, rows * self.head_dim)?;
        match (elem, self.scales) {
            (Elem::F32 | Elem::F16 | Elem::BF16, None) => Ok(()),
            (Elem::E4M3 | Elem::I8, Some((keys, values))) => {
                keys.expect("scales of keys", Elem::F32, rows)?;
                values.expect("scales of values", Elem::F32, rows)
            }
            (Elem::E4M3 | Elem::I8, None) => Err(Error::Shape(format!("a cache of {elem:?} needs scales"))),
            (Elem::F32 | Elem::F16 | Elem::BF16, Some(_)) => {
                Err(Error::Shape(format!("a cache of {elem:?} has no scales")))
            }
            _ => Err(Error::Unsupported(format!("a cache of {elem:?}"))),
        }
    }
}

/// The sequences of a step. The tokens of sequence s are `query_start[s]..query_start[s + 1]` of
/// the step, and the last of them has the position `context[s] - 1`.
///
/// The numbers on the device were validated when the step was uploaded; the kernels trust them.
#[derive(Debug, Clone, Copy)]
pub struct SequenceBatch<'a> {
    /// Sequences.
    pub rows: usize,
    /// Tokens of the step.
    pub tokens: usize,
    /// i32 `[rows + 1]`, ascending to at most `tokens`; a sequence may have no token. The first
    /// number is 0, or larger if the step's first sequences are left out.
    pub query_start: View<'a>,
    /// i32 `[rows]`: keys of the sequence, including those of this step.
    pub context: View<'a>,
    /// i32 `[rows, table_stride]`: the block that holds positions `[b * block_size, (b + 1) *
    /// block_size)`.
    pub tables: View<'a>,
    /// Entries from one sequence's table to the next one's.
    pub table_stride: usize,
    /// An upper bound of a sequence's tokens in this step.
    pub max_queries: usize,
    /// An upper bound of a sequence's keys.
    pub max_context: usize,
}

impl SequenceBatch<'_> {
    /// Checks the lengths of the views.
    ///
    /// # Errors
    /// [`Error::Shape`] if one is too short.
    pub fn check(&self) -> Result<()> {
        countable(&[self.rows, self.tokens, self.table_stride, self.max_context])?;
        self.query_start.expect("query_start", Elem::I32, self.rows + 1)?;
        self.context.expect("context", Elem::I32, self.rows)?;
        self.tables.expect("tables", Elem::I32, self.rows * self.table_stride)
    }

    /// The sequences as kernels take them, with the window and the prefixes of `scores`.
    pub(super) fn params(&self, scores: &AttentionScores<'_>) -> SequenceParams {
        SequenceParams {
            query_start: self.query_start.into(),
            context: self.context.into(),
            tables: self.tables.into(),
            prefix: scores.prefix.into(),
            rows: int(self.rows),
            table_stride: int(self.table_stride),
            // Chunks are negative.
            window: scores.window.map_or(i32::MAX, |window| {
                let len = i32::try_from(window.len()).unwrap_or(i32::MAX);
                if matches!(window, KeyWindow::Chunk(_)) { -len } else { len }
            }),
        }
    }
}

/// The terms that turn scores into weights, and the keys that a query at position i sees.
///
/// `score = cap(scale * q·k) + alibi[head] * (j - i)`, where `cap(x) = soft_cap * tanh(x /
/// soft_cap)`. The softmax has `exp(sink[head])` more in its denominator. The query sees j with `j
/// <= i` in the window, and every `j < prefix` of its sequence if i itself lies in the
/// prefix.
#[derive(Debug, Clone, Copy)]
pub struct AttentionScores<'a> {
    /// Factor on the dot products.
    pub scale: f32,
    /// Bound on scores (Gemma 2).
    pub soft_cap: Option<f32>,
    /// The limit on the keys that a query sees.
    pub window: Option<KeyWindow>,
    /// Slope per head, f32 `[heads]` (Press et al., "Train Short, Test Long").
    pub alibi: Option<View<'a>>,
    /// Attention sink per head, f32 `[heads]`: the logit of a key without a value (Xiao et al.; as
    /// in GPT-OSS).
    pub sinks: Option<View<'a>>,
    /// Length of each sequence's prefix, whose tokens see each other in both directions, i32
    /// `[rows]`.
    pub prefix: Option<View<'a>>,
}

impl AttentionScores<'_> {
    /// The part of the scores that does not concern sequences, as kernels take it.
    pub(super) fn params(&self) -> ScoreParams {
        ScoreParams {
            alibi: self.alibi.into(),
            sinks: self.sinks.into(),
            scale: self.scale,
            soft_cap: self.soft_cap.unwrap_or(0.0),
        }
    }
}
