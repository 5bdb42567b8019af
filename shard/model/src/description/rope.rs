//! Rotary tables: their parameters, and cosines and sines by position, computed in double precision
//! (Su et al., "RoFormer"). Factors on queries by position are here too.

use std::f64::consts::TAU;
use std::fmt::{self, Display, Formatter};

use millrace_backend::RopeStyle;

/// The parameters of a rotary table.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeTable {
    /// The pairing of features.
    pub style: RopeStyle,
    /// Number of features of each head that are rotated by one position. The number is even.
    pub rotary_dim: usize,
    /// Whether as many features after them are rotated too, by the position on a second axis:
    /// see [`SequencePrefix::axes`](millrace_backend::SequencePrefix::axes). Latent attention has
    /// one axis.
    pub two_axes: bool,
    /// Base of the frequencies.
    pub theta: f64,
    /// The change of the frequencies for long contexts.
    pub scaling: RopeScaling,
}

/// Factors on queries that grow with their position, so that attention stays sharp in long contexts
/// (Nakanishi, "Scalable-Softmax Is Superior for Attention"). The factor at position p is
/// `1 + beta * ln(1 + floor((p + offset) / interval))`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct QueryScale {
    /// Growth with the logarithm of the position.
    pub beta: f64,
    /// Number of positions with the same factor.
    pub interval: f64,
    /// Added to positions: 1 if they are counted from 1 (Llama 4).
    pub offset: usize,
}

/// A change of the rotary frequencies for contexts longer than those of the pre-training.
#[derive(Debug, Clone, PartialEq)]
pub enum RopeScaling {
    /// The frequencies are not changed.
    Default,
    /// All frequencies are divided by a factor (position interpolation).
    Linear {
        /// The divisor.
        factor: f64,
    },
    /// The base grows with the length of the sequence beyond `original` (NTK-aware). The token at
    /// position p is rotated as in a sequence of length `max(p + 1, original)`, so that its key
    /// does not depend on the cut of a prompt.
    Dynamic {
        /// Growth of the base.
        factor: f64,
        /// Length in tokens beyond which the base grows.
        original: usize,
    },
    /// Llama 3: low frequencies are divided, high ones are kept, and those between are blended.
    Llama3 {
        /// Divisor of low frequencies.
        factor: f64,
        /// Frequencies whose wavelength is over `original / low` are divided.
        low: f64,
        /// Frequencies whose wavelength is under `original / high` are kept.
        high: f64,
        /// Length of the sequences of the pre-training, in tokens.
        original: f64,
    },
    /// LongRoPE (Ding et al.): the frequency of each pair is divided by a factor of its own. Which
    /// list of factors is used depends on the positions that the table is made for, not on the
    /// length of a sequence, so that all keys of a sequence are rotated alike.
    LongRope {
        /// The divisors if the table has at most `original` positions, one for each pair.
        short: Vec<f64>,
        /// The divisors of longer tables.
        long: Vec<f64>,
        /// Length of the sequences of the pre-training, in tokens.
        original: usize,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// YaRN (Peng et al.): a ramp over the dimensions leads from kept to divided frequencies.
    Yarn {
        /// Divisor of the frequencies.
        factor: f64,
        /// Length of the sequences of the pre-training, in tokens.
        original: f64,
        /// Number of rotations within `original` tokens at which the ramp begins.
        beta_fast: f64,
        /// Number of rotations within `original` tokens at which the ramp ends.
        beta_slow: f64,
        /// Whether the ends of the ramp are rounded to whole dimensions.
        truncate: bool,
        /// Factor on cosines and sines.
        attention_factor: f64,
    },
    /// Only the first pairs are rotated, all by frequencies divided by a factor. The others count
    /// for the frequencies: pair i has that of a rotation of all features (Gemma 4).
    Proportional {
        /// Number of pairs that are rotated.
        pairs: usize,
        /// The divisor.
        factor: f64,
    },
    /// Each frequency is divided by its own number, as a GGUF file stores them.
    Divided {
        /// The divisors, one for each pair of features.
        divisors: Vec<f64>,
    },
}

/// Cosines and sines of the rotation of each pair at each position, scaled by the attention factor.
#[derive(Debug, Clone, PartialEq)]
pub struct RopeValues {
    /// `[positions, rotary_dim / 2]`.
    pub cos: Vec<f32>,
    /// `[positions, rotary_dim / 2]`.
    pub sin: Vec<f32>,
}

impl RopeTable {
    /// Returns whether the rotation changes the lengths of heads.
    pub fn changes_lengths(&self) -> bool {
        self.attention_factor() != 1.0
    }

    /// Computes the rotations for positions `0..positions`.
    pub fn values(&self, positions: usize) -> RopeValues {
        let pairs = self.rotary_dim / 2;
        let factor = self.attention_factor();
        let mut values = RopeValues {
            cos: Vec::with_capacity(positions * pairs),
            sin: Vec::with_capacity(positions * pairs),
        };
        let mut frequencies = self.frequencies(0, positions);
        for position in 0..positions {
            if self.depends_on_position(position) {
                frequencies = self.frequencies(position, positions);
            }
            for frequency in &frequencies {
                let (sin, cos) = (position as f64 * frequency).sin_cos();
                values.cos.push((cos * factor) as f32);
                values.sin.push((sin * factor) as f32);
            }
        }
        values
    }

    /// Returns the frequency of each pair in radians per position, `[rotary_dim / 2]`, for the
    /// token at `position` of a table of `positions` positions.
    fn frequencies(&self, position: usize, positions: usize) -> Vec<f64> {
        let d = self.rotary_dim as f64;
        let pairs = self.rotary_dim / 2;
        let plain = |base: f64| (0..pairs).map(move |i| base.powf(-2.0 * i as f64 / d));
        match self.scaling {
            RopeScaling::LongRope { ref short, ref long, original, .. } => {
                let factors = if positions > original { long } else { short };
                plain(self.theta).zip(factors).map(|(frequency, factor)| frequency / factor).collect()
            }
            RopeScaling::Divided { ref divisors } => {
                plain(self.theta).zip(divisors).map(|(f, divisor)| f / divisor).collect()
            }
            RopeScaling::Default => plain(self.theta).collect(),
            RopeScaling::Linear { factor } => plain(self.theta).map(|f| f / factor).collect(),
            RopeScaling::Proportional { pairs, factor } => {
                let of_pair = |(i, f)| if i < pairs { f / factor } else { 0.0 };
                plain(self.theta).enumerate().map(of_pair).collect()
            }
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
                // The dimension that makes this number of turns within the original length (YaRN,
                // equation 17 and after).
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

    /// Returns whether the frequencies at `position` differ from those at the position before.
    fn depends_on_position(&self, position: usize) -> bool {
        matches!(self.scaling, RopeScaling::Dynamic { original, .. } if position >= original)
    }

    fn attention_factor(&self) -> f64 {
        match self.scaling {
            RopeScaling::Yarn { attention_factor, .. } | RopeScaling::LongRope { attention_factor, .. } => {
                attention_factor
            }
            _ => 1.0,
        }
    }
}

impl QueryScale {
    /// Computes the factors at positions `0..positions`.
    pub fn values(&self, positions: usize) -> Vec<f32> {
        let &QueryScale { beta, interval, offset } = self;
        let factor = |position: usize| 1.0 + beta * ((position + offset) as f64 / interval).floor().ln_1p();
        (0..positions).map(|position| factor(position) as f32).collect()
    }
}

impl Display for QueryScale {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "queries scaled from {} tokens", self.interval)
    }
}

impl Display for RopeTable {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let axes = if self.two_axes { "2 times " } else { "" };
        write!(f, "{axes}{} features, base {}, ", self.rotary_dim, self.theta)?;
        match &self.scaling {
            RopeScaling::Default => write!(f, "not scaled"),
            RopeScaling::Linear { factor } => write!(f, "scaled linearly by {factor}"),
            RopeScaling::Proportional { pairs: 0, .. } => write!(f, "no pair rotated"),
            RopeScaling::Proportional { pairs, factor } => {
                write!(f, "the first {pairs} of {} pairs rotated", self.rotary_dim / 2)?;
                if *factor == 1.0 { Ok(()) } else { write!(f, ", scaled by {factor}") }
            }
            RopeScaling::Dynamic { factor, original } => {
                write!(f, "dynamic by {factor} from {original} tokens on")
            }
            RopeScaling::Llama3 { factor, original, .. } => {
                write!(f, "scaled by {factor} from {original} tokens (llama3)")
            }
            RopeScaling::LongRope { original, .. } => {
                write!(f, "scaled by pair beyond {original} tokens (longrope)")
            }
            RopeScaling::Yarn { factor, original, .. } => {
                write!(f, "scaled by {factor} from {original} tokens (yarn)")
            }
            RopeScaling::Divided { divisors } => {
                let (least, most) = divisors
                    .iter()
                    .fold((f64::INFINITY, 0f64), |(least, most), &x| (least.min(x), most.max(x)));
                write!(f, "each divided by a number of the file, {least} to {most}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(rotary_dim: usize, theta: f64, scaling: RopeScaling) -> RopeTable {
        let style = RopeStyle::Half;
        RopeTable { style, rotary_dim, two_axes: false, theta, scaling }
    }

    #[test]
    fn each_frequency_is_divided_by_its_number() {
        let divided = table(8, 1e4, RopeScaling::Divided { divisors: vec![1.0, 2.0, 4.0, 10.0] });
        assert_close(&divided.frequencies(0, 1), &[1.0, 0.05, 0.0025, 0.0001]);
        assert!(divided.to_string().ends_with("each divided by a number of the file, 1 to 10"));
    }

    #[track_caller]
    fn assert_close(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found / expected - 1.0).abs() < 1e-9, "{found} instead of {expected}");
        }
    }

    #[test]
    fn frequencies_fall_geometrically_from_one() {
        let plain = table(8, 1e4, RopeScaling::Default);
        assert_close(&plain.frequencies(0, 1), &[1.0, 0.1, 0.01, 0.001]);
        let linear = table(8, 1e4, RopeScaling::Linear { factor: 4.0 });
        assert_close(&linear.frequencies(0, 1), &[0.25, 0.025, 0.0025, 0.00025]);
    }

    #[test]
    fn a_proportional_rotation_keeps_the_frequencies_of_the_first_pairs() {
        let some = table(8, 1e4, RopeScaling::Proportional { pairs: 2, factor: 4.0 });
        assert_eq!(some.frequencies(0, 1), [0.25, 0.1 / 4.0, 0.0, 0.0]);
        assert!(some.to_string().ends_with("the first 2 of 4 pairs rotated, scaled by 4"));
        let none = table(8, 1e4, RopeScaling::Proportional { pairs: 0, factor: 1.0 });
        assert!(none.to_string().ends_with("no pair rotated"));
        // The pairs after them keep their features.
        let values = some.values(2);
        assert_eq!((&values.cos[6..], &values.sin[6..]), (&[1.0; 2][..], &[0.0; 2][..]));
    }

    #[test]
    fn a_table_holds_cosines_and_sines_by_position() {
        let values = table(4, 100.0, RopeScaling::Default).values(3);
        let angles = [0.0, 0.0, 1.0, 0.1, 2.0, 0.2f64];
        assert_eq!(values.cos, angles.map(|a| a.cos() as f32));
        assert_eq!(values.sin, angles.map(|a| a.sin() as f32));
    }

    #[test]
    fn queries_are_scaled_in_steps() {
        let scale = QueryScale { beta: 0.5, interval: 4.0, offset: 0 };
        let later = [2f64, 3.0].map(|step| (1.0 + 0.5 * step.ln()) as f32);
        let expected = [[1.0; 4], [later[0]; 4]].concat();
        let expected = [expected, vec![later[1]]].concat();
        assert_eq!(scale.values(9), expected);
        // Positions that are counted from 1 reach each step one token earlier.
        assert_eq!(QueryScale { offset: 1, ..scale }.values(8), expected[1..]);
        assert_eq!(scale.to_string(), "queries scaled from 4 tokens");
    }

    #[test]
    fn a_dynamic_base_grows_with_the_position_past_the_original_length() {
        let dynamic = table(6, 10.0, RopeScaling::Dynamic { factor: 3.0, original: 10 });
        let plain = table(6, 10.0, RopeScaling::Default);
        let tables = (dynamic.values(25), plain.values(25));
        // The tables are equal up to the original length.
        assert_eq!(tables.0.cos[..30], tables.1.cos[..30]);
        assert_eq!(tables.0.sin[..30], tables.1.sin[..30]);
        // Position 19 is the last of 20 tokens: the base grows by (3 * 2 - 2) ^ (6 / 4) = 8.
        let grown = table(6, 80.0, RopeScaling::Default).values(20);
        assert_eq!(tables.0.cos[57..60], grown.cos[57..60]);
        assert_eq!(tables.0.sin[57..60], grown.sin[57..60]);
    }

    #[test]
    fn a_single_pair_never_changes_under_dynamic_scaling() {
        let dynamic = table(2, 1e4, RopeScaling::Dynamic { factor: 2.0, original: 2 });
        assert_eq!(dynamic.values(9), table(2, 1e4, RopeScaling::Default).values(9));
    }

    #[test]
    fn llama3_divides_long_wavelengths_and_blends_between() {
        // Llama 3.1: wavelengths under 2048 are kept, those over 8192 divided by 8.
        let scaling = RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 };
        let llama = table(128, 500_000.0, scaling).frequencies(0, 1);
        let plain = table(128, 500_000.0, RopeScaling::Default).frequencies(0, 1);
        for (f, plain) in llama.iter().zip(&plain) {
            let wavelength = TAU / plain;
            if wavelength < 2048.0 {
                assert_close(&[*f], &[*plain]);
            } else if wavelength > 8192.0 {
                assert_close(&[*f], &[plain / 8.0]);
            } else {
                assert!(*f < *plain && *f > plain / 8.0);
            }
        }
        assert!(llama.is_sorted_by(|a, b| a > b));
        // A wavelength of 8192 / 2.5 is in the middle of the blend: (1/8 + 1) / 2.
        let theta = (8192.0 / 2.5 / TAU).powi(2);
        let middle =
            table(4, theta, RopeScaling::Llama3 { factor: 8.0, low: 1.0, high: 4.0, original: 8192.0 });
        assert_close(&middle.frequencies(0, 1)[1..], &[theta.powf(-0.5) * 0.5625]);
    }

    fn yarn(truncate: bool) -> RopeTable {
        let scaling = RopeScaling::Yarn {
            factor: 4.0,
            original: 4096.0,
            beta_fast: 32.0,
            beta_slow: 1.0,
            truncate,
            attention_factor: 1.25,
        };
        table(128, 1e4, scaling)
    }

    #[test]
    fn yarn_keeps_fast_and_divides_slow_dimensions() {
        // 128 ln(4096 / 64 pi) / (2 ln 1e4) = 20.9 and 128 ln(4096 / 2 pi) / (2 ln 1e4) = 45.03.
        let (found, plain) =
            (yarn(true).frequencies(0, 1), table(128, 1e4, RopeScaling::Default).frequencies(0, 1));
        assert_close(&found[..=20], &plain[..=20]);
        assert_close(&found[46..], &plain[46..].iter().map(|f| f / 4.0).collect::<Vec<_>>());
        // Dimension 33 is halfway between 20 and 46.
        assert_close(&found[33..34], &[plain[33] * 0.625]);
        // Without rounding, the dimensions 21 and 45 are inside the ramp.
        let exact = yarn(false).frequencies(0, 1);
        assert!(exact[21] < plain[21] && exact[21] > found[21]);
        assert!(exact[45] > plain[45] / 4.0 && exact[45] < found[45]);
    }

    #[test]
    fn the_attention_factor_scales_cosines_and_sines() {
        let values = yarn(true).values(2);
        assert_eq!(values.cos[0], 1.25);
        assert_eq!(values.sin[64], (1f64.sin() * 1.25) as f32);
    }
}
