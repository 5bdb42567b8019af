//! The specification of recurrent layers, and the places of their weights.
//!
//! All kinds of recurrent layers share the slots of their weights, and the names of blocks of
//! features: a layer projects the residual stream to queries, keys, values and gates, convolves all
//! of them but the gates, and applies a rule to the result.

use millrace_backend::{Activation, RecurrentHeads, StateSpec};

/// The specification of a recurrent layer.
#[derive(Debug, Clone, PartialEq)]
pub struct RecurrentLayer {
    /// The heads. A layer that is only a convolution has a head of one feature for each channel.
    pub heads: RecurrentHeads,
    /// The rule.
    pub rule: RecurrentRule,
    /// Tokens that the convolution sees, the current one included.
    pub taps: usize,
    /// Whether the convolution has a bias.
    pub conv_bias: bool,
    /// Whether the projection to queries, keys, values and gates has a bias.
    pub in_bias: bool,
    /// The gates of the result, and its norm.
    pub result: ResultPlan,
    /// Whether the output projection has a bias.
    pub out_bias: bool,
    /// Factors on what the layer projects (Falcon-H1).
    pub factors: ProjectionFactors,
}

/// Factors on the projections of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ProjectionFactors {
    /// Factor on queries before the convolution.
    pub query: f32,
    /// Factor on keys before the convolution.
    pub key: f32,
    /// Factor on values before the convolution.
    pub value: f32,
    /// Factor on the gates of the result.
    pub gate: f32,
    /// Factor on strengths and rates.
    pub rate: f32,
    /// Factor on the output.
    pub out: f32,
}

impl ProjectionFactors {
    /// Factors that change nothing.
    pub const NONE: Self =
        ProjectionFactors { query: 1.0, key: 1.0, value: 1.0, gate: 1.0, rate: 1.0, out: 1.0 };
}

/// The rule of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum RecurrentRule {
    /// The gated delta rule (Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta
    /// Rule"), after a convolution with this activation function.
    Delta(Activation),
    /// The gated delta rule with a decay of each feature of the keys (Kimi Team, "Kimi Linear"),
    /// after a convolution with this activation function. Rates and gates are products of two
    /// matrices each, and the gates are sigmoids.
    ChannelDelta {
        /// The activation function after the convolution.
        act: Activation,
        /// Number of features between the two matrices.
        rank: usize,
    },
    /// The state space of Mamba-2 (Dao and Gu, "Transformers are SSMs"). Its queries, keys and
    /// values are mostly called C, B and x.
    StateSpace {
        /// The activation function after the convolution.
        act: Activation,
        /// The bounds of time steps.
        step_limits: (f32, f32),
    },
    /// A convolution between two gates and nothing else (LFM2). The queries are the outer gates,
    /// and the keys the inner gates.
    Convolution,
}

/// The norm and the gates between a recurrence and the output projection.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ResultPlan {
    /// The result is projected as it is.
    Plain,
    /// The features of each head are divided by their root mean square and scaled, all heads by the
    /// same scales. If there are gates, the result is multiplied by their SiLU, or by their sigmoid
    /// after [`RecurrentRule::ChannelDelta`].
    Normed {
        /// Added to the mean square.
        eps: f32,
        /// Whether there are gates.
        gated: bool,
    },
    /// The result is multiplied by the SiLU of gates. Then the features of the value heads that
    /// share a key head are divided by their common root mean square and scaled, each feature by a
    /// scale of its own.
    GatedGroups {
        /// Added to the mean square.
        eps: f32,
    },
    /// The same norm comes first, and the gates after it (Falcon-H1).
    NormedGroups {
        /// Added to the mean square.
        eps: f32,
    },
    /// The result is multiplied by the SiLU of gates, without a norm (Falcon-H1).
    Gated,
}

impl ResultPlan {
    /// Returns the epsilon of the norm, if there is one.
    pub const fn norm_eps(self) -> Option<f32> {
        match self {
            ResultPlan::Plain | ResultPlan::Gated => None,
            ResultPlan::Normed { eps, .. }
            | ResultPlan::GatedGroups { eps }
            | ResultPlan::NormedGroups { eps } => Some(eps),
        }
    }

    /// Returns whether the result is gated.
    pub const fn is_gated(self) -> bool {
        !matches!(self, ResultPlan::Plain | ResultPlan::Normed { gated: false, .. })
    }

    /// Returns whether the gates come before the norm.
    pub const fn gates_come_first(self) -> bool {
        matches!(self, ResultPlan::GatedGroups { .. })
    }

    /// Returns whether value heads that share a key head are normalized together.
    pub const fn is_of_groups(self) -> bool {
        matches!(self, ResultPlan::GatedGroups { .. } | ResultPlan::NormedGroups { .. })
    }
}

impl RecurrentLayer {
    /// Returns the shape of the layer's states, with so many checkpoints behind the slots.
    pub const fn state_spec(&self, slots: usize, checkpoints: usize) -> StateSpec {
        let heads = if self.is_convolution() { None } else { Some(self.heads) };
        StateSpec { slots, checkpoints, channels: self.channels(), taps: self.taps, heads }
    }

    /// Returns whether the layer is only a convolution.
    pub const fn is_convolution(&self) -> bool {
        matches!(self.rule, RecurrentRule::Convolution)
    }

    /// Returns whether values bypass the state.
    pub const fn has_skip(&self) -> bool {
        matches!(self.rule, RecurrentRule::StateSpace { .. })
    }

    /// Returns the channels of the convolution.
    pub const fn channels(&self) -> usize {
        if self.is_convolution() { self.heads.value_cols() } else { self.heads.cols() }
    }

    /// Returns the factor on the inputs of each channel of the convolution, `[channels]`.
    pub fn channel_factors(&self) -> impl Iterator<Item = f32> {
        let (keys, factors) = (self.key_channels(), self.factors);
        let of = [(keys, factors.query), (keys, factors.key), (self.heads.value_cols(), factors.value)];
        of.into_iter().flat_map(|(count, factor)| std::iter::repeat_n(factor, count))
    }

    /// Returns the channels of the convolution that belong to queries, or to keys.
    const fn key_channels(&self) -> usize {
        if self.is_convolution() { 0 } else { self.heads.key_cols() }
    }

    /// Returns the columns of the projection to queries, keys, values and gates. Gates that are
    /// products of two matrices are not among them.
    pub const fn projected_cols(&self) -> usize {
        self.heads.cols() + if self.is_by_channel() { 0 } else { self.gate_cols() }
    }

    /// Returns whether each feature of the keys has a decay of its own.
    pub const fn is_by_channel(&self) -> bool {
        matches!(self.rule, RecurrentRule::ChannelDelta { .. })
    }

    /// Returns the number of features between the two matrices of rates, and of gates.
    pub const fn rank(&self) -> usize {
        match self.rule {
            RecurrentRule::ChannelDelta { rank, .. } => rank,
            _ => 0,
        }
    }

    /// Returns the number of rates of the features of all keys.
    pub const fn channel_rates(&self) -> usize {
        if self.is_by_channel() { self.heads.heads * self.heads.key_dim } else { 0 }
    }

    /// Returns the number of gates that are products of two matrices.
    pub const fn low_rank_gates(&self) -> usize {
        if self.is_by_channel() { self.gate_cols() } else { 0 }
    }

    /// Returns the number of gates of the result.
    pub const fn gate_cols(&self) -> usize {
        if self.result.is_gated() { self.heads.value_cols() } else { 0 }
    }

    /// Returns the columns of the projection to strengths and to rates of heads.
    pub const fn rate_cols(&self) -> usize {
        match self.rule {
            RecurrentRule::Delta(_) => 2 * self.heads.heads,
            RecurrentRule::StateSpace { .. } | RecurrentRule::ChannelDelta { .. } => self.heads.heads,
            RecurrentRule::Convolution => 0,
        }
    }

    /// Returns the length of a block of features of a recurrent layer.
    pub(super) const fn block_len(&self, block: RecurrentBlock) -> usize {
        let heads = self.heads;
        match block {
            RecurrentBlock::Query | RecurrentBlock::Key => heads.key_cols(),
            RecurrentBlock::Value => heads.value_cols(),
            RecurrentBlock::Gate => self.projected_cols() - heads.cols(),
            RecurrentBlock::LowRankGate => self.low_rank_gates(),
            RecurrentBlock::ChannelRate => self.channel_rates(),
            RecurrentBlock::Rank => self.rank(),
            RecurrentBlock::QueryTaps | RecurrentBlock::KeyTaps => self.key_channels() * self.taps,
            RecurrentBlock::QueryChannels | RecurrentBlock::KeyChannels => self.key_channels(),
            RecurrentBlock::ValueTaps => heads.value_cols() * self.taps,
            RecurrentBlock::Strength => match self.rule {
                RecurrentRule::Delta(_) | RecurrentRule::ChannelDelta { .. } => heads.heads,
                RecurrentRule::StateSpace { .. } | RecurrentRule::Convolution => 0,
            },
            RecurrentBlock::Rate => {
                if self.is_convolution() {
                    0
                } else {
                    heads.heads
                }
            }
            RecurrentBlock::ValueDim => {
                if self.result.is_of_groups() {
                    0
                } else {
                    heads.value_dim
                }
            }
            RecurrentBlock::GroupedValue => {
                if self.result.is_of_groups() {
                    heads.value_cols()
                } else {
                    0
                }
            }
        }
    }
}

/// A run of features along an axis of a weight of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecurrentBlock {
    /// All queries, `[key_heads * key_dim]`.
    Query,
    /// All keys, `[key_heads * key_dim]`.
    Key,
    /// All values, `[heads * value_dim]`.
    Value,
    /// The gates of the result, `[heads * value_dim]`, if there are any.
    Gate,
    /// The queries that are convolved, `[key_heads * key_dim]`, unless the layer is only a
    /// convolution.
    QueryChannels,
    /// The keys that are convolved, in the same way.
    KeyChannels,
    /// The weights of the convolution of all queries, `[key_heads * key_dim * taps]`, unless the
    /// layer is only a convolution.
    QueryTaps,
    /// The weights of the convolution of all keys, in the same way.
    KeyTaps,
    /// The weights of the convolution of all values, `[heads * value_dim * taps]`.
    ValueTaps,
    /// The strength with which each head's matrix is corrected, `[heads]`, by the delta rule.
    Strength,
    /// The rate at which each head's matrix decays, `[heads]`.
    Rate,
    /// The rate at which each feature of the keys of each head decays, `[heads * key_dim]`.
    ChannelRate,
    /// The gates of the result that are products of two matrices, `[heads * value_dim]`.
    LowRankGate,
    /// The features between two matrices, `[rank]`. Every rank of a group has all.
    Rank,
    /// The features of one value head, `[value_dim]`, unless several are normalized together.
    ValueDim,
    /// All values, `[heads * value_dim]`, if several heads are normalized together.
    GroupedValue,
}

/// The place of one weight of a recurrent layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum RecurrentSlot {
    /// The fused projection to queries, keys, values and gates.
    In,
    /// The bias of [`RecurrentSlot::In`].
    InBias,
    /// The projection to strengths and rates.
    Rates,
    /// The projection to strengths, if rates are [`RecurrentSlot::RateUp`]'s.
    Strengths,
    /// The first matrix of the rates of the features of keys.
    RateDown,
    /// The second matrix of the rates of the features of keys.
    RateUp,
    /// The first matrix of the gates.
    GateDown,
    /// The second matrix of the gates.
    GateUp,
    /// The weights of the convolution, channel by channel.
    Conv,
    /// The bias of the convolution.
    ConvBias,
    /// The logarithms of the speeds of decay.
    DecayLog,
    /// Added to the rates of heads.
    StepBias,
    /// Added to the rates of the features of keys.
    ChannelBias,
    /// The factors on values that bypass the state.
    Skip,
    /// The scale of the norm of the result.
    Norm,
    /// The output projection.
    Out,
    /// The bias of [`RecurrentSlot::Out`].
    OutBias,
}

impl RecurrentSlot {
    /// All weights, in the order in which they are loaded.
    pub const ALL: [RecurrentSlot; 17] = [
        RecurrentSlot::In,
        RecurrentSlot::InBias,
        RecurrentSlot::Rates,
        RecurrentSlot::Strengths,
        RecurrentSlot::RateDown,
        RecurrentSlot::RateUp,
        RecurrentSlot::GateDown,
        RecurrentSlot::GateUp,
        RecurrentSlot::Conv,
        RecurrentSlot::ConvBias,
        RecurrentSlot::DecayLog,
        RecurrentSlot::StepBias,
        RecurrentSlot::ChannelBias,
        RecurrentSlot::Skip,
        RecurrentSlot::Norm,
        RecurrentSlot::Out,
        RecurrentSlot::OutBias,
    ];
}
