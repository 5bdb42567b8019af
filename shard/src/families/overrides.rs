//! What an operator says in place of `config.json`.

use super::config::Config;

/// What an operator says in place of `config.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Overrides {
    /// How rotary positions are stretched, and how far.
    pub rope_scaling: Option<(RopeKind, f64)>,
}

/// Ways to stretch rotary positions that need nothing but a factor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RopeKind {
    /// Positions are divided by the factor.
    Linear,
    /// The base grows with the length of the sequence.
    Dynamic,
}

impl RopeKind {
    const fn name(self) -> &'static str {
        match self {
            RopeKind::Linear => "linear",
            RopeKind::Dynamic => "dynamic",
        }
    }
}

impl Overrides {
    pub(super) fn write(&self, config: &mut Config) {
        if let Some((kind, factor)) = self.rope_scaling {
            config.stretch_rope(kind.name(), factor);
        }
    }
}
