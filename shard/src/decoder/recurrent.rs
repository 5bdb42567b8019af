//! Recurrent layers: their weights, their buffers, and the order of their operations.

use millrace_backend::{
    Backend, ChannelRecurrence, Convolution, GateFunction, Norm, Recurrence, RecurrenceRule, RecurrentHeads,
    Result, RowParts,
};
use millrace_model::step_sizes::LayerBuffer;
use millrace_model::{RecurrentLayer, RecurrentRule};

use super::projection::Projection;
use super::step_context::{ByWidth, StepContext};
use crate::Error;

/// The constants of a recurrent layer.
pub(super) struct RecurrentWeights<B: Backend> {
    pub(super) input: Projection<B>,                // [projected_cols, hidden]
    pub(super) conv: B::Vector,                     // [taps, channels]
    pub(super) conv_bias: Option<B::Vector>,        // [channels]
    pub(super) rates: Option<RateWeights<B>>,       // unless the layer is only a convolution
    pub(super) low_rank: Option<LowRankWeights<B>>, // if features of keys have rates of their own
    pub(super) norm: Option<Norm<B::Vector>>,       // [value_dim], or [heads * value_dim]
    pub(super) out: Projection<B>,                  // [hidden, heads * value_dim]
}

/// The constants of the rates at which the matrices of heads change.
pub(super) struct RateWeights<B: Backend> {
    pub(super) matrix: B::Matrix,       // [rate_cols, hidden]
    pub(super) decay_log: B::Vector,    // [heads]
    pub(super) step_bias: B::Vector,    // [heads], or [heads * key_dim]
    pub(super) skip: Option<B::Vector>, // [heads]
}

/// The constants of rates and gates that are products of two matrices each. The bias of these rates
/// is in [`RateWeights`].
pub(super) struct LowRankWeights<B: Backend> {
    pub(super) rate_down: B::Matrix,                  // [rank, hidden]
    pub(super) rate_up: B::Matrix,                    // [heads * key_dim, rank]
    pub(super) gates: Option<(B::Matrix, B::Matrix)>, // [rank, hidden], [heads * value_dim, rank]
}

/// The buffers of recurrent layers, for up to `t` tokens.
pub(super) struct RecurrentBuffers<B: Backend> {
    /// Queries, keys, values and gates, `[t, projected_cols]`.
    projected: ByWidth<B::Buf>,
    /// The results of the convolution, `[t, channels]`.
    mixed: ByWidth<B::Buf>,
    /// `[t, rate_cols]`
    rates: ByWidth<B::Buf>,
    /// The features between two matrices, `[t, rank]`.
    low_rank: ByWidth<B::Buf>,
    /// `[t, heads * key_dim]`
    channel_rates: ByWidth<B::Buf>,
    /// The gates that are products of two matrices, `[t, heads * value_dim]`.
    low_rank_gates: ByWidth<B::Buf>,
    /// The results of all heads, `[t, heads * value_dim]`.
    results: ByWidth<B::Buf>,
}

/// Where a recurrent layer leaves its result.
pub(super) struct RecurrentOutput<'a, B: Backend> {
    /// `[tokens, hidden]`
    pub(super) branch: &'a mut B::Buf,
    /// The low-rank features of adapters, as working memory.
    pub(super) features: &'a mut ByWidth<B::Buf>,
}

impl<B: Backend> RecurrentBuffers<B> {
    /// Allocates the buffers with `buffers`.
    pub(super) fn new(buffers: impl Fn(LayerBuffer) -> Result<ByWidth<B::Buf>>) -> Result<Self> {
        Ok(RecurrentBuffers {
            projected: buffers(LayerBuffer::Projected)?,
            mixed: buffers(LayerBuffer::Mixed)?,
            rates: buffers(LayerBuffer::Rates)?,
            low_rank: buffers(LayerBuffer::LowRank)?,
            channel_rates: buffers(LayerBuffer::ChannelRates)?,
            low_rank_gates: buffers(LayerBuffer::LowRankGates)?,
            results: buffers(LayerBuffer::RecurrentResults)?,
        })
    }

    /// `branch = layer(x)`, `[tokens, hidden]`. Updates the states of the step's sequences.
    pub(super) fn compute(
        &mut self,
        step: &StepContext<'_, B>,
        (spec, w): (&RecurrentLayer, &RecurrentWeights<B>),
        x: &B::Buf,
        states: &mut B::States,
        RecurrentOutput { branch, features }: RecurrentOutput<'_, B>,
    ) -> std::result::Result<(), Error> {
        let (context, &StepContext { backend, step, tokens: n, .. }) = (step, step);
        let projected = self.projected.of(spec.projected_cols());
        w.input.compute(context, x, features, projected)?; // [n, projected_cols]
        let (act, gated) = match spec.rule {
            RecurrentRule::Delta(act)
            | RecurrentRule::ChannelDelta { act, .. }
            | RecurrentRule::StateSpace { act, .. } => (Some(act), false),
            RecurrentRule::Convolution => (None, true),
        };
        let convolution = Convolution { weight: &w.conv, bias: w.conv_bias.as_ref(), act, gated };
        let mixed = self.mixed.of(spec.channels());
        backend.convolve(step, projected, &convolution, states, mixed)?; // [n, channels]
        if spec.factors.gate != 1.0 {
            // Only the gates of these columns are read from here on.
            backend.scale(n, spec.factors.gate, projected)?;
        }
        let results = match &w.rates {
            None => mixed,
            Some(of_rates) => {
                let rates = self.rates.of(spec.rate_cols());
                backend.linear(n, x, &of_rates.matrix, None, rates)?; // [n, rate_cols]
                if spec.factors.rate != 1.0 {
                    backend.scale(n, spec.factors.rate, rates)?;
                }
                let RateWeights { decay_log, step_bias, skip, .. } = of_rates;
                let rule = match (spec.rule, skip) {
                    (RecurrentRule::StateSpace { step_limits: limits, .. }, Some(skip)) => {
                        RecurrenceRule::StateSpace { skip, limits }
                    }
                    _ => RecurrenceRule::Delta,
                };
                let (heads, results) = (spec.heads, self.results.of(spec.heads.value_cols()));
                if let Some(LowRankWeights { rate_down, rate_up, .. }) = &w.low_rank {
                    let low = self.low_rank.of(spec.rank());
                    let of_channels = self.channel_rates.of(spec.channel_rates());
                    backend.linear(n, x, rate_down, None, low)?; // [n, rank]
                    backend.linear(n, low, rate_up, None, of_channels)?; // [n, heads * key_dim]
                    let (strengths, rates, x) = (&*rates, &*of_channels, &*mixed);
                    let recurrence = ChannelRecurrence { heads, decay_log, step_bias, x, strengths, rates };
                    backend.recur_by_channel(step, &recurrence, states, results)?; // [n, heads * value_dim]
                } else {
                    let recurrence = Recurrence { heads, rule, decay_log, step_bias };
                    backend.recur(step, (mixed, rates), &recurrence, states, results)?; // [n, heads * value_dim]
                }
                results
            }
        };
        let low_rank_gates = w.low_rank.as_ref().and_then(|w| w.gates.as_ref());
        let (gates, function) = match low_rank_gates {
            Some((down, up)) => {
                let (low, gates) =
                    (self.low_rank.of(spec.rank()), self.low_rank_gates.of(spec.low_rank_gates()));
                backend.linear(n, x, down, None, low)?; // [n, rank]
                backend.linear(n, low, up, None, gates)?; // [n, heads * value_dim]
                ((&*gates, 0), GateFunction::Sigmoid)
            }
            None => ((&*projected, spec.heads.cols()), GateFunction::Silu),
        };
        let RecurrentHeads { key_heads, heads, value_dim, .. } = spec.heads;
        if spec.result.gates_come_first() {
            backend.multiply_gates(n, gates, function, results)?;
        }
        if let Some(norm) = &w.norm {
            let count = if spec.result.is_of_groups() { key_heads } else { heads };
            let parts = RowParts { first: 0, count, cols: heads * value_dim / count };
            backend.norm_parts(n, results, parts, norm)?;
        }
        if spec.result.is_gated() && !spec.result.gates_come_first() {
            backend.multiply_gates(n, gates, function, results)?;
        }
        w.out.compute(context, results, features, branch)?; // [n, hidden]
        if spec.factors.out != 1.0 {
            backend.scale(n, spec.factors.out, branch)?;
        }
        Ok(())
    }
}
