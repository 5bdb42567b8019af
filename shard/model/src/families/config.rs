//! Reads the keys of `config.json`, each with its type and its limits, so that every error names
//! file and key.

use millrace_formats::without_special_numbers;
use millrace_numbers::DType;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::error::ConfigError;

/// The keys of `config.json`, or of an object in it. `null` counts as absent.
#[derive(Debug, Clone)]
pub(super) struct Config {
    file: String,
    /// The keys of the objects around this one, each followed by a dot.
    prefix: String,
    keys: Map<String, Value>,
}

impl Config {
    /// Parses the text of `file`.
    pub(super) fn parse(file: String, text: &[u8]) -> Result<Self, ConfigError> {
        match serde_json::from_slice(&without_special_numbers(text)) {
            Ok(keys) => Ok(Config { file, prefix: String::new(), keys }),
            Err(source) => Err(ConfigError::Json { file, source }),
        }
    }

    /// Replaces the scaling of the rotation. Its base and the share of rotated features stay.
    pub(super) fn stretch_rope(&mut self, kind: &str, factor: f64) {
        let mut table = Map::new();
        for place in ["rope_parameters", "rope_scaling"] {
            if let Some(Value::Object(old)) = self.keys.remove(place) {
                table.extend(old);
            }
        }
        // Tables for several kinds of layers are kept too, so that they are refused later.
        let stays = ["rope_theta", "partial_rotary_factor", "full_attention", "sliding_attention"];
        table.retain(|key, _| stays.contains(&key.as_str()));
        table.insert("rope_type".to_owned(), kind.into());
        table.insert("factor".to_owned(), factor.into());
        self.keys.insert("rope_scaling".to_owned(), table.into());
    }

    /// Sets the value of `key`.
    pub(super) fn replace(&mut self, key: &str, value: Value) {
        self.keys.insert(key.to_owned(), value);
    }

    /// Sets the value of `key`, unless it is present and not `null`.
    pub(super) fn insert_absent(&mut self, key: &str, value: Value) {
        if self.value(key).is_none() {
            self.replace(key, value);
        }
    }

    /// Removes `key`.
    pub(super) fn remove(&mut self, key: &str) {
        self.keys.remove(key);
    }

    /// Removes `key` of the object at `place`.
    pub(super) fn remove_nested(&mut self, place: &str, key: &str) {
        if let Some(Value::Object(keys)) = self.keys.get_mut(place) {
            keys.remove(key);
        }
    }

    /// Returns the keys as layer `index` has them: the values of `keys` may be lists with an entry
    /// for each layer.
    pub(super) fn of_layer(&self, index: usize, keys: &[&'static str]) -> Result<Config, ConfigError> {
        let mut of_layer = self.clone();
        for &key in keys {
            let Some(Value::Array(entries)) = self.value(key) else { continue };
            let Some(entry) = entries.get(index) else {
                return Err(self.invalid(key, format!("has no entry for layer {index}")));
            };
            of_layer.replace(key, entry.clone());
        }
        Ok(of_layer)
    }

    pub(super) fn file(&self) -> &str {
        &self.file
    }

    /// Returns whether the key is present, possibly with the value `null`.
    pub(super) fn mentions(&self, key: &str) -> bool {
        self.keys.contains_key(key)
    }

    /// Returns the keys, sorted.
    pub(super) fn keys(&self) -> impl Iterator<Item = &str> {
        self.keys.keys().map(String::as_str)
    }

    fn value(&self, key: &str) -> Option<&Value> {
        self.keys.get(key).filter(|value| !value.is_null())
    }

    /// Reads the value of `key`, if it is present.
    pub(super) fn optional<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ConfigError> {
        let Some(value) = self.value(key) else { return Ok(None) };
        T::deserialize(value).map(Some).map_err(|e| self.invalid(key, format!("cannot be used: {e}")))
    }

    /// Reads the boolean `key`, or returns `default`.
    pub(super) fn flag(&self, key: &str, default: bool) -> Result<bool, ConfigError> {
        Ok(self.optional(key)?.unwrap_or(default))
    }

    /// Reads a count from 1 to `max`.
    pub(super) fn size(&self, key: &str, max: usize) -> Result<usize, ConfigError> {
        self.optional_size(key, max)?.ok_or_else(|| self.missing(key))
    }

    /// Reads a count from 1 to `max`, if it is present.
    pub(super) fn optional_size(&self, key: &str, max: usize) -> Result<Option<usize>, ConfigError> {
        match self.optional::<u64>(key)? {
            None => Ok(None),
            Some(0) => Err(self.invalid(key, "is 0".to_owned())),
            Some(size) => match usize::try_from(size) {
                Ok(size) if size <= max => Ok(Some(size)),
                _ => Err(self.invalid(key, format!("is {size}, more than the limit of {max}"))),
            },
        }
    }

    /// Reads a number of at least `min`, if it is present.
    pub(super) fn optional_number(&self, key: &str, min: f64) -> Result<Option<f64>, ConfigError> {
        match self.optional::<f64>(key)? {
            // The negation makes this refuse NaN.
            Some(number) if !(number >= min && number.is_finite()) => {
                Err(self.invalid(key, format!("is {number}, but must be at least {min}")))
            }
            number => Ok(number),
        }
    }

    /// Reads a number of at least `min`.
    pub(super) fn number(&self, key: &str, min: f64) -> Result<f64, ConfigError> {
        self.optional_number(key, min)?.ok_or_else(|| self.missing(key))
    }

    /// Reads the object at `key`, unless it is absent, `null` or empty.
    pub(super) fn object(&self, key: &str) -> Result<Option<Config>, ConfigError> {
        let keys = self.optional::<Map<String, Value>>(key)?.filter(|keys| !keys.is_empty());
        let prefix = format!("{}{key}.", self.prefix);
        Ok(keys.map(|keys| Config { file: self.file.clone(), prefix, keys }))
    }

    /// Reads the element type that the model is meant for.
    pub(super) fn dtype(&self) -> Result<Option<DType>, ConfigError> {
        for key in ["dtype", "torch_dtype"] {
            if let Some(name) = self.optional::<String>(key)? {
                let known = [DType::F32, DType::F16, DType::BF16];
                let name = name.trim_start_matches("torch.");
                return match known.into_iter().find(|dtype| dtype.name() == name) {
                    Some(dtype) => Ok(Some(dtype)),
                    None => Err(self.unsupported(key, "it must be float32, float16 or bfloat16")),
                };
            }
        }
        Ok(None)
    }

    /// Refuses `key` unless it is absent or has the value `only`.
    pub(super) fn insist(&self, key: &str, only: impl Into<Value>, reason: &str) -> Result<(), ConfigError> {
        match self.value(key) {
            Some(value) if *value != only.into() => Err(self.unsupported(key, reason)),
            _ => Ok(()),
        }
    }

    /// Refuses `key` unless it is absent.
    pub(super) fn refuse(&self, key: &str, reason: &str) -> Result<(), ConfigError> {
        if self.value(key).is_some() { Err(self.unsupported(key, reason)) } else { Ok(()) }
    }

    pub(super) fn missing(&self, key: &str) -> ConfigError {
        ConfigError::Missing { file: self.file.clone(), key: format!("{}{key}", self.prefix) }
    }

    pub(super) fn invalid(&self, key: &str, reason: String) -> ConfigError {
        ConfigError::Invalid { file: self.file.clone(), key: format!("{}{key}", self.prefix), reason }
    }

    pub(super) fn unsupported(&self, key: &str, reason: &str) -> ConfigError {
        let value = match self.value(key) {
            Some(Value::Object(_)) => "{…}".to_owned(),
            Some(value) => value.to_string(),
            None => "null".to_owned(),
        };
        let (file, key) = (self.file.clone(), format!("{}{key}", self.prefix));
        ConfigError::Unsupported { file, key, value, reason: reason.to_owned() }
    }
}
