//! Reads the scheme of a quantized checkpoint.

use millrace_formats::Source;
use millrace_numbers::formats::Scheme;
use millrace_numbers::formats::awq::Awq;
use millrace_numbers::formats::bitsandbytes::Bitsandbytes;
use millrace_numbers::formats::chatglm::ChatGlm;
use millrace_numbers::formats::compressed_tensors::CompressedTensors;
use millrace_numbers::formats::fp8::Fp8;
use millrace_numbers::formats::gptq::Gptq;
use millrace_numbers::formats::mxfp4::Mxfp4;

use super::super::config::Config;
use super::super::error::{ConfigError, LoadError};
use super::compressed::{self, block};

/// Larger groups are typing errors.
const MAX_GROUP: usize = 1 << 20;
/// The files in which older versions of AutoGPTQ and AutoAWQ describe the quantization, and the
/// methods that they leave out.
const OLD_FILES: [(&str, &str); 2] = [("quantize_config.json", "gptq"), ("quant_config.json", "awq")];
/// The key of `config.json` that describes the quantization.
const KEY: &str = "quantization_config";

/// Reads the scheme from `config.json`, or from the file beside it in which older versions of
/// AutoGPTQ and AutoAWQ stored it. Returns `None` if the checkpoint is not quantized.
pub(in super::super) fn read(config: &Config, source: &Source) -> Result<Option<Scheme>, LoadError> {
    for key in [KEY, "compression_config"] {
        if let Some(config) = config.object(key)? {
            let scheme = of(&config, None)?;
            if let Some(file) = contradicting_file(&scheme, source)? {
                tracing::warn!("{file}: its quantization differs from `{key}` of config.json, which is used");
            }
            return Ok(Some(scheme));
        }
    }
    if let Some(scheme) = chatglm(config)? {
        return Ok(Some(scheme));
    }
    for (file, method) in OLD_FILES {
        if let Some(text) = source.text(file)? {
            return Ok(Some(of(&Config::parse(source.path(file), &text)?, Some(method))?));
        }
    }
    Ok(None)
}

/// Returns the path of an older file that describes another scheme than `config.json`, if there is
/// one. A file that is not valid describes another one, too.
fn contradicting_file(scheme: &Scheme, source: &Source) -> Result<Option<String>, LoadError> {
    for (file, method) in OLD_FILES {
        let Some(text) = source.text(file)? else { continue };
        let path = source.path(file);
        let other = Config::parse(path.clone(), &text).and_then(|config| of(&config, Some(method)));
        if other.ok().as_ref() != Some(scheme) {
            return Ok(Some(path));
        }
    }
    Ok(None)
}

/// Reads the scheme that `config` describes. `absent` is the method if the key is absent.
fn of(config: &Config, absent: Option<&str>) -> Result<Scheme, ConfigError> {
    let key = "quant_method";
    let method = config.optional::<String>(key)?.or_else(|| absent.map(str::to_owned));
    let Some(method) = method else {
        // Checkpoints of compressed-tensors have had no such key.
        return if config.mentions("config_groups") { compressed(config) } else { Err(config.missing(key)) };
    };
    match method.as_str() {
        "gptq" => gptq(config),
        "awq" => awq(config),
        "compressed-tensors" => compressed(config),
        "bitsandbytes" => bitsandbytes(config),
        "fp8" | "fbgemm_fp8" => fp8(config),
        "mxfp4" => Ok(Scheme::Mxfp4(Mxfp4)),
        _ => {
            let supported = "gptq, awq, compressed-tensors, bitsandbytes, fp8, fbgemm_fp8 and mxfp4 can be read; \
                             use another checkpoint of the model";
            Err(config.unsupported(key, supported))
        }
    }
}

/// Reads the scheme of a checkpoint that the code of ChatGLM has quantized.
fn chatglm(config: &Config) -> Result<Option<Scheme>, ConfigError> {
    let key = "quantization_bit";
    let is_chatglm = config.optional::<String>("model_type")?.is_some_and(|name| name.starts_with("chatglm"));
    match config.optional::<usize>(key)? {
        Some(bits @ (4 | 8)) if is_chatglm => Ok(Some(Scheme::ChatGlm(ChatGlm { bits }))),
        None | Some(0) => Ok(None),
        Some(_) if is_chatglm => Err(config.unsupported(key, "4 and 8 bits can be read")),
        Some(_) => Ok(None),
    }
}

fn gptq(config: &Config) -> Result<Scheme, ConfigError> {
    let bits = config.size("bits", 64)?;
    if ![2, 3, 4, 8].contains(&bits) {
        return Err(config.unsupported("bits", "GPTQ has 2, 3, 4 or 8"));
    }
    config.insist("is_marlin_format", false, "weights in the order of the Marlin kernel")?;
    let key = if config.mentions("checkpoint_format") { "checkpoint_format" } else { "format" };
    let plus_one = match config.optional::<String>(key)?.as_deref() {
        None | Some("gptq") => true,
        Some("gptq_v2") => false,
        Some(_) => return Err(config.unsupported(key, "gptq and gptq_v2 can be read")),
    };
    if let Some(dynamic) = config.object("dynamic")?
        // Keys that begin with "-:" name modules that are not quantized.
        && let Some(pattern) = dynamic.keys().find(|key| !key.starts_with("-:"))
    {
        let reason = "bits and groups must be the same for all modules";
        return Err(dynamic.unsupported(pattern, reason));
    }
    Ok(Scheme::Gptq(Gptq { bits, group: group(config, "group_size")?, plus_one }))
}

fn awq(config: &Config) -> Result<Scheme, ConfigError> {
    let [bits, size] = [["bits", "w_bit"], ["group_size", "q_group_size"]]
        .map(|keys| if config.mentions(keys[1]) { keys[1] } else { keys[0] });
    if config.size(bits, 64)? != 4 {
        return Err(config.unsupported(bits, "AWQ has 4"));
    }
    config.insist("zero_point", true, "AWQ without zero points")?;
    let gemv = match config.optional::<String>("version")?.map(|version| version.to_lowercase()).as_deref() {
        None | Some("gemm") => false,
        Some("gemv") => true,
        Some(_) => return Err(config.unsupported("version", "gemm and gemv can be read")),
    };
    Ok(Scheme::Awq(Awq { group: group(config, size)?, gemv }))
}

/// Reads a number of columns. -1 stands for all columns of a row.
fn group(config: &Config, key: &str) -> Result<Option<usize>, ConfigError> {
    match config.optional::<i64>(key)? {
        None => Err(config.missing(key)),
        Some(-1) => Ok(None),
        Some(_) => config.size(key, MAX_GROUP).map(Some),
    }
}

fn compressed(config: &Config) -> Result<Scheme, ConfigError> {
    compressed::groups(config).map(|groups| Scheme::CompressedTensors(CompressedTensors { groups }))
}

fn bitsandbytes(config: &Config) -> Result<Scheme, ConfigError> {
    let four = config.flag("load_in_4bit", false)? || config.flag("_load_in_4bit", false)?;
    let eight = config.flag("load_in_8bit", false)? || config.flag("_load_in_8bit", false)?;
    if four == eight {
        let reason = "must be true for exactly one of load_in_4bit and load_in_8bit".to_owned();
        return Err(config.invalid("load_in_4bit", reason));
    }
    if eight {
        return Ok(Scheme::Bitsandbytes(Bitsandbytes::Int8));
    }
    config.insist("bnb_4bit_quant_storage", "uint8", "codes that are stored as other numbers than bytes")?;
    let key = "bnb_4bit_quant_type";
    match config.optional::<String>(key)?.as_deref() {
        Some("nf4") => Ok(Scheme::Bitsandbytes(Bitsandbytes::Nf4)),
        // bitsandbytes chooses fp4 if nothing else is said.
        None | Some("fp4") => Ok(Scheme::Bitsandbytes(Bitsandbytes::Fp4)),
        Some(_) => Err(config.unsupported(key, "nf4 and fp4 can be read")),
    }
}

fn fp8(config: &Config) -> Result<Scheme, ConfigError> {
    for key in ["fmt", "weight_dtype"] {
        config.insist(key, "e4m3", "weights must be e4m3")?;
    }
    Ok(Scheme::Fp8(Fp8 { block: block(config, "weight_block_size")? }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGREES: &[u8] = br#"{"bits": 4, "group_size": 32}"#;
    const DIFFERS: &[u8] = br#"{"bits": 8, "group_size": 32}"#;

    #[test]
    fn an_older_file_with_another_scheme_is_named() {
        let scheme = Scheme::Gptq(Gptq { bits: 4, group: Some(32), plus_one: true });
        type Files = &'static [(&'static str, &'static [u8])];
        let cases: [(Files, Option<&str>); 4] = [
            (&[], None),
            (&[("quantize_config.json", AGREES)], None),
            (&[("quantize_config.json", DIFFERS)], Some("quantize_config.json of the built-in model")),
            (&[("quant_config.json", b"{")], Some("quant_config.json of the built-in model")),
        ];
        for (files, expected) in cases {
            let found = contradicting_file(&scheme, &Source::Memory(files)).unwrap();
            assert_eq!(found.as_deref(), expected);
        }
    }
}
