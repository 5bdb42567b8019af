//! Finds the LoRA adapters that the command line names.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use millrace_router::service::AdapterInfo;
use millrace_shard::AdapterOptions;

use crate::adapter_config::{AdapterConfiguration, CONFIGURATION};
use crate::cli::{AdapterArgs, DeviceArg, ModelArgs, RequestedAdapter};
use crate::hub::{self, HubSettings, Repository};
use crate::model::Location;

/// The largest rank that is accepted unless `--max-lora-rank` allows a larger one.
const DEFAULT_MAX_RANK: usize = 256;

/// Names by which clients call the model, whatever it is.
const MODEL_PLACEHOLDERS: [&str; 2] = ["tgi", "dummy"];

/// The adapters of a server, by number.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServedAdapters {
    /// The adapters as clients see them.
    pub(crate) infos: Vec<AdapterInfo>,
    /// The options with which the shards load them.
    pub(crate) options: AdapterOptions,
}

impl ServedAdapters {
    /// Finds the adapters. Repositories of the hub are downloaded.
    ///
    /// # Errors
    /// The error names the adapter: its folder has no configuration, it cannot be downloaded, or
    /// its rank is larger than allowed. GPUs do not compute adapters.
    pub(crate) fn find(args: &AdapterArgs, model: &ModelArgs, device: DeviceArg) -> Result<Self> {
        let requested = args.requested()?;
        let Some(first) = requested.first() else { return Ok(Self::default()) };
        if !matches!(device, DeviceArg::Auto | DeviceArg::Cpu | DeviceArg::Null) {
            bail!("{}: LoRA adapters are computed on the CPU only; use --device cpu", first.flag);
        }
        let mut found = Self::default();
        let mut largest = 1;
        let limit = args.max_rank().unwrap_or(DEFAULT_MAX_RANK);
        for adapter in requested {
            let about = || format!("{}: adapter {:?}", adapter.flag, adapter.name);
            let folder = folder(&adapter, model).with_context(about)?;
            let rank =
                AdapterConfiguration::read(&folder).and_then(|config| config.rank()).with_context(about)?;
            ensure!(
                rank <= limit,
                "{} has rank {rank}, more than {limit}; --max-lora-rank {rank} allows it",
                about()
            );
            largest = largest.max(rank);
            let RequestedAdapter { name, path, parent, .. } = adapter;
            let root = Location::Folder(folder.clone()).name(&path);
            found.infos.push(AdapterInfo { name, root, parent });
            found.options.folders.push(folder);
        }
        found.options.max_rank = args.max_rank().unwrap_or(largest);
        Ok(found)
    }

    /// Returns the names of the adapters, by number.
    pub(crate) fn names(&self) -> Vec<String> {
        self.infos.iter().map(|adapter| adapter.name.clone()).collect()
    }

    /// Refuses an adapter that has one of the names of the model.
    ///
    /// # Errors
    /// The error names the adapter.
    pub(crate) fn check_names<'a>(&self, model_names: impl Iterator<Item = &'a str>) -> Result<()> {
        let taken: Vec<&str> = model_names.chain(MODEL_PLACEHOLDERS).collect();
        match self.infos.iter().find(|adapter| taken.contains(&adapter.name.as_str())) {
            Some(adapter) => bail!(
                "the adapter {:?} has a name of the model; give it another one with --lora-modules NAME=FOLDER",
                adapter.name
            ),
            None => Ok(()),
        }
    }
}

/// Returns the folder of an adapter. A repository of the hub is downloaded if the cache does not
/// have it.
fn folder(adapter: &RequestedAdapter, model: &ModelArgs) -> Result<PathBuf> {
    let path = Path::new(&adapter.path);
    let folder = if path.is_dir() {
        std::fs::canonicalize(path).with_context(|| adapter.path.clone())?
    } else if path.exists() {
        bail!("{} is a file; give the folder that holds {CONFIGURATION}", adapter.path);
    } else if let Some(repository) = Repository::named(&adapter.path, &adapter.revision) {
        let settings = HubSettings::from_environment(model.hub_cache())?;
        hub::block_on(hub::fetch_adapter(settings, repository))?
    } else {
        bail!(
            "there is no folder {}, and this is not a name of a repository such as `org/name`",
            adapter.path
        );
    };
    ensure!(folder.join(CONFIGURATION).is_file(), "the folder {} has no {CONFIGURATION}", folder.display());
    Ok(folder)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    /// Finds the adapters of a command line.
    fn find(flags: &[&str]) -> Result<ServedAdapters, String> {
        let cli = Cli::parse_from([&["millrace", "serve"][..], flags].concat());
        let Command::Serve(args) = cli.command else { panic!("not serve") };
        let found = ServedAdapters::find(&args.adapters, &args.model, args.engine.device);
        found.map_err(|error| format!("{error:#}"))
    }

    /// Writes folders of adapters with these configurations, and removes them when it is dropped.
    struct Folders(PathBuf);

    impl Folders {
        fn new(name: &str, configurations: &[(&str, &str)]) -> Self {
            let root = std::env::temp_dir().join(format!("millrace-adapters-{name}-{}", std::process::id()));
            for (folder, text) in configurations {
                std::fs::create_dir_all(root.join(folder)).unwrap();
                std::fs::write(root.join(folder).join(CONFIGURATION), text).unwrap();
            }
            Folders(root)
        }

        fn named(&self, folder: &str) -> String {
            format!("{folder}={}", self.0.join(folder).display())
        }
    }

    impl Drop for Folders {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn the_largest_rank_found_is_the_limit_unless_the_flag_gives_one() {
        let configurations =
            [("a", r#"{"peft_type": "LORA", "r": 8}"#), ("b", r#"{"r": 4, "rank_pattern": {"q_proj": 32}}"#)];
        let folders = Folders::new("ranks", &configurations);
        let (a, b) = (folders.named("a"), folders.named("b"));
        let found = find(&["--lora-modules", &a, &b]).unwrap();
        assert_eq!((found.options.max_rank, found.options.folders.len()), (32, 2));
        let expected =
            ["a", "b"].map(|name| AdapterInfo { name: name.into(), root: name.into(), parent: None });
        assert_eq!(found.infos, expected);
        assert_eq!(find(&["--lora-modules", &a, "--max-lora-rank=64"]).unwrap().options.max_rank, 64);
        let refused = find(&["--lora-modules", &a, &b, "--max-lora-rank=16"]).unwrap_err();
        assert!(refused.contains("adapter \"b\" has rank 32, more than 16"), "{refused}");
        assert!(find(&[]).unwrap().options.folders.is_empty());
    }

    #[test]
    fn folders_that_are_no_lora_adapters_are_named() {
        let configurations =
            [("prompt", r#"{"peft_type": "PROMPT_TUNING"}"#), ("broken", "{"), ("huge", r#"{"r": 300}"#)];
        let folders = Folders::new("faults", &configurations);
        std::fs::create_dir_all(folders.0.join("empty")).unwrap();
        for (name, text) in [
            ("prompt", "adapter \"prompt\": adapter_config.json is for \"PROMPT_TUNING\""),
            ("broken", "adapter_config.json: EOF"),
            ("huge", "adapter \"huge\" has rank 300, more than 256; --max-lora-rank 300 allows it"),
            ("empty", "has no adapter_config.json"),
            ("absent", "there is no folder"),
        ] {
            let error = find(&["--lora-modules", &folders.named(name)]).unwrap_err();
            assert!(error.contains(text), "{name}: {error}");
        }
        let refused = find(&["--lora-modules", &folders.named("huge"), "--device=cuda"]).unwrap_err();
        assert!(refused.contains("LoRA adapters are computed on the CPU only"), "{refused}");
        assert!(find(&["--lora-modules", &folders.named("huge"), "--max-lora-rank=300"]).is_ok());
    }

    #[test]
    fn an_adapter_has_no_name_of_the_model() {
        let infos =
            ["sql", "tgi"].map(|name| AdapterInfo { name: name.into(), root: "x".into(), parent: None });
        let served =
            |infos: &[AdapterInfo]| ServedAdapters { infos: infos.to_vec(), ..ServedAdapters::default() };
        assert!(served(&infos[..1]).check_names(["org/model"].into_iter()).is_ok());
        for (names, count) in [(&["org/model", "sql"][..], 1), (&[], 2)] {
            assert!(served(&infos[..count]).check_names(names.iter().copied()).is_err(), "{names:?}");
        }
    }
}
