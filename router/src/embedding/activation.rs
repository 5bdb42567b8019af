//! The activations of Dense modules.

use std::fmt;

/// An activation of torch.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    Identity,
    Tanh,
    Relu,
    Relu6,
    LeakyRelu,
    Gelu,
    Silu,
    Sigmoid,
    Elu,
    Softplus,
    Mish,
}

/// The names of the classes in torch.
const NAMES: [(Activation, &str); 11] = [
    (Activation::Identity, "Identity"),
    (Activation::Tanh, "Tanh"),
    (Activation::Relu, "ReLU"),
    (Activation::Relu6, "ReLU6"),
    (Activation::LeakyRelu, "LeakyReLU"),
    (Activation::Gelu, "GELU"),
    (Activation::Silu, "SiLU"),
    (Activation::Sigmoid, "Sigmoid"),
    (Activation::Elu, "ELU"),
    (Activation::Softplus, "Softplus"),
    (Activation::Mish, "Mish"),
];

impl Activation {
    /// Returns the activation with the path of a class in torch, such as
    /// `torch.nn.modules.activation.Tanh`. The class has its default parameters.
    pub(super) fn named(path: &str) -> Option<Activation> {
        let class = path.strip_prefix("torch.nn.")?.rsplit('.').next()?;
        NAMES.iter().find(|(_, name)| *name == class).map(|(activation, _)| *activation)
    }

    /// Returns the names of all activations, for messages.
    pub(super) fn names() -> String {
        NAMES.map(|(_, name)| name).join(", ")
    }

    /// Returns the value of the activation.
    pub(super) fn of(self, x: f32) -> f32 {
        match self {
            Activation::Identity => x,
            Activation::Tanh => x.tanh(),
            Activation::Relu => at_least_0(x),
            Activation::Relu6 => at_least_0(x).clamp(0.0, 6.0),
            Activation::LeakyRelu => {
                if x < 0.0 {
                    0.01 * x
                } else {
                    x
                }
            }
            Activation::Gelu => 0.5 * x * (1.0 + libm::erff(x * std::f32::consts::FRAC_1_SQRT_2)),
            Activation::Silu => x * sigmoid(x),
            Activation::Sigmoid => sigmoid(x),
            Activation::Elu => {
                if x < 0.0 {
                    x.exp_m1()
                } else {
                    x
                }
            }
            Activation::Softplus => softplus(x),
            Activation::Mish => x * softplus(x).tanh(),
        }
    }
}

impl fmt::Display for Activation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(NAMES.iter().find(|(activation, _)| activation == self).map_or("", |(_, name)| name))
    }
}

/// Returns `x`, or 0 if it is negative. A NaN stays a NaN, which `f32::max` would lose.
fn at_least_0(x: f32) -> f32 {
    if x < 0.0 { 0.0 } else { x }
}

fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + (-x).exp())
}

/// Returns ln(1 + e^x). The formula does not overflow for large numbers.
fn softplus(x: f32) -> f32 {
    at_least_0(x) + (-x.abs()).exp().ln_1p()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values that torch computes.
    #[test]
    fn values_are_those_of_torch() {
        for (activation, below, above) in [
            (Activation::Identity, -1.5, 0.75),
            (Activation::Tanh, -0.905_148_27, 0.635_148_94),
            (Activation::Relu, 0.0, 0.75),
            (Activation::Relu6, 0.0, 0.75),
            (Activation::LeakyRelu, -0.015, 0.75),
            (Activation::Gelu, -0.100_210_8, 0.580_029_5),
            (Activation::Silu, -0.273_638_28, 0.509_384_04),
            (Activation::Sigmoid, 0.182_425_5, 0.679_178_7),
            (Activation::Elu, -0.776_869_8, 0.75),
            (Activation::Softplus, 0.201_413_3, 1.136_871),
            (Activation::Mish, -0.298_099_76, 0.610_018_4),
        ] {
            for (x, expected) in [(-1.5, below), (0.75, above)] {
                let found = activation.of(x);
                assert!((found - expected).abs() < 1e-5, "{activation} of {x}: {found}, not {expected}");
            }
            assert!(activation.of(f32::NAN).is_nan(), "{activation}");
        }
        assert_eq!(Activation::Relu6.of(9.0), 6.0);
        assert_eq!(Activation::Softplus.of(1000.0), 1000.0);
    }

    #[test]
    fn only_classes_of_torch_are_known() {
        assert_eq!(Activation::named("torch.nn.modules.activation.Tanh"), Some(Activation::Tanh));
        assert_eq!(Activation::named("torch.nn.modules.linear.Identity"), Some(Activation::Identity));
        assert_eq!(Activation::named("torch.nn.modules.activation.GLU"), None);
        assert_eq!(Activation::named("mine.Tanh"), None);
    }
}
