//! Values of flags, and their parsers.

use clap::ValueEnum;
use clap::builder::RangedU64ValueParser;
use millrace_model::families::RopeKind;
use millrace_model::{DType, KvFormat, Quantize};
use millrace_shard::GpuMemory;
use serde::{Deserialize, Serialize};

/// Element types.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum DTypeArg {
    /// As in the checkpoint.
    Auto,
    /// 32 bits.
    #[value(name = "float32", aliases = ["f32", "fp32", "float"])]
    Float32,
    /// 16 bits, IEEE.
    #[value(name = "float16", aliases = ["f16", "fp16", "half"])]
    Float16,
    /// 16 bits, with the exponent range of float32.
    #[value(name = "bfloat16", alias = "bf16")]
    Bfloat16,
}

/// Formats of the KV cache.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum KvCacheArg {
    /// As the weights.
    Auto,
    /// 32 bits.
    #[value(name = "float32", aliases = ["f32", "fp32", "float"])]
    Float32,
    /// 16 bits, IEEE.
    #[value(name = "float16", aliases = ["f16", "fp16", "half"])]
    Float16,
    /// 16 bits, with the exponent range of float32.
    #[value(name = "bfloat16", alias = "bf16")]
    Bfloat16,
    /// 8-bit integers with a scale per token and head, on the CPU.
    Int8,
}

impl DTypeArg {
    /// Returns the type; `None` for that of the checkpoint.
    pub(super) const fn chosen(self) -> Option<DType> {
        match self {
            DTypeArg::Auto => None,
            DTypeArg::Float32 => Some(DType::F32),
            DTypeArg::Float16 => Some(DType::F16),
            DTypeArg::Bfloat16 => Some(DType::BF16),
        }
    }
}

impl KvCacheArg {
    /// Returns the format; `None` for that of the weights.
    pub(super) fn chosen(self) -> Option<KvFormat> {
        match self {
            KvCacheArg::Auto => None,
            KvCacheArg::Float32 => Some(DType::F32.into()),
            KvCacheArg::Float16 => Some(DType::F16.into()),
            KvCacheArg::Bfloat16 => Some(DType::BF16.into()),
            KvCacheArg::Int8 => Some(KvFormat::Int8),
        }
    }
}

/// Precisions of the inputs of matrix products.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum ActivationsArg {
    /// That of the weights, where the instruction set multiplies it directly.
    #[default]
    Rounded,
    /// Single precision.
    Exact,
}

/// Kinds of rotary position scaling.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum RopeScalingArg {
    /// Positions are divided by the factor.
    Linear,
    /// The base grows with the length of the sequence (NTK).
    Dynamic,
}

impl From<RopeScalingArg> for RopeKind {
    fn from(argument: RopeScalingArg) -> Self {
        match argument {
            RopeScalingArg::Linear => RopeKind::Linear,
            RopeScalingArg::Dynamic => RopeKind::Dynamic,
        }
    }
}

/// Parses a value of `--quantize`. The error for formats of TGI and vLLM that are not supported
/// names those that are.
pub(super) fn quantize(name: &str) -> Result<Quantize, String> {
    // EETQ makes integers of 8 bits with a scale per output row too.
    let name = if name == "eetq" { Quantize::Int8.name() } else { name };
    Quantize::ALL.into_iter().find(|quantize| quantize.name() == name).ok_or_else(|| {
        "not supported; fp8, int8, eetq, q8_0, int4, q4_0, q4_k, q5_k and q6_k, and on the CPU nf4 are, for checkpoints \
         that are not quantized, and gptq, awq, compressed-tensors, bitsandbytes, bitsandbytes-nf4, \
         bitsandbytes-fp4 and fp8 for those that are. Omit the flag to serve a checkpoint as it is"
            .to_owned()
    })
}

/// Parses a factor of rotary positions.
pub(super) fn rope_factor(text: &str) -> Result<f64, String> {
    let factor = text.parse().ok().filter(|factor: &f64| *factor >= 1.0 && factor.is_finite());
    factor.ok_or_else(|| "must be a number of at least 1".to_owned())
}

/// Parses a duration in seconds, from a millisecond to a year.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (1e-3..3.2e7).contains(&seconds) {
        Ok(seconds)
    } else {
        Err("must be at least 0.001, and below a year".into())
    }
}

/// The largest limit that a flag accepts. Semaphores and sums of limits have room for it.
const MAX_COUNT: u64 = 1 << 40;

/// Returns the parser of a limit of things or bytes, of which there must be one.
pub(super) fn count() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(1..=MAX_COUNT)
}

/// Returns the parser of a limit that may be 0.
pub(super) fn count_or_none() -> RangedU64ValueParser<usize> {
    RangedU64ValueParser::new().range(..=MAX_COUNT)
}

/// Parses a number of milliseconds, which may be 0.
pub(super) fn milliseconds(text: &str) -> Result<f64, String> {
    let milliseconds: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if (0.0..=1e6).contains(&milliseconds) {
        Ok(milliseconds)
    } else {
        Err("must be from 0 to 1000000".into())
    }
}

/// Parses a share above 0 and up to 1.
pub(super) fn share(text: &str) -> Result<f64, String> {
    let share: f64 = text.parse().map_err(|_| "not a number".to_owned())?;
    if share > 0.0 && share <= 1.0 { Ok(share) } else { Err("must be above 0 and at most 1".into()) }
}

/// The most checkpoints of recurrent states. Each of them is looked at when a sequence begins.
const MAX_STATE_CHECKPOINTS: u32 = 4096;

/// Parses a number of checkpoints of recurrent states, or `off`.
pub(super) fn state_checkpoints(text: &str) -> Result<u32, String> {
    match text.parse() {
        Ok(count) if count <= MAX_STATE_CHECKPOINTS => Ok(count),
        Err(_) if text == "off" => Ok(0),
        _ => Err(format!("neither a number up to {MAX_STATE_CHECKPOINTS} nor `off`")),
    }
}

/// Parses the memory that may be taken of a GPU: a number of bytes, or a share of the free memory.
pub(super) fn gpu_memory(text: &str) -> Result<GpuMemory, String> {
    match share(text) {
        // 1 is everything, because no GPU computes with one byte.
        Ok(share) => Ok(GpuMemory::Share(share)),
        Err(_) => bytes(text)
            .map(GpuMemory::Bytes)
            .map_err(|_| "neither a number of bytes such as 6G nor a share such as 0.5".to_owned()),
    }
}

/// Parses a number of bytes, such as 500M or 5GB.
pub(super) fn bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(['b', 'B']);
    let (digits, unit) = match digits.as_bytes().last() {
        Some(b'k' | b'K') => (&digits[..digits.len() - 1], 1_000),
        Some(b'm' | b'M') => (&digits[..digits.len() - 1], 1_000_000),
        Some(b'g' | b'G') => (&digits[..digits.len() - 1], 1_000_000_000),
        _ => (digits, 1),
    };
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit));
    count.filter(|&count| count > 0).ok_or_else(|| "not a number of bytes such as 500M or 5G".to_owned())
}

/// Parses a number of bytes, such as 500M, or 0.
pub(super) fn bytes_or_zero(text: &str) -> Result<usize, String> {
    if text == "0" { Ok(0) } else { bytes(text) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_of_a_gpu_is_a_size_or_a_share() {
        for (text, want) in [
            ("6G", GpuMemory::Bytes(6_000_000_000)),
            ("500MB", GpuMemory::Bytes(500_000_000)),
            ("4096", GpuMemory::Bytes(4096)),
            ("0.5", GpuMemory::Share(0.5)),
            ("1", GpuMemory::Share(1.0)),
        ] {
            assert_eq!(gpu_memory(text), Ok(want), "{text}");
        }
        for text in ["0", "1.5", "-1", "half", "6Q", "99999999999999G"] {
            let error = gpu_memory(text).unwrap_err();
            assert!(error.contains("such as 6G"), "{text}: {error}");
        }
    }

    #[test]
    fn a_number_of_bytes_may_be_zero_where_zero_means_none() {
        assert_eq!((bytes("64M"), bytes_or_zero("64M")), (Ok(64_000_000), Ok(64_000_000)));
        assert_eq!(bytes_or_zero("0"), Ok(0));
        assert!(bytes("0").is_err() && bytes_or_zero("-1").is_err() && bytes_or_zero("0M").is_err());
    }
}
