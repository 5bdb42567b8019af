//! Rotary tables: cosines and sines by position, computed in f64 (Su et al., "RoFormer").

use std::f64::consts::TAU;

use super::{RopeScaling, RopeTable};

/// Cosines and sines of the rotation of each pair at each position, scaled by the attention factor.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeValues {
    /// `[positions, rotary_dim / 2]`.
    pub cos: Vec<f32>,
    /// `[positions, rotary_dim / 2]`.
    pub sin: Vec<f32>,
}

impl RopeTable {
    /// Rotations for positions `0..positions`.
    pub fn values(&self, positions: usize) -> RopeValues {
        let pairs = self.rotary_dim / 2;
        let factor = self.attention_factor();
        let mut values = RopeValues {
            cos: Vec::with_capacity(positions * pairs),
            sin: Vec::with_capacity(positions * pairs),
        };
        let mut frequencies = self.frequencies(0);
        for position in 0..positions {
            if self.depends_on_position(position) {
                frequencies = self.frequencies(position);
            }
            for frequency in &frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                values.cos.push((cos * factor) as f32);
                values.sin.push((sin * factor) as f32);
            }
        }
        values
    }

    /// Radians per position of each pair, `[rotary_dim / 2]`, for the token at `position`.
    fn frequencies(&self, position: usize) -> Vec<f64> {
        let d = self.rotary_dim as f64;
        let pairs = self.rotary_dim / 2;
        let plain = |base: f64| (0..pairs).map(move |i| base.powf(-2.0 * i as f64 / d));
        match self.scaling {
            RopeScaling::Default => plain(self.theta).collect(),
            RopeScaling::Linear { factor } => plain(self.theta).map(|f| f / factor).collect(),
            RopeScaling::Dynamic { factor, original } => {
                let stretch = (position + 1).max(original) as f64 / original as f64;
                let growth = (factor * stretch - (factor - 1.0)).powf(d / (d - 2.0));
                plain(self.theta * growth).collect()
            }
            RopeScaling::Llama3 { factor, low, high, original } => plain(self.theta)
                .map(|f| {
                    let wavelength = TAU / f;
                    if wavelength < original / high {
                        f
                    } else if wavelength > original / low {
                        f / factor
                    } else {
                        let kept = (original / wavelength - low) / (high - low);
                        (1.0 - kept) * f / factor + kept * f
                    }
                })
                .collect(),
            RopeScaling::Yarn { factor, original, beta_fast, beta_slow, truncate, .. } => {
                // The dimension that turns this often within the original length (YaRN, equation 17 and after).
                let dimension = |turns: f64| d * (original / (TAU * turns)).ln() / (2.0 * self.theta.ln());
                let (mut low, mut high) = (dimension(beta_fast), dimension(beta_slow));
                if truncate {
                    (low, high) = (low.floor(), high.ceil());
                }
                (low, high) = (low.max(0.0), high.min(d - 1.0));
                if low == high {
                    high += 0.001;
                }
                plain(self.theta)
                    .enumerate()
                    .map(|(i, f)| {
                        let divided = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
                        f / factor * divided + f * (1.0 - divided)
                    })
                    .collect()
            }
        }
    }

    /// The frequencies at `position` differ from those at the position before.
    fn depends_on_position(&self, position: usize) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { original, .. } if position >= original)
    }

    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } => attention_factor,
            _ => 1.0,
        }
    }
}
