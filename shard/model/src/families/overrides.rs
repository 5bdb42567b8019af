//! Options of the operator that override `config.json`.

use super::config::Config;

/// Options of the operator that override `config.json`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Overrides {
    /// The kind and factor by which rotary positions are stretched.
    pub rope_scaling: Option<(RopeKind, f64)>,
}

/// The kinds of stretching rotary positions that only need a factor.
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
    /// Writes the options over the configuration.
    pub(super) fn write(&self, config: &mut Config) {
        if let Some((kind, factor)) = self.rope_scaling {
            config.stretch_rope(kind.name(), factor);
        }
    }
}
