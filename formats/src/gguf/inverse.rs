//! The way back from Hugging Face layout to a GGUF file, by the tables that files are read with.
//!
//! A program that writes a file takes the name of each tensor, the order of its rows and the change
//! of its numbers from here. The keys are checked by reading them again: [`gguf_config`] returns
//! the configuration that a file with this header has.

use serde_json::{Map, Value};

use super::architecture::Architecture;
use super::architectures;
use super::change_of_numbers;
use super::encoder_names::ROBERTA;
use super::file::Header;
use super::model::KvHeads;
use super::read_contents;
use crate::error::Error;

/// An architecture of GGUF files, for a program that writes them.
#[derive(Clone, Copy)]
pub struct GgufArchitecture(&'static Architecture);

/// The order in which files of an architecture have weights, where it is not the one of the
/// original models.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct GgufOrder {
    /// Whether features `2 * i` and `2 * i + 1` of query and key are rotated together.
    pub rope_interleaved: bool,
    /// Whether the value heads that share a key head are as far apart as there are key heads.
    pub strided_value_heads: bool,
    /// Whether a tensor with query, key and value has all queries before all keys and values.
    pub stacked_qkv: bool,
    /// Whether the matrices of layers are stored by output feature.
    pub by_output: bool,
}

impl GgufOrder {
    /// Returns the order that the configuration of a model says, in its object `millrace`.
    pub fn of_config(config: &Map<String, Value>) -> GgufOrder {
        let flag =
            |key: &str| config.get("millrace").and_then(|own| own.get(key)?.as_bool()).unwrap_or(false);
        GgufOrder {
            rope_interleaved: flag("rope_interleaved"),
            strided_value_heads: flag("strided_value_heads"),
            stacked_qkv: flag("stacked_qkv"),
            by_output: flag("by_output"),
        }
    }
}

/// The place of a tensor of a model in a GGUF file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufPlace {
    /// The name of the tensor in the file.
    pub name: String,
    /// The number of the expert, if the tensor in the file has the matrices of all experts.
    pub expert: Option<usize>,
}

impl GgufArchitecture {
    /// Returns the architectures that models with this `model_type` may be written as.
    pub fn of(model_type: &str) -> impl Iterator<Item = GgufArchitecture> {
        let is_of = move |architecture: &&'static Architecture| {
            architecture.model_type == model_type || architecture.also.contains(&model_type)
        };
        architectures::all().filter(is_of).map(GgufArchitecture)
    }

    /// Returns whether files can be written. Some have tensors that models are loaded without.
    pub fn can_be_written(self) -> bool {
        !self.0.is_only_read
    }

    /// Returns the value of `general.architecture`.
    pub fn name(self) -> &'static str {
        self.0.name
    }

    /// Returns the place of the tensor that is `name` in Hugging Face layout, or nothing if files
    /// have no name for it.
    pub fn place(self, name: &str) -> Option<GgufPlace> {
        let renames = if self.0.name == "bert" { &ROBERTA[..] } else { &[] };
        let renamed = renames.iter().find_map(|(from, to)| Some(format!("{to}{}", name.strip_prefix(from)?)));
        let name = renamed.as_deref().unwrap_or(name);
        if let Some((name, expert)) = self.0.naming.reverse_expert(name) {
            return Some(GgufPlace { name, expert: Some(expert) });
        }
        self.0.naming.reverse(name).map(|name| GgufPlace { name, expert: None })
    }

    /// Returns the order of weights.
    pub fn order(self) -> GgufOrder {
        GgufOrder {
            rope_interleaved: self.0.interleaved,
            strided_value_heads: self.0.strided_value_heads,
            stacked_qkv: self.0.stacked_qkv,
            by_output: self.0.by_output,
        }
    }

    /// Changes the numbers of a tensor to those that a file stores under `name`. Returns whether
    /// they are others.
    pub fn change_numbers(self, name: &str, numbers: &mut [f32]) -> bool {
        let Some(change) = change_of_numbers(self.0, name) else { return false };
        numbers.iter_mut().for_each(|number| *number = change.undo(*number));
        true
    }

    /// Returns the key of the epsilon of norms, after the name of the architecture.
    pub fn epsilon(self) -> &'static str {
        self.0.epsilon.0
    }

    /// Returns whether a layer without attention has 0 in a list of numbers of key/value heads.
    pub fn lists_kv_heads(self) -> bool {
        self.0.kv_heads != KvHeads::AllLayers
    }

    /// Returns the keys with a number for each layer, and the tensor of a layer that has it.
    pub fn layer_numbers(self) -> impl Iterator<Item = (&'static str, String)> {
        let layers = self.0.naming.layers;
        self.0.layer_numbers.iter().map(move |(key, module)| (*key, format!("{layers}*.{module}")))
    }
}

/// Returns the configuration of a GGUF file that begins with `bytes`, which end behind the divisors
/// of frequencies, and has `length` bytes. `name` stands for the file in messages.
///
/// # Errors
/// If the file could not be read.
pub fn gguf_config(name: &str, bytes: &[u8], length: usize) -> Result<Map<String, Value>, Error> {
    let header = Header::read_begin(name, bytes, length)?;
    Ok(read_contents(&[header], &[bytes])?.config)
}
