//! Recurrent layers: layers whose memory of a sequence has a fixed size. It consists of the last
//! inputs of a short convolution, and of a matrix for each head.

use crate::activation::Activation;

/// The shape of one layer's recurrent states.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateSpec {
    /// Slots for sequences.
    pub slots: usize,
    /// Places for copies of the states of sequences, behind the slots.
    pub checkpoints: usize,
    /// Channels of the convolution.
    pub channels: usize,
    /// Tokens that the convolution sees, the current one included; at least 1.
    pub taps: usize,
    /// The heads that have a matrix each. A layer that is only a convolution has none.
    pub heads: Option<RecurrentHeads>,
}

impl StateSpec {
    /// Returns the numbers of one slot's window, `[taps - 1, channels]`.
    pub const fn window_elements(&self) -> usize {
        self.taps.saturating_sub(1).saturating_mul(self.channels)
    }

    /// Returns the numbers of one slot: the window, then the matrices of all heads. A backend has
    /// the `key_dim * value_dim` numbers of a matrix in an order of its own.
    pub const fn slot_elements(&self) -> usize {
        let matrices = match self.heads {
            Some(RecurrentHeads { heads, key_dim, value_dim, .. }) => {
                heads.saturating_mul(key_dim).saturating_mul(value_dim)
            }
            None => 0,
        };
        self.window_elements().saturating_add(matrices)
    }

    /// Returns the number of slots and checkpoints. Each has [`StateSpec::slot_elements`].
    pub const fn places(&self) -> usize {
        self.slots.saturating_add(self.checkpoints)
    }

    /// Returns the bytes of all slots and checkpoints. States are in single precision.
    pub const fn bytes(&self) -> usize {
        self.places().saturating_mul(self.slot_elements()).saturating_mul(size_of::<f32>())
    }
}

/// A copy of the states of a sequence from one place to another. Place `i` is slot `i`, or
/// checkpoint `i - slots` if there are not so many [slots](StateSpec::slots).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StateCopy {
    /// The place that is read.
    pub from: usize,
    /// The place that is written.
    pub to: usize,
}

/// The heads of a recurrent layer, and the layout of a row of its inputs: all queries, all keys,
/// then all values.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecurrentHeads {
    /// Heads of queries and of keys; divides `heads`.
    pub key_heads: usize,
    /// Value heads. Each has a matrix.
    pub heads: usize,
    /// Features of each query and key head: the rows of a matrix.
    pub key_dim: usize,
    /// Features of each value head: the columns of a matrix.
    pub value_dim: usize,
    /// The value heads that share a key head.
    pub sharing: KeySharing,
}

/// The value heads that share a key head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeySharing {
    /// Neighbors: value head `j` has key head `j / (heads / key_heads)`.
    Neighbors,
    /// Every `key_heads`-th value head: value head `j` has key head `j % key_heads`. GGUF files
    /// have the value heads of Qwen3.5 in this order.
    Strided,
}

impl RecurrentHeads {
    /// Returns the number of successive value heads that share a key head, before the next ones
    /// have the next key head.
    pub const fn neighbors(&self) -> usize {
        match self.sharing {
            KeySharing::Neighbors => self.heads / self.key_heads,
            KeySharing::Strided => 1,
        }
    }

    /// Returns the key head of a value head.
    pub const fn key_head(&self, head: usize) -> usize {
        head / self.neighbors() % self.key_heads
    }

    /// Returns the features of all query heads, or of all key heads.
    pub const fn key_cols(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Returns the features of all value heads.
    pub const fn value_cols(&self) -> usize {
        self.heads * self.value_dim
    }

    /// Returns the columns of a row of inputs.
    pub const fn cols(&self) -> usize {
        2 * self.key_cols() + self.value_cols()
    }
}

/// A causal convolution of each channel by itself: `y[t, c] = act(bias[c] + Σ weight[k, c] * u[t -
/// taps + 1 + k, c])`. Inputs before the first token of a sequence are 0.
#[derive(Debug)]
pub struct Convolution<'a, V> {
    /// The weights, `[taps, channels]`. The last ones belong to the token itself.
    pub weight: &'a V,
    /// The bias, `[channels]`.
    pub bias: Option<&'a V>,
    /// The activation function.
    pub act: Option<Activation>,
    /// Whether the convolution is between two gates (Liquid AI, "LFM2 Technical Report"). A row of
    /// x then has the outer gates, the inner gates and the values, `[3 * channels]`; `u = inner *
    /// value`, and the result is `outer * y`. Otherwise u is the first columns of x.
    pub gated: bool,
}

/// The way in which the matrix of a head changes with each token, and what is read from it.
///
/// `step = softplus(rate + step_bias)` and `decay = exp(-exp(decay_log) * step)` are numbers of the
/// token and the head.
#[derive(Debug)]
pub enum RecurrenceRule<'a, V> {
    /// The gated delta rule (Yang et al., "Gated Delta Networks: Improving Mamba2 with Delta
    /// Rule"). Query and key are divided by their lengths, and the query by the root of `key_dim`.
    /// `S = decay * S; S += key ⊗ (sigmoid(strength) * (value - Sᵀ key)); y = Sᵀ query`. A row of
    /// rates has the strengths of all heads, then their rates.
    Delta,
    /// The state space of Mamba-2 (Dao and Gu, "Transformers are SSMs"). `S = decay * S + key ⊗
    /// (step * value); y = Sᵀ query + skip * value`. A row of rates has the rates of all heads.
    StateSpace {
        /// The factors on values that bypass the state, `[heads]`.
        skip: &'a V,
        /// The bounds of `step`.
        limits: (f32, f32),
    },
}

/// A recurrence over the tokens of a sequence.
#[derive(Debug)]
pub struct Recurrence<'a, V> {
    /// The heads, and the layout of a row of inputs.
    pub heads: RecurrentHeads,
    /// The rule.
    pub rule: RecurrenceRule<'a, V>,
    /// Logarithms of the speeds of decay, `[heads]`.
    pub decay_log: &'a V,
    /// Added to the rates, `[heads]`.
    pub step_bias: &'a V,
}

impl<V> Recurrence<'_, V> {
    /// Returns the columns of a row of rates.
    pub const fn rate_cols(&self) -> usize {
        match self.rule {
            RecurrenceRule::Delta => 2 * self.heads.heads,
            RecurrenceRule::StateSpace { .. } => self.heads.heads,
        }
    }
}

/// A recurrence by the gated delta rule in which each feature of the keys is forgotten at a rate of
/// its own (Kimi Team, "Kimi Linear: An Expressive, Efficient Attention Architecture").
///
/// `decay[k] = exp(-exp(decay_log) * softplus(rate[k] + step_bias[k]))` are numbers of the token
/// and the head. Row k of the matrix is multiplied by `decay[k]`, and all else is as in
/// [`RecurrenceRule::Delta`].
#[derive(Debug)]
pub struct ChannelRecurrence<'a, V, B> {
    /// The heads, and the layout of a row of `x`.
    pub heads: RecurrentHeads,
    /// Logarithms of the speeds of decay, `[heads]`.
    pub decay_log: &'a V,
    /// Added to the rates, `[heads * key_dim]`.
    pub step_bias: &'a V,
    /// Queries, keys and values, `[n, heads.cols()]`.
    pub x: &'a B,
    /// The strengths of all heads, `[n, heads]`.
    pub strengths: &'a B,
    /// The rates of all features of the keys of all heads, `[n, heads * key_dim]`.
    pub rates: &'a B,
}

impl<V, B> ChannelRecurrence<'_, V, B> {
    /// Returns the columns of a row of rates.
    pub const fn rate_cols(&self) -> usize {
        self.heads.heads * self.heads.key_dim
    }
}

/// Functions of gates.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GateFunction {
    /// `x`: a product of features.
    Identity,
    /// `1 / (1 + e^-x)`.
    Sigmoid,
    /// `x / (1 + e^-x)`.
    Silu,
}
