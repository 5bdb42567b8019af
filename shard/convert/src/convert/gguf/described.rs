//! A model, its configuration and the keys of its file.

use millrace_formats::{GgufArchitecture, GgufValue};
use millrace_model::{AttentionHeads, DecoderSpec, ExpertsSpec, LatentPlan, Positions, RecurrentLayer};
use serde_json::{Map, Value};

/// A model, and the architecture that it is written as.
pub(super) struct Described<'a> {
    pub(super) architecture: GgufArchitecture,
    pub(super) spec: &'a DecoderSpec,
    pub(super) settings: Settings<'a>,
}

/// The configuration of the decoder, for what its specification does not have.
#[derive(Clone, Copy)]
pub(super) struct Settings<'a>(&'a Map<String, Value>);

impl<'a> Settings<'a> {
    /// Returns the settings of the text part, if the model has other parts too.
    pub(super) fn of(config: &'a Map<String, Value>) -> Self {
        Settings(config.get("text_config").and_then(Value::as_object).unwrap_or(config))
    }

    /// Returns the first of these keys that is a whole number.
    pub(super) fn count(self, keys: &[&str]) -> Option<usize> {
        keys.iter().find_map(|key| self.0.get(*key)?.as_u64()).map(|count| count as usize)
    }

    pub(super) fn number(self, key: &str) -> Option<f64> {
        self.0.get(key)?.as_f64()
    }

    pub(super) fn text(self, key: &str) -> Option<&'a str> {
        self.0.get(key)?.as_str()
    }

    /// Returns a list of numbers. It is empty if there is none.
    pub(super) fn numbers(self, key: &str) -> Vec<f64> {
        self.0.get(key).and_then(Value::as_array).into_iter().flatten().filter_map(Value::as_f64).collect()
    }

    /// Returns an object in the configuration.
    pub(super) fn inner(self, key: &str) -> Option<Settings<'a>> {
        self.0.get(key)?.as_object().map(Settings)
    }

    /// Returns the parameters of the rotation.
    pub(super) fn rotation(self) -> Option<Settings<'a>> {
        self.inner("rope_scaling").or_else(|| self.inner("rope_parameters"))
    }
}

/// The keys of a file.
pub(super) struct Keys {
    architecture: &'static str,
    pub(super) list: Vec<(String, GgufValue)>,
}

impl Keys {
    pub(super) fn of(architecture: GgufArchitecture) -> Keys {
        let architecture = architecture.name();
        let list = vec![("general.architecture".to_owned(), GgufValue::Text(architecture.to_owned()))];
        Keys { architecture, list }
    }

    /// Returns whether the file is of this architecture.
    pub(super) fn is_of(&self, architecture: &str) -> bool {
        self.architecture == architecture
    }

    /// Adds a key of the architecture.
    pub(super) fn add(&mut self, name: &str, value: GgufValue) {
        self.list.push((format!("{}.{name}", self.architecture), value));
    }

    pub(super) fn count(&mut self, name: &str, count: usize) {
        self.add(name, GgufValue::U32(u32::try_from(count).unwrap_or(u32::MAX)));
    }

    pub(super) fn number(&mut self, name: &str, number: f64) {
        self.add(name, GgufValue::F32(number as f32));
    }

    pub(super) fn text(&mut self, name: &str, text: &str) {
        self.add(name, GgufValue::Text(text.to_owned()));
    }

    /// Adds a count that layers may have of their own: one number if all have the same.
    pub(super) fn counts(&mut self, name: &str, counts: &[usize]) {
        let signed = |count: &usize| i32::try_from(*count).unwrap_or(i32::MAX);
        match counts.split_first() {
            Some((first, rest)) if rest.iter().any(|count| count != first) => {
                self.add(name, GgufValue::I32s(counts.iter().map(signed).collect()));
            }
            Some((first, _)) => self.count(name, *first),
            None => {}
        }
    }
}

impl<'a> Described<'a> {
    /// Returns the heads of the first layer that has attention.
    pub(super) fn heads(&self) -> Option<&'a AttentionHeads> {
        self.spec.layers.iter().find_map(|layer| layer.attention.heads())
    }

    /// Returns the projections of latent attention, if the model has it.
    pub(super) fn latent(&self) -> Option<LatentPlan> {
        self.heads().and_then(|heads| heads.latent)
    }

    /// Returns the mixture of experts of the first layer that has one.
    pub(super) fn experts(&self) -> Option<&'a ExpertsSpec> {
        self.spec.layers.iter().find_map(|layer| layer.mlp.experts())
    }

    /// Returns the recurrence of the first layer that has one.
    pub(super) fn recurrent(&self) -> Option<&'a RecurrentLayer> {
        self.spec.layers.iter().find_map(|layer| layer.attention.recurrent())
    }

    /// Returns whether the architecture is one of these.
    pub(super) fn is(&self, architectures: &[&str]) -> bool {
        architectures.contains(&self.architecture.name())
    }

    /// Returns whether some layer encodes positions by rotation.
    pub(super) fn rotates(&self) -> bool {
        let is_rotary = |heads: &AttentionHeads| matches!(heads.positions, Positions::Rotary { .. });
        self.spec.layers.iter().any(|layer| layer.attention.heads().is_some_and(is_rotary))
    }
}
