//! Environment variables that are no settings, although they have the names of settings.
//!
//! Kubernetes sets variables for the Services of a namespace: a Service `prometheus` makes
//! `PROMETHEUS_PORT=tcp://10.0.0.7:9090`. Deployment files leave variables empty where they have
//! nothing to say.

use std::ffi::{OsStr, OsString};

use clap::{Arg, Command};

/// The beginnings of addresses that Kubernetes writes.
const SCHEMES: [&str; 3] = ["tcp://", "udp://", "sctp://"];

/// Removes variables that are no settings from the flags of `subcommand`: empty ones, as if they
/// were not set, and ports that are addresses. `value` returns the value of a variable. The second
/// result has a warning for each address.
pub(crate) fn without_foreign(
    command: Command,
    subcommand: &str,
    value: impl Fn(&OsStr) -> Option<OsString>,
) -> (Command, Vec<String>) {
    let mut warnings = Vec::new();
    if command.find_subcommand(subcommand).is_none() {
        return (command, warnings);
    }
    let command = command
        .mut_subcommand(subcommand, |sub| sub.mut_args(|argument| own(argument, &value, &mut warnings)));
    (command, warnings)
}

/// Removes the variable of a flag if its value is no setting.
fn own(argument: Arg, value: &impl Fn(&OsStr) -> Option<OsString>, warnings: &mut Vec<String>) -> Arg {
    let Some(name) = argument.get_env().map(OsStr::to_owned) else { return argument };
    let Some(value) = value(&name) else { return argument };
    let (name, value) = (name.to_string_lossy(), value.to_string_lossy());
    let is_port = name == "PORT" || name.ends_with("_PORT");
    if is_port && SCHEMES.iter().any(|scheme| value.starts_with(scheme)) {
        warnings.push(format!(
            "{name}={value} is ignored: it is the address of a Service of Kubernetes, not a port"
        ));
    } else if !value.is_empty() {
        return argument;
    }
    argument.env(None)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    /// Returns the variables of `serve` that are left, and the warnings.
    fn left(variables: &[(&str, &str)]) -> (Vec<String>, Vec<String>) {
        let value = |name: &OsStr| {
            variables.iter().find(|(set, _)| *set == name).map(|(_, value)| OsString::from(value))
        };
        let (command, warnings) = without_foreign(Cli::command(), "serve", value);
        let serve = command.find_subcommand("serve").unwrap();
        let names = serve.get_arguments().filter_map(|argument| argument.get_env());
        (names.map(|name| name.to_string_lossy().into_owned()).collect(), warnings)
    }

    #[test]
    fn addresses_of_services_are_not_ports() {
        for name in ["PORT", "HEALTH_PORT", "PROMETHEUS_PORT", "MASTER_PORT", "LEADER_PORT"] {
            let (names, warnings) = left(&[(name, "tcp://10.0.0.7:9090")]);
            assert!(!names.iter().any(|left| left == name), "{name}");
            let text = format!("{name}=tcp://10.0.0.7:9090 is ignored: it is the address of a Service");
            assert!(warnings.len() == 1 && warnings[0].starts_with(&text), "{warnings:?}");
            assert!(left(&[(name, "9090")]).0.iter().any(|left| left == name), "{name}");
        }
        // Another value that is wrong is the user's, who hears of it.
        assert!(left(&[("PORT", "http://x")]).0.contains(&"PORT".to_owned()));
        assert!(left(&[("MODEL_ID", "tcp://x")]).0.contains(&"MODEL_ID".to_owned()));
    }

    #[test]
    fn empty_variables_are_not_set() {
        let all = left(&[]).0;
        for name in &all {
            let (names, warnings) = left(&[(name, "")]);
            assert!(!names.contains(name) && warnings.is_empty(), "{name}");
        }
    }
}
