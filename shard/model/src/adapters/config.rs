//! Reads `adapter_config.json` of PEFT.
//!
//! The keys are sorted into three groups: those that are applied, those that must have a value
//! which changes nothing, and those that only matter while an adapter is trained. A key that is in
//! none of them is named in a warning, unless its value says that it is not used.

use std::path::Path;

use millrace_formats::{regular_file, without_special_numbers};
use serde_json::{Map, Value};

use super::error::{AdapterError, shortened};
use super::patterns::Patterns;

/// Name of the file.
pub(super) const NAME: &str = "adapter_config.json";

/// The largest size of the file in bytes. Patterns for each module of a large model have less than
/// one megabyte.
const MAX_BYTES: u64 = 4 << 20;
/// The largest rank of a product.
pub(super) const MAX_RANK: usize = 1024;
/// The largest `lora_alpha`. It bounds the numbers that are multiplied into the weights.
const MAX_ALPHA: f64 = 1e6;
/// The ways to initialize the weights that leave the weights of the model as they are.
const INITIAL: [&str; 4] = ["gaussian", "eva", "orthogonal", "mica"];

/// The keys that must have a value which changes nothing: `null`, `false`, or an empty list, object
/// or text. For each, what other values would mean.
const UNSUPPORTED: &[(&str, &str)] = &[
    ("use_dora", "it rescales the rows of the merged weights (DoRA)"),
    ("lora_bias", "its products have biases"),
    ("modules_to_save", "it replaces whole modules of the model"),
    ("trainable_token_indices", "it replaces rows of the embedding"),
    ("target_parameters", "it changes parameters that are not modules, such as fused experts"),
    ("alora_invocation_tokens", "it is active only after certain tokens"),
    ("use_qalora", "it averages groups of input features"),
    ("layer_replication", "it repeats layers of the model"),
    ("megatron_config", "it changes modules of Megatron"),
    ("use_bdlora", "its matrices are block-diagonal"),
    ("arrow_config", "it chooses among several adapters for each token"),
    ("kasa_config", "it removes the smallest singular values of the model's weights"),
    ("monteclora_config", "its weights are samples of a distribution"),
];

/// The keys that change no results once an adapter is trained.
const TRAINING_ONLY: &[&str] = &[
    "auto_mapping",
    "base_model_name_or_path",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "loftq_config",
    "lora_dropout",
    "lora_ga_config",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "velora_config",
];

/// The keys that are applied.
const APPLIED: &[&str] = &[
    "alpha_pattern",
    "bias",
    "init_lora_weights",
    "lora_alpha",
    "peft_type",
    "r",
    "rank_pattern",
    "use_rslora",
];

/// The ranks and scales of an adapter's products.
#[derive(Debug)]
pub(super) struct AdapterConfig {
    file: String,
    rank: usize,
    alpha: f64,
    ranks: Patterns<usize>,
    alphas: Patterns<f64>,
    /// Whether scales are divided by the root of the rank.
    by_root: bool,
}

/// The rank of a module's product, and the factor on it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct RankAndScale {
    pub(super) rank: usize,
    pub(super) scale: f64,
}

impl AdapterConfig {
    /// Reads the file in `folder`. Unknown keys are named in a warning.
    pub(super) fn read(folder: &Path) -> Result<Self, AdapterError> {
        let path = folder.join(NAME);
        let file = path.display().to_string();
        let text = regular_file::read(&path, MAX_BYTES).map_err(|source| match source.kind() {
            std::io::ErrorKind::NotFound => AdapterError::MissingFile {
                folder: folder.to_owned(),
                name: NAME,
                advice: "an adapter is a folder that PEFT has written".to_owned(),
            },
            _ => AdapterError::Read { file: file.clone(), source },
        })?;
        let (config, unknown) = Self::parse(file, &text)?;
        if !unknown.is_empty() {
            tracing::warn!("{}: unknown keys are ignored: {}", config.file, unknown.join(", "));
        }
        Ok(config)
    }

    /// Parses the text of `file`. Returns the configuration and the names of unknown keys.
    pub(super) fn parse(file: String, text: &[u8]) -> Result<(Self, Vec<String>), AdapterError> {
        let text = without_special_numbers(text);
        let keys = match serde_json::from_slice(&text) {
            Ok(keys) => Keys { file, keys },
            Err(source) => return Err(AdapterError::Json { file, source }),
        };
        keys.check_kind()?;
        for &(key, reason) in UNSUPPORTED {
            keys.insist(key, reason, is_unused)?;
        }
        let patterns: OrderedPatterns = match serde_json::from_slice(&text) {
            Ok(patterns) => patterns,
            Err(source) => return Err(AdapterError::Json { file: keys.file, source }),
        };
        let rank = keys.rank("r", keys.keys.get("r"))?;
        let alpha = keys.alpha("lora_alpha", keys.keys.get("lora_alpha"))?;
        let ranks = keys.patterns("rank_pattern", patterns.rank_pattern, Keys::rank)?;
        let alphas = keys.patterns("alpha_pattern", patterns.alpha_pattern, Keys::alpha)?;
        let by_root = match keys.keys.get("use_rslora") {
            None | Some(Value::Null) => false,
            Some(Value::Bool(by_root)) => *by_root,
            Some(_) => return Err(keys.invalid("use_rslora", "is neither true nor false")),
        };
        let is_known = |key: &str| {
            APPLIED.contains(&key)
                || TRAINING_ONLY.contains(&key)
                || UNSUPPORTED.iter().any(|(known, _)| *known == key)
        };
        let unknown = keys.keys.iter().filter(|(key, value)| !is_known(key) && !is_unused(value));
        let unknown = unknown.map(|(key, _)| shortened(key)).collect();
        let file = keys.file;
        Ok((AdapterConfig { file, rank, alpha, ranks, alphas, by_root }, unknown))
    }

    /// Returns the rank and the scale of the product of a module with this name.
    pub(super) fn of_module(&self, module: &str) -> RankAndScale {
        let rank = self.ranks.find(module).unwrap_or(self.rank);
        let alpha = self.alphas.find(module).unwrap_or(self.alpha);
        let divisor = if self.by_root { (rank as f64).sqrt() } else { rank as f64 };
        RankAndScale { rank, scale: alpha / divisor }
    }
}

/// The patterns in the order of the file, because the first one that matches is used.
#[derive(serde::Deserialize)]
struct OrderedPatterns {
    #[serde(default, deserialize_with = "super::patterns::pairs")]
    rank_pattern: Vec<(String, Value)>,
    #[serde(default, deserialize_with = "super::patterns::pairs")]
    alpha_pattern: Vec<(String, Value)>,
}

/// The keys of the file.
struct Keys {
    file: String,
    keys: Map<String, Value>,
}

impl Keys {
    /// Checks the keys that say which method the adapter uses.
    fn check_kind(&self) -> Result<(), AdapterError> {
        let Some(kind) = self.keys.get("peft_type").filter(|kind| !kind.is_null()) else {
            return Err(self.invalid("peft_type", "is missing"));
        };
        if kind != "LORA" {
            return Err(self.unsupported("peft_type", kind, "it must be LORA"));
        }
        self.insist("bias", "it replaces biases of the model", |bias| *bias == "none" || is_unused(bias))?;
        self.insist("init_lora_weights", "it changes the weights of the model", |initial| {
            initial.is_null()
                || initial.is_boolean()
                || initial.as_str().is_some_and(|name| INITIAL.contains(&name))
        })
    }

    /// Refuses a key whose value does not satisfy `is_fine`.
    fn insist(
        &self,
        key: &str,
        reason: &'static str,
        is_fine: impl Fn(&Value) -> bool,
    ) -> Result<(), AdapterError> {
        match self.keys.get(key).filter(|value| !is_fine(value)) {
            Some(value) => Err(self.unsupported(key, value, reason)),
            None => Ok(()),
        }
    }

    /// Reads a rank, from 1 to [`MAX_RANK`].
    fn rank(&self, key: &str, value: Option<&Value>) -> Result<usize, AdapterError> {
        let Some(value) = value else { return Err(self.invalid(key, "is missing")) };
        match value.as_u64().and_then(|rank| usize::try_from(rank).ok()) {
            Some(rank) if (1..=MAX_RANK).contains(&rank) => Ok(rank),
            _ => {
                let reason = format!("is {}, but must be a rank from 1 to {MAX_RANK}", shown(value));
                Err(self.invalid(key, reason))
            }
        }
    }

    /// Reads a numerator of scales, at most [`MAX_ALPHA`] on both sides of 0.
    fn alpha(&self, key: &str, value: Option<&Value>) -> Result<f64, AdapterError> {
        let Some(value) = value else { return Err(self.invalid(key, "is missing")) };
        // NaN is read as a text or an object, and is no number.
        match value.as_f64() {
            Some(alpha) if alpha.abs() <= MAX_ALPHA => Ok(alpha),
            _ => {
                let limits = format!("must be a number from -{MAX_ALPHA} to {MAX_ALPHA}");
                Err(self.invalid(key, format!("is {}, but {limits}", shown(value))))
            }
        }
    }

    /// Reads the patterns at `key`, whose values are read by `read`.
    fn patterns<T: Copy>(
        &self,
        key: &str,
        pairs: Vec<(String, Value)>,
        read: impl Fn(&Self, &str, Option<&Value>) -> Result<T, AdapterError>,
    ) -> Result<Patterns<T>, AdapterError> {
        let mut read_pairs = Vec::with_capacity(pairs.len());
        for (pattern, value) in pairs {
            let value = read(self, &format!("{key}.{}", shortened(&pattern)), Some(&value))?;
            read_pairs.push((pattern, value));
        }
        Patterns::new(read_pairs).map_err(|reason| self.invalid(key, reason))
    }

    fn invalid(&self, key: &str, reason: impl Into<String>) -> AdapterError {
        AdapterError::Invalid { file: self.file.clone(), key: key.to_owned(), reason: reason.into() }
    }

    fn unsupported(&self, key: &str, value: &Value, reason: &'static str) -> AdapterError {
        let (file, key) = (self.file.clone(), key.to_owned());
        AdapterError::Unsupported { file, key, value: shown(value), reason }
    }
}

/// Returns whether a value says that a key is not used.
fn is_unused(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::Array(entries) => entries.is_empty(),
        Value::Object(entries) => entries.is_empty(),
        Value::String(text) => text.is_empty(),
        _ => false,
    }
}

/// Returns a value for a message.
fn shown(value: &Value) -> String {
    match value {
        Value::String(text) => shortened(text),
        value => shortened(&value.to_string()),
    }
}
