//! Reads the configuration of compressed-tensors.

use millrace_numbers::formats::compressed_tensors::{CompressedGroup, CompressedKind};
use millrace_numbers::scales::Sharing;

use super::super::config::Config;
use super::super::error::ConfigError;

/// Reads the groups of modules. Which module belongs to which group follows from the shapes of its
/// tensors, so that `targets` need no reading.
pub(super) fn groups(config: &Config) -> Result<Vec<CompressedGroup>, ConfigError> {
    if let Some(sparsity) = config.object("sparsity_config")? {
        sparsity.insist("format", "dense", "sparse weights")?;
    }
    if let Some(transforms) = config.object("transform_config")? {
        transforms.refuse("config_groups", "weights that were rotated")?;
    }
    let Some(list) = config.object("config_groups")? else { return Err(config.missing("config_groups")) };
    let mut groups = Vec::new();
    for name in list.keys() {
        let Some(group) = list.object(name)? else { return Err(list.missing(name)) };
        let Some(weights) = group.object("weights")? else { continue };
        // A group may have a format of its own.
        let from = if group.optional::<String>("format")?.is_some() { &group } else { config };
        groups.push(read(&weights, from)?);
    }
    if groups.is_empty() {
        return Err(config.invalid("config_groups", "quantizes no weights".to_owned()));
    }
    Ok(groups)
}

fn read(weights: &Config, from: &Config) -> Result<CompressedGroup, ConfigError> {
    let format: String = from.optional("format")?.ok_or_else(|| from.missing("format"))?;
    let is_float = match weights.optional::<String>("type")?.as_deref() {
        None | Some("int") => false,
        Some("float") => true,
        Some(_) => return Err(weights.unsupported("type", "int and float can be read")),
    };
    let kind = match (format.as_str(), is_float) {
        ("pack-quantized", false) => CompressedKind::Packed,
        ("int-quantized" | "naive-quantized", false) => CompressedKind::Bytes,
        ("float-quantized" | "naive-quantized", true) => CompressedKind::Float8,
        _ => {
            let supported = "pack-quantized and int-quantized integers and float-quantized fp8 can be read";
            return Err(from.unsupported("format", supported));
        }
    };
    let bits = weights.size("num_bits", 64)?;
    let supported: (&[usize], &str) = match kind {
        CompressedKind::Packed => (&[2, 3, 4, 8], "packed integers have 2, 3, 4 or 8 bits"),
        CompressedKind::Bytes => (&[8], "integers that are not packed have 8 bits"),
        CompressedKind::Float8 => (&[8], "floating-point weights have 8 bits"),
    };
    if !supported.0.contains(&bits) {
        return Err(weights.unsupported("num_bits", supported.1));
    }
    let symmetric = weights.flag("symmetric", true)?;
    if is_float && !symmetric {
        return Err(weights.unsupported("symmetric", "floating-point weights have no zero points"));
    }
    let sharing = sharing(weights)?;
    if matches!(sharing, Sharing::Block(_)) && kind != CompressedKind::Float8 {
        return Err(weights.unsupported("strategy", "only floating-point weights have blocks"));
    }
    Ok(CompressedGroup { kind, bits, symmetric, sharing })
}

fn sharing(weights: &Config) -> Result<Sharing, ConfigError> {
    let key = "strategy";
    let group = match weights.optional::<i64>("group_size")? {
        None | Some(-1) => None,
        Some(_) => Some(weights.size("group_size", 1 << 20)?),
    };
    match (weights.optional::<String>(key)?.as_deref(), group) {
        (Some("tensor"), _) | (None, None) => Ok(Sharing::Tensor),
        (Some("channel"), _) => Ok(Sharing::Row),
        (Some("group") | None, Some(group)) => Ok(Sharing::Group(group)),
        (Some("group"), None) => Err(weights.missing("group_size")),
        (Some("block"), _) => match block(weights, "block_structure")? {
            Some(block) => Ok(Sharing::Block(block)),
            None => Err(weights.missing("block_structure")),
        },
        _ => Err(weights.unsupported(key, "tensor, channel, group and block can be read")),
    }
}

/// Reads the rows and columns of a block.
pub(super) fn block(config: &Config, key: &str) -> Result<Option<[usize; 2]>, ConfigError> {
    match config.optional::<[usize; 2]>(key)? {
        Some(block) if block.contains(&0) => Err(config.invalid(key, "has a size of 0".to_owned())),
        block => Ok(block),
    }
}
