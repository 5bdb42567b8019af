//! The specification of MLPs and of mixtures of experts.

use millrace_backend::{Activation, Gating, MlpKind, RouterSpec, RoutingSpec};

/// The kind of MLP of a layer.
#[derive(Debug, Clone, PartialEq)]
pub enum Mlp {
    /// `down(activation(gate(x)) * up(x))`.
    Gated(DenseMlp),
    /// `down(activation(up(x)))`.
    Plain(DenseMlp),
    /// The weighted sum of some of many MLPs, chosen for each token by a router.
    Experts(ExpertsSpec),
    /// Nothing: the layer is attention or a recurrence (Nemotron-H).
    None,
}

impl Mlp {
    /// Returns the sizes of an MLP that every token passes through. A mixture of experts has none.
    pub fn dense(&self) -> Option<&DenseMlp> {
        match self {
            Mlp::Gated(mlp) | Mlp::Plain(mlp) => Some(mlp),
            Mlp::Experts(_) | Mlp::None => None,
        }
    }

    /// Returns the sizes of an MLP that every token passes through, to change them.
    pub fn dense_mut(&mut self) -> Option<&mut DenseMlp> {
        match self {
            Mlp::Gated(mlp) | Mlp::Plain(mlp) => Some(mlp),
            Mlp::Experts(_) | Mlp::None => None,
        }
    }

    /// Returns the mixture of experts, if the MLP is one.
    pub fn experts(&self) -> Option<&ExpertsSpec> {
        match self {
            Mlp::Gated(_) | Mlp::Plain(_) | Mlp::None => None,
            Mlp::Experts(experts) => Some(experts),
        }
    }

    /// Returns whether the MLP is one that every token passes through, with a gate.
    pub fn is_gated(&self) -> bool {
        matches!(self, Mlp::Gated(_))
    }

    /// Returns whether the layer has no MLP.
    pub const fn is_none(&self) -> bool {
        matches!(self, Mlp::None)
    }

    /// Returns whether the MLP is one that every token passes through, without a gate.
    pub fn is_plain(&self) -> bool {
        matches!(self, Mlp::Plain(_))
    }
}

/// The specification of a mixture of experts.
#[derive(Debug, Clone, PartialEq)]
pub struct ExpertsSpec {
    /// The choice of experts.
    pub router: RouterSpec,
    /// Whether the router's logits have a bias (gpt-oss).
    pub router_bias: bool,
    /// Whether a bias is added to the router's scores for the choice.
    pub choice_bias: bool,
    /// Number of features of up of each expert, and of the gate if it has one.
    pub width: usize,
    /// The gates or the activation function of all experts, the shared one included.
    pub kind: MlpKind,
    /// Whether gate and up of each expert have biases. The shared expert has none.
    pub up_bias: bool,
    /// Whether down of each expert has a bias. The shared expert has none.
    pub down_bias: bool,
    /// The expert that every token passes through.
    pub shared: Option<SharedExpert>,
    /// Whether the weight of each expert is multiplied by a number of its own (Gemma 4).
    pub scales: bool,
    /// Whether router, experts and shared expert have norms of their own (Gemma 4). Router and
    /// experts then read the residual stream, each through its norm, and the shared expert reads
    /// what an MLP reads. The results of the experts and of the shared expert are normalized before
    /// they are added. The scale of the router's norm is divided by the root of the width.
    pub own_norms: bool,
}

impl ExpertsSpec {
    /// Returns the number of experts, without the shared one.
    pub fn count(&self) -> usize {
        self.router.experts
    }

    /// Returns the routing in the terms of the backend, for steps of `tokens` tokens with `hidden`
    /// features.
    pub const fn routing_spec(&self, hidden: usize, tokens: usize) -> RoutingSpec {
        RoutingSpec { tokens, hidden, width: self.width, router: self.router }
    }
}

/// The specification of an expert that every token passes through, an MLP beside the chosen ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedExpert {
    /// Number of features of up, and of the gate if it has one.
    pub width: usize,
    /// Whether the result is multiplied by the sigmoid of a product of the token's state (Qwen2
    /// MoE).
    pub gated: bool,
}

/// The specification of an MLP, with or without a gate.
#[derive(Debug, Clone, PartialEq)]
pub struct DenseMlp {
    /// Number of features of up, and of the gate.
    pub width: usize,
    /// The activation function.
    pub act: Activation,
    /// Whether the activation function is xIELU in place of `act`, with numbers of each layer from
    /// the checkpoint (Apertus). MLPs with gates have none.
    pub xielu: bool,
    /// The bounds and the form of gates that are clamped in place of `act` (MiniMax-M3). MLPs
    /// without gates have none.
    pub clamp: Option<GateClamp>,
    /// Whether gate and up have biases.
    pub up_bias: bool,
    /// Whether down has a bias.
    pub down_bias: bool,
    /// Factor on gate and up before the activation function (Falcon-H1).
    pub up_factor: f32,
    /// Factor on the output (Falcon-H1).
    pub out_factor: f32,
}

/// The numbers of [`Gating::Clamped`].
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateClamp {
    /// Factor on the gate inside the sigmoid.
    pub alpha: f32,
    /// Bound on gate and up, above 0.
    pub limit: f32,
}

impl From<GateClamp> for Gating {
    fn from(clamp: GateClamp) -> Self {
        Gating::Clamped { alpha: clamp.alpha, limit: clamp.limit }
    }
}

impl DenseMlp {
    /// Returns the way in which gate and up become one, if the MLP has a gate.
    pub fn gating(&self) -> Gating {
        self.clamp.map_or(Gating::Product(self.act), Gating::from)
    }

    /// Returns an MLP of this width without biases and factors.
    pub const fn unbiased(width: usize, act: Activation) -> Self {
        DenseMlp {
            width,
            act,
            xielu: false,
            clamp: None,
            up_bias: false,
            down_bias: false,
            up_factor: 1.0,
            out_factor: 1.0,
        }
    }
}
