//! Activation functions, and the gates of MLPs.

/// Elementwise non-linearities.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Activation {
    /// `x * sigmoid(x)`.
    Silu,
    /// `x * Φ(x)`, where Φ is the normal distribution (Hendrycks and Gimpel, "Gaussian Error Linear
    /// Units").
    Gelu,
    /// The approximation of [`Activation::Gelu`] by the hyperbolic tangent.
    GeluTanh,
    /// `max(x, 0)`.
    Relu,
    /// `max(x, 0)²` (So et al., "Primer"). GPUs have no kernel for it.
    ReluSquared,
    /// xIELU (Huang and Schlag, "Deriving Activation Functions Using Integration"). GPUs have no
    /// kernel for it.
    Xielu(Xielu),
}

/// The numbers of xIELU: `positive * x² + linear * x` above 0, and else
/// `negative * (e^min(x, limit) - 1 - x) + linear * x`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Xielu {
    /// Factor on the square above 0.
    pub positive: f32,
    /// Factor on the exponential part below 0.
    pub negative: f32,
    /// Factor on `x`.
    pub linear: f32,
    /// Bound on the exponent.
    pub limit: f32,
}

/// The way in which a gate and the features of up become one.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Gating {
    /// `act(gate) * up`.
    Product(Activation),
    /// `g * sigmoid(alpha * g) * (u + 1)`, where g is the gate, at most `limit`, and u is up
    /// between `-limit` and `limit` (gpt-oss).
    Clamped {
        /// Factor on the gate inside the sigmoid.
        alpha: f32,
        /// Bound on gate and up, above 0.
        limit: f32,
    },
}

/// The operation between the projections of an MLP.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum MlpKind {
    /// The first projection has gates and the features of up.
    Gated(Gating),
    /// The first projection has the features of up, and an activation function is applied to them.
    Plain(Activation),
}

impl MlpKind {
    /// Returns the features of the first projection of an MLP of this width.
    pub const fn up_cols(self, width: usize) -> usize {
        match self {
            MlpKind::Gated(_) => 2 * width,
            MlpKind::Plain(_) => width,
        }
    }
}

impl From<Activation> for Gating {
    fn from(act: Activation) -> Self {
        Gating::Product(act)
    }
}
