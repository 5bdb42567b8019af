//! Flags of vLLM, llama.cpp and SGLang that are understood.
//!
//! A flag that has a counterpart here is replaced by it, one that asks for what Millrace does
//! anyway is removed, and both are announced. Flags whose meaning differs are refused with a
//! sentence that says what to use. All other unknown flags get the hint of [`super::elsewhere`].

use std::ffi::OsString;

/// The treatment of a flag.
#[derive(Debug, Clone, Copy)]
enum Treatment {
    /// Its counterpart, with the same value.
    Replace(&'static str),
    /// Nothing, for this reason.
    Remove(Value, &'static str),
    /// The error has this sentence.
    Refuse(&'static str),
    /// The number of layers on the GPU.
    GpuLayers,
    /// A repository, of which llama.cpp downloads one GGUF file.
    Repository,
}

/// The value behind a flag.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Value {
    None,
    One,
    /// One of the words of llama.cpp's switches, or nothing.
    Switch,
}

use Treatment::{GpuLayers, Refuse, Remove, Replace, Repository};

const BATCHES: &str = "prompts are computed in chunks beside running requests";
const MAPPED: &str = "the files of a model are mapped, and its weights are copied where that is faster";
const LOGGED: &str = "only --log-requests logs prompts";
const GGUF_ADAPTER: &str = "adapters are read in PEFT's layout; use --lora-modules NAME=FOLDER";
const KV_TYPE: &str = "use --kv-cache-dtype float16, bfloat16, float32 or int8, for keys and values together";

const FLAGS: &[(&str, Treatment)] = &[
    // llama.cpp
    ("-hf", Repository),
    ("-hfr", Repository),
    ("--hf-repo", Repository),
    ("-t", Replace("--threads")),
    ("-np", Replace("--parallel")),
    ("-a", Replace("--alias")),
    ("--no-webui", Replace("--disable-ui")),
    ("-ngl", GpuLayers),
    ("--gpu-layers", GpuLayers),
    ("--n-gpu-layers", GpuLayers),
    ("-fa", Remove(Value::Switch, "attention never stores its matrix of scores")),
    ("--flash-attn", Remove(Value::Switch, "attention never stores its matrix of scores")),
    ("--jinja", Remove(Value::None, "chat templates are always rendered")),
    ("-cb", Remove(Value::None, BATCHES)),
    ("--cont-batching", Remove(Value::None, BATCHES)),
    ("--metrics", Remove(Value::None, "/metrics is always there")),
    ("--mlock", Remove(Value::None, MAPPED)),
    ("--no-mmap", Remove(Value::None, MAPPED)),
    ("--lora", Refuse(GGUF_ADAPTER)),
    ("--lora-scaled", Refuse(GGUF_ADAPTER)),
    ("-ctk", Refuse(KV_TYPE)),
    ("-ctv", Refuse(KV_TYPE)),
    ("--cache-type-k", Refuse(KV_TYPE)),
    ("--cache-type-v", Refuse(KV_TYPE)),
    // vLLM
    (
        "--enable-auto-tool-choice",
        Remove(Value::None, "the model decides whether it calls a tool unless a request says otherwise"),
    ),
    (
        "--enforce-eager",
        Remove(Value::None, "CUDA graphs compute the same; --cuda-graphs 0 turns them off to save memory"),
    ),
    ("--enable-prefix-caching", Remove(Value::None, "the prefix cache is on unless --prefix-caching=false")),
    ("--no-enable-prefix-caching", Refuse("use --prefix-caching=false")),
    ("--enable-chunked-prefill", Remove(Value::None, BATCHES)),
    (
        "--fully-sharded-loras",
        Remove(Value::None, "the ranks divide adapters as they divide the matrices of the model"),
    ),
    ("--disable-log-requests", Remove(Value::None, LOGGED)),
    ("--no-enable-log-requests", Remove(Value::None, LOGGED)),
    ("--enable-log-requests", Replace("--log-requests")),
    ("--disable-log-stats", Remove(Value::None, "figures are at /metrics only")),
    ("--swap-space", Remove(Value::One, "nothing is swapped: sequences without room are computed again")),
    // SGLang
    ("--lora-paths", Replace("--lora-modules")),
];

/// Subcommands in which these flags are understood. The others have files as arguments.
const SUBCOMMANDS: &[&str] = &["serve", "chat", "generate", "bench", "inspect"];

/// Replaces the flags of other servers in a command line that begins with the program and the
/// subcommand. The second result has a warning for each.
///
/// # Errors
/// A sentence about a flag whose counterpart is a different one.
pub(crate) fn translated(arguments: Vec<OsString>) -> Result<(Vec<OsString>, Vec<String>), String> {
    let subcommand = arguments.get(1).and_then(|name| name.to_str()).unwrap_or_default().to_owned();
    if !SUBCOMMANDS.contains(&subcommand.as_str()) {
        return Ok((arguments, Vec::new()));
    }
    let (mut ours, mut warnings) = (Vec::with_capacity(arguments.len()), Vec::new());
    let mut rest = arguments.into_iter().peekable();
    while let Some(argument) = rest.next() {
        if argument == "--" {
            ours.push(argument);
            ours.extend(rest);
            break;
        }
        let Some((flag, attached)) = argument.to_str().map(split) else {
            ours.push(argument);
            continue;
        };
        // `-t` is the temperature of the commands that sample in the terminal.
        let is_own = flag == "-t" && matches!(subcommand.as_str(), "chat" | "generate");
        let known = FLAGS.iter().find(|(name, _)| *name == flag && !is_own);
        let Some(&(name, treatment)) = known else {
            ours.push(argument);
            continue;
        };
        match treatment {
            Replace(counterpart) => {
                ours.push(counterpart.into());
                ours.extend(attached);
                warnings.push(format!("{name} is {counterpart} here"));
            }
            Remove(kind, reason) => {
                let takes_next = match kind {
                    Value::None => false,
                    Value::One => true,
                    Value::Switch => rest.peek().is_some_and(is_switch),
                };
                if takes_next && attached.is_none() {
                    rest.next();
                }
                warnings.push(format!("{name} has no effect: {reason}"));
            }
            Refuse(sentence) => return Err(format!("{name}: {sentence}")),
            GpuLayers => match attached.or_else(|| rest.next()).as_ref().and_then(|value| value.to_str()) {
                Some("0") => {
                    ours.extend(["--device".into(), "cpu".into()]);
                    warnings.push(format!("{name} 0 is --device cpu here"));
                }
                _ => warnings.push(format!(
                    "{name} has no effect: a GPU computes all layers that fit; --gpu-memory limits their memory"
                )),
            },
            Repository => {
                let repository = attached.or_else(|| rest.next()).unwrap_or_default();
                check_repository(name, &repository)?;
                ours.extend(["--model-id".into(), repository]);
                warnings.push(format!("{name} is --model-id here"));
            }
        }
    }
    Ok((ours, warnings))
}

/// Splits `--flag=value`.
fn split(argument: &str) -> (&str, Option<OsString>) {
    match argument.split_once('=') {
        Some((flag, value)) if flag.starts_with("--") => (flag, Some(value.into())),
        _ => (argument, None),
    }
}

fn is_switch(argument: &OsString) -> bool {
    ["on", "off", "auto", "0", "1"].iter().any(|word| argument == word)
}

/// Refuses a repository with the name of a quantization behind it.
fn check_repository(flag: &str, repository: &OsString) -> Result<(), String> {
    match repository.to_str().and_then(|text| text.split_once(':')) {
        Some((name, format)) => Err(format!(
            "{flag} {name}:{format}: the hub is asked for safetensors only; download the GGUF file, and give its path \
             as the model"
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;
    use crate::cli::Cli;

    fn words(line: &str) -> Vec<OsString> {
        line.split_whitespace().map(OsString::from).collect()
    }

    #[test]
    fn flags_with_a_counterpart_are_replaced() {
        for (line, wanted, warnings) in [
            (
                "millrace serve -hf a/b -t 4 -np 8",
                "millrace serve --model-id a/b --threads 4 --parallel 8",
                3,
            ),
            ("millrace serve --hf-repo=a/b", "millrace serve --model-id a/b", 1),
            ("millrace chat m -t 0.5", "millrace chat m -t 0.5", 0),
            ("millrace bench m -t 2", "millrace bench m --threads 2", 1),
            ("millrace serve m -ngl 99 --port 1", "millrace serve m --port 1", 1),
            ("millrace serve m -ngl 0", "millrace serve m --device cpu", 1),
            ("millrace serve --n-gpu-layers=0", "millrace serve --device cpu", 1),
            ("millrace serve -fa m", "millrace serve m", 1),
            ("millrace serve -fa on m", "millrace serve m", 1),
            ("millrace serve --flash-attn=auto m", "millrace serve m", 1),
            ("millrace serve --jinja --enforce-eager --enable-auto-tool-choice m", "millrace serve m", 3),
            ("millrace serve --swap-space 4 m", "millrace serve m", 1),
            ("millrace serve --lora-paths a=b c=d", "millrace serve --lora-modules a=b c=d", 1),
            ("millrace serve --enable-log-requests", "millrace serve --log-requests", 1),
            ("millrace generate m -- -fa", "millrace generate m -- -fa", 0),
            ("millrace convert -t 4", "millrace convert -t 4", 0),
            ("millrace", "millrace", 0),
        ] {
            let (ours, said) = translated(words(line)).unwrap();
            assert_eq!((ours, said.len()), (words(wanted), warnings), "{line}: {said:?}");
        }
    }

    #[test]
    fn other_flags_are_refused_with_the_way() {
        for (line, sentence) in [
            ("millrace serve -ctk q8_0", "-ctk: use --kv-cache-dtype"),
            ("millrace serve -hf a/b:Q4_K_M", "-hf a/b:Q4_K_M: the hub is asked for safetensors only"),
            ("millrace serve --lora a.gguf", "--lora: adapters are read in PEFT's layout"),
            ("millrace serve --no-enable-prefix-caching", "use --prefix-caching=false"),
        ] {
            let error = translated(words(line)).unwrap_err();
            assert!(error.contains(sentence), "{line}: {error}");
        }
    }

    #[test]
    fn flags_of_others_are_none_of_ours_and_counterparts_are() {
        let command = Cli::command();
        let serve = command.find_subcommand("serve").unwrap();
        let is_ours = |flag: &str| {
            let long = flag.strip_prefix("--").unwrap_or_default();
            let short =
                flag.strip_prefix('-').filter(|name| name.len() == 1).and_then(|name| name.chars().next());
            serve.get_arguments().any(|argument| {
                argument.get_long() == Some(long)
                    || argument.get_all_aliases().is_some_and(|aliases| aliases.contains(&long))
                    || (short.is_some() && argument.get_short() == short)
            })
        };
        for (name, treatment) in FLAGS {
            assert!(!is_ours(name), "{name} is a flag");
            if let Replace(counterpart) = treatment {
                assert!(is_ours(counterpart), "{counterpart} is no flag");
            }
        }
    }
}
