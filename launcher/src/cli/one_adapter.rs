//! The flags of commands that compute with one adapter: `generate`, `chat` and `bench`.

use anyhow::{Result, bail};
use clap::Args;

use super::adapters::{RequestedAdapter, requested};

/// Flags of the adapter that a command computes with.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Adapters")]
pub(crate) struct OneAdapterArgs {
    /// LoRA adapters of the model, as `millrace serve` takes them: folders in PEFT's layout or
    /// repositories on the hub. Only the one that is used is read
    #[arg(long, value_delimiter = ',', value_name = "[NAME=]FOLDER|REPOSITORY[@REVISION],…")]
    lora_adapters: Vec<String>,
    /// LoRA adapters of the model, in vLLM's form
    #[arg(long, num_args = 1.., value_name = "NAME=FOLDER|REPOSITORY|JSON")]
    lora_modules: Vec<String>,
    /// Adapter to use, by its name. It may be absent if only one adapter is given
    #[arg(long, value_name = "NAME")]
    adapter: Option<String>,
}

impl OneAdapterArgs {
    /// Returns the adapter to use. `None` if no adapter is given.
    ///
    /// # Errors
    /// If an adapter is not in one of the forms, or if the flags do not say which one to use.
    pub(crate) fn chosen(&self) -> Result<Option<RequestedAdapter>> {
        let adapters = requested(&self.lora_adapters, &self.lora_modules)?;
        let names = adapters.iter().map(|adapter| adapter.name.as_str()).collect::<Vec<_>>().join(", ");
        let Some(name) = &self.adapter else {
            if adapters.len() > 1 {
                bail!("several adapters are given ({names}): choose one with --adapter NAME");
            }
            return Ok(adapters.into_iter().next());
        };
        match adapters.into_iter().find(|adapter| adapter.name == *name) {
            Some(adapter) => Ok(Some(adapter)),
            None if names.is_empty() => {
                bail!(
                    "--adapter {name}: no adapter is given; give its folder with --lora-adapters {name}=FOLDER"
                )
            }
            None => bail!("--adapter {name}: the adapters are {names}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn chosen(flags: &[&str]) -> Result<Option<String>, String> {
        let cli = Cli::parse_from([&["millrace", "generate", "Once"][..], flags].concat());
        let Command::Generate(args) = cli.command else { panic!("not generate") };
        let adapter = args.adapter.chosen().map_err(|error| error.to_string())?;
        Ok(adapter.map(|adapter| format!("{} {}", adapter.name, adapter.path)))
    }

    #[test]
    fn one_adapter_is_chosen() {
        let two = ["--lora-adapters", "a=/x,b=/y"];
        assert_eq!(chosen(&[]), Ok(None));
        assert_eq!(chosen(&["--lora-modules", "a=/x"]), Ok(Some("a /x".to_owned())));
        assert_eq!(chosen(&[&two[..], &["--adapter", "b"]].concat()), Ok(Some("b /y".to_owned())));
        for (flags, text) in [
            (&two[..], "several adapters are given (a, b): choose one with --adapter NAME"),
            (&[&two[..], &["--adapter=c"]].concat(), "--adapter c: the adapters are a, b"),
            (&["--adapter=c"], "--adapter c: no adapter is given"),
            (&["--lora-adapters", "a=/x,a=/y"], "two adapters have the name \"a\""),
        ] {
            let error = chosen(flags).unwrap_err();
            assert!(error.contains(text), "{flags:?}: {error}");
        }
    }
}
