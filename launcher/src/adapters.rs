//! Finds the LoRA adapters that the command line names.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use millrace_router::http::{AdapterAdmin, ApiKey, ApiKeys, FindAdapter, FindError, FoundAdapter};
use millrace_router::service::AdapterInfo;
use millrace_shard::AdapterOptions;

use crate::adapter_config::{AdapterConfiguration, CONFIGURATION};
use crate::cli::{
    AdapterArgs, AdapterPool, DeviceArg, ModelArgs, OneAdapterArgs, RequestedAdapter, adapter_at_run_time,
};
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
        let flag =
            requested.first().map(|adapter| adapter.flag).or(args.is_open().then_some("--enable-lora"));
        let Some(flag) = flag else { return Ok(Self::default()) };
        check_device(flag, device)?;
        let mut found = Self::default();
        let mut largest = 1;
        let limit = args.max_rank().unwrap_or(DEFAULT_MAX_RANK);
        for adapter in requested {
            largest = largest.max(found.add(adapter, model, limit)?);
        }
        let AdapterPool { places, max_loaded, max_rank } = args.pool(found.infos.len(), largest);
        found.options = AdapterOptions { places, max_loaded, max_rank, ..found.options };
        Ok(found)
    }

    /// Finds the adapter of a command that computes with one. A repository of the hub is
    /// downloaded.
    ///
    /// # Errors
    /// As for [`find`](Self::find), and if the flags do not say which adapter to use.
    pub(crate) fn find_one(args: &OneAdapterArgs, model: &ModelArgs, device: DeviceArg) -> Result<Self> {
        let Some(adapter) = args.chosen()? else { return Ok(Self::default()) };
        check_device(adapter.flag, device)?;
        let mut found = Self::default();
        let rank = found.add(adapter, model, DEFAULT_MAX_RANK)?;
        found.options = AdapterOptions { places: 1, max_loaded: 1, max_rank: rank, ..found.options };
        Ok(found)
    }

    /// Adds an adapter, and returns its rank, which is at most `limit`.
    fn add(&mut self, adapter: RequestedAdapter, model: &ModelArgs, limit: usize) -> Result<usize> {
        let about = || format!("{}: adapter {:?}", adapter.flag, adapter.name);
        let (folder, rank) = folder_and_rank(&adapter, model.hub_cache(), limit).with_context(about)?;
        self.infos.push(info(adapter, &folder));
        self.options.folders.push(folder);
        Ok(rank)
    }

    /// Returns who may load adapters while the server runs, and from where.
    ///
    /// # Errors
    /// If the admin key cannot be one, or is also an API key.
    pub(crate) fn admin(
        &self,
        args: &AdapterArgs,
        model: &ModelArgs,
        api_keys: &[ApiKey],
    ) -> Result<AdapterAdmin> {
        let key = args.admin_key()?;
        if let Some(key) = &key
            && api_keys.iter().any(|other| other.secret() == key.secret())
        {
            bail!(
                "--admin-key is also an API key, so that every client could load adapters; choose another one"
            );
        }
        let (cache, limit) = (model.hub_cache().cloned(), self.options.max_rank);
        let find: FindAdapter =
            Arc::new(move |name, path| find_at_run_time((name, path), cache.as_ref(), limit));
        let keys = ApiKeys::new(key.as_slice(), None);
        Ok(AdapterAdmin::new(keys, args.is_open().then_some(find)))
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

/// Checks that the device may be one that computes adapters.
///
/// # Errors
/// If it is a GPU. The error names the flag.
fn check_device(flag: &str, device: DeviceArg) -> Result<()> {
    match device {
        DeviceArg::Auto | DeviceArg::Cpu | DeviceArg::Null => Ok(()),
        _ => bail!("{flag}: LoRA adapters are computed on the CPU only; use --device cpu"),
    }
}

/// Finds the adapter with this name and path while the server runs.
fn find_at_run_time(
    (name, path): (&str, &str),
    cache: Option<&PathBuf>,
    limit: usize,
) -> Result<FoundAdapter, FindError> {
    let refused = |error: anyhow::Error| FindError::Refused(format!("{error:#}"));
    let adapter = adapter_at_run_time(name, path).map_err(refused)?;
    if !Path::new(&adapter.path).exists() && Repository::named(&adapter.path, &adapter.revision).is_none() {
        return Err(FindError::NotFound(format!("No adapter found for '{}'", adapter.path)));
    }
    let (folder, _) = folder_and_rank(&adapter, cache, limit).map_err(refused)?;
    let text = folder.to_str().map(str::to_owned);
    let text = text.ok_or_else(|| FindError::Refused("the path is not valid UTF-8".to_owned()))?;
    Ok(FoundAdapter { info: info(adapter, &folder), folder: text })
}

/// Returns the adapter in a folder as clients see it.
fn info(adapter: RequestedAdapter, folder: &Path) -> AdapterInfo {
    let RequestedAdapter { name, path, parent, .. } = adapter;
    let root = Location::Folder(folder.to_owned()).name(&path);
    AdapterInfo { name, root, parent }
}

/// Returns the folder of an adapter, and its largest rank, which is at most `limit`.
fn folder_and_rank(
    adapter: &RequestedAdapter,
    cache: Option<&PathBuf>,
    limit: usize,
) -> Result<(PathBuf, usize)> {
    let folder = folder(adapter, cache)?;
    let rank = AdapterConfiguration::read(&folder)?.rank()?;
    ensure!(
        rank <= limit,
        "the adapter {:?} has rank {rank}, more than {limit}; --max-lora-rank {rank} allows it",
        adapter.name
    );
    Ok((folder, rank))
}

/// Returns the folder of an adapter. A repository of the hub is downloaded if the cache does not
/// have it.
fn folder(adapter: &RequestedAdapter, cache: Option<&PathBuf>) -> Result<PathBuf> {
    let path = Path::new(&adapter.path);
    let folder = if path.is_dir() {
        std::fs::canonicalize(path).with_context(|| adapter.path.clone())?
    } else if path.exists() {
        bail!("{} is a file; give the folder that holds {CONFIGURATION}", adapter.path);
    } else if let Some(repository) = Repository::named(&adapter.path, &adapter.revision) {
        let settings = HubSettings::from_environment(cache)?;
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
    fn an_adapter_is_found_while_the_server_runs_as_it_is_at_the_start() {
        let configurations = [("good", r#"{"r": 8}"#), ("wide", r#"{"r": 9}"#)];
        let folders = Folders::new("later", &configurations);
        std::fs::create_dir_all(folders.0.join("empty")).unwrap();
        let path = |name: &str| folders.0.join(name).to_str().unwrap().to_owned();
        let find = |name: &str, path: &str| find_at_run_time((name, path), None, 8);
        let found = find(" sql ", &path("good")).unwrap();
        let folder = std::fs::canonicalize(path("good")).unwrap();
        assert_eq!((found.info.name.as_str(), Path::new(&found.folder)), ("sql", &*folder));
        assert_eq!(found.info.root, "good");
        for (name, path, text) in [
            ("a,b", path("good"), "a name has no commas"),
            ("a", path("wide"), "has rank 9, more than 8; --max-lora-rank 9 allows it"),
            ("a", path("empty"), "has no adapter_config.json"),
            ("a", path("good/adapter_config.json"), "is a file"),
        ] {
            let Err(FindError::Refused(error)) = find(name, &path) else { panic!("{name} {path}") };
            assert!(error.contains(text), "{error}");
        }
        assert!(matches!(find("a", "/no/such/folder"), Err(FindError::NotFound(_))));
    }

    #[test]
    fn the_admin_key_is_no_api_key() {
        let cli = Cli::parse_from(["millrace", "serve", "--enable-lora", "--admin-key=k"]);
        let Command::Serve(args) = cli.command else { panic!("not serve") };
        let served = ServedAdapters::find(&args.adapters, &args.model, args.engine.device).unwrap();
        assert_eq!((served.options.places, served.options.max_rank), (4, 16));
        let keys = |key: &str| vec![key.parse::<ApiKey>().unwrap()];
        assert!(served.admin(&args.adapters, &args.model, &keys("other")).is_ok());
        let error = served.admin(&args.adapters, &args.model, &keys("k priority=high")).unwrap_err();
        assert!(error.to_string().contains("--admin-key is also an API key"), "{error}");
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
