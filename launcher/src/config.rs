//! `--config FILE`: flags in a TOML file.
//!
//! Values in the file replace the defaults, so that a flag or an environment variable still takes
//! precedence.

use std::ffi::OsString;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{ArgAction, ArgMatches, Command};
use millrace_formats::regular_file;
use toml::{Table, Value};

use crate::cli::known_elsewhere;

/// Lowest Jaro-Winkler similarity at which an existing name is suggested for an unknown one.
const NEAR: f64 = 0.7;

/// The maximum number of bytes of the file.
const MAX_CONFIG: u64 = 1 << 20;

/// Parses the command line of this process, whose subcommand may name a file with more flags. Ends
/// the process if the command line is wrong or asks for help.
///
/// # Errors
/// If the file cannot be read, or a key in it is not a flag.
pub(crate) fn parse(command: Command, arguments: &[OsString]) -> Result<ArgMatches> {
    try_parse(command, arguments).map_err(|error| match error.downcast() {
        Ok(wrong) => exit(wrong),
        Err(error) => error,
    })
}

/// Parses a command line whose subcommand may name a file with more flags.
///
/// # Errors
/// If the command line is wrong, the file cannot be read, or a key in it is not a flag.
pub(crate) fn try_parse(command: Command, arguments: &[OsString]) -> Result<ArgMatches> {
    let matches = command.clone().try_get_matches_from(arguments)?;
    let Some((name, sub)) = matches.subcommand() else { return Ok(matches) };
    let Ok(Some(path)) = sub.try_get_one::<std::path::PathBuf>("config") else { return Ok(matches) };
    let table = read(path)?;
    let about = || format!("--config {}", path.display());
    let mut changed = command;
    for (key, value) in table {
        let flag = key.replace('_', "-");
        let Some(known) = changed.find_subcommand(name) else { break };
        let argument = known.get_arguments().find(|arg| {
            arg.get_long() == Some(flag.as_str())
                || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&flag.as_str()))
        });
        let Some(argument) = argument.filter(|arg| arg.get_long() != Some("config")) else {
            bail!("{}: there is no flag `{key}`{}", about(), nearest(known, &flag));
        };
        let id = argument.get_id().clone();
        let many = matches!(argument.get_action(), ArgAction::Append);
        let values = texts(&value).with_context(|| format!("{}: `{key}`", about()))?;
        ensure!(many || values.len() == 1, "{}: `{key}` takes one value", about());
        changed =
            changed.mut_subcommand(name, |sub| sub.mut_arg(id, |argument| argument.default_values(values)));
    }
    Ok(changed.try_get_matches_from(arguments)?)
}

/// Prints an error in the command line and ends the process.
fn exit(error: clap::Error) -> ! {
    with_hint(error).exit()
}

/// Adds a hint to the error if the unknown flag belongs to another server.
fn with_hint(mut error: clap::Error) -> clap::Error {
    if error.kind() != ErrorKind::UnknownArgument {
        return error;
    }
    let Some(ContextValue::String(flag)) = error.get(ContextKind::InvalidArg) else { return error };
    if let Some(ours) = known_elsewhere(flag.trim_start_matches('-')) {
        error.insert(ContextKind::SuggestedArg, ContextValue::String(format!("--{ours}")));
    }
    error
}

fn read(path: &Path) -> Result<Table> {
    let about = || format!("--config {}", path.display());
    let text = regular_file::read_text(path, MAX_CONFIG).with_context(about)?;
    text.parse().with_context(about)
}

/// Converts a TOML value to the texts that would stand on the command line.
fn texts(value: &Value) -> Result<Vec<String>> {
    Ok(match value {
        Value::String(text) => vec![text.clone()],
        Value::Integer(number) => vec![number.to_string()],
        Value::Float(number) => vec![number.to_string()],
        Value::Boolean(truth) => vec![truth.to_string()],
        Value::Array(values) => {
            let each = values.iter().map(|value| match value {
                Value::Array(_) | Value::Table(_) | Value::Datetime(_) => {
                    bail!("a list holds only plain values")
                }
                value => Ok(texts(value)?.concat()),
            });
            each.collect::<Result<_>>()?
        }
        Value::Table(_) | Value::Datetime(_) => {
            bail!("give a text, a number, true or false, or a list of these")
        }
    })
}

/// Returns a hint that names the most similar flag, or an empty text.
fn nearest(command: &Command, flag: &str) -> String {
    if let Some(ours) = known_elsewhere(flag) {
        return format!("; did you mean `{ours}`?");
    }
    let aliases = command.get_arguments().filter_map(|argument| argument.get_all_aliases()).flatten();
    let names = command.get_arguments().filter_map(|argument| argument.get_long()).chain(aliases);
    let near = names.map(|name| (strsim::jaro_winkler(name, flag), name)).max_by(|a, b| a.0.total_cmp(&b.0));
    match near {
        Some((likeness, name)) if likeness >= NEAR => format!("; did you mean `{name}`?"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command as Sub, ScheduleArg};
    use clap::{CommandFactory, FromArgMatches};

    fn serve(toml: &str, flags: &[&str]) -> Result<crate::cli::ServeArgs> {
        let folder =
            std::env::temp_dir().join(format!("millrace-config-{}-{:x}", std::process::id(), toml.len()));
        std::fs::create_dir_all(&folder)?;
        let path = folder.join("millrace.toml");
        std::fs::write(&path, toml)?;
        let mut arguments: Vec<OsString> =
            vec!["millrace".into(), "serve".into(), "--config".into(), path.into()];
        arguments.extend(flags.iter().map(Into::into));
        let matches = parse(Cli::command(), &arguments);
        std::fs::remove_dir_all(&folder)?;
        match Cli::from_arg_matches(&matches?)?.command {
            Sub::Serve(args) => Ok(*args),
            _ => bail!("not serve"),
        }
    }

    #[test]
    fn the_file_gives_defaults_and_flags_win() {
        let toml = "port = 8080\nmax_batch_size = 7\nmodel-id = \"demo\"\napi-key = [\"a\", \"b\"]\n\
                    queue-timeout = 1.5\nprefix-caching = false\nschedule = \"lpm\"\njson-output = true\nmax-input-length = 9\n";
        let args = serve(toml, &["--max-batch-size", "9"]).unwrap();
        assert_eq!((args.http.port, args.engine.max_batch_size), (Some(8080), Some(9)));
        assert_eq!((args.http.api_key, args.http.queue_timeout), (vec!["a".into(), "b".into()], Some(1.5)));
        assert!(!args.engine.prefix_caching && args.json_output);
        assert_eq!(args.engine.schedule, ScheduleArg::Lpm);
        assert_eq!(args.http.max_input_tokens, Some(9));
    }

    #[test]
    fn an_unknown_flag_of_the_command_line_has_a_hint() {
        for (flag, hint) in [
            ("--max-model-length=5", "--max-model-len"),
            ("--gpu-memory-utilization=0.9", "--cuda-memory-fraction"),
            ("--tp=2", "--tensor-parallel-size"),
            ("--max-client-batch=2", "--max-client-batch-size"),
        ] {
            let error = Cli::command().try_get_matches_from(["millrace", "serve", flag]).unwrap_err();
            let text = with_hint(error).to_string();
            assert!(text.contains(&format!("'{hint}'")), "{flag}: {text}");
        }
    }

    #[test]
    fn an_unknown_key_is_named_with_a_hint() {
        for (toml, part) in [
            ("max-model-length = 7", "there is no flag `max-model-length`; did you mean `max-model-len`?"),
            ("max-batch-sise = 7", "there is no flag `max-batch-sise`; did you mean `max-batch-size`?"),
            ("zzz = 7", "there is no flag `zzz`"),
            ("config = \"x\"", "there is no flag `config`"),
            ("port = [1, 2]", "`port` takes one value"),
            ("[port]\na = 1", "`port`"),
            ("port = ", "TOML parse error"),
        ] {
            let error = format!("{:#}", serve(toml, &[]).unwrap_err());
            assert!(error.contains(part), "{toml}: {error}");
        }
    }
}
