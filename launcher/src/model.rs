//! Finds the files of the model that `--model-id` names, or has them downloaded.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use millrace_formats::Source;
use millrace_formats::{dangling_link, regular_file};

use crate::adapter_config::{AdapterConfiguration, CONFIGURATION};
use crate::cli::{LoadFormat, ModelArgs};
use crate::hub::{self, FetchedModel, HubSettings, Repository, WeightDownload};

/// The files of the demo model, by name. They are embedded in the binary, so that `millrace serve`
/// works without a download.
pub(crate) const DEMO: &[(&str, &[u8])] = &[
    ("config.json", include_bytes!("../../models/demo/config.json")),
    ("generation_config.json", include_bytes!("../../models/demo/generation_config.json")),
    ("model.safetensors", include_bytes!("../../models/demo/model.safetensors")),
    ("tokenizer.json", include_bytes!("../../models/demo/tokenizer.json")),
    ("tokenizer_config.json", include_bytes!("../../models/demo/tokenizer_config.json")),
];

/// Location of the files of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Location {
    /// Embedded in this binary.
    Demo,
    /// A folder in Hugging Face layout.
    Folder(PathBuf),
    /// A file that holds a whole model, such as a GGUF file.
    File(PathBuf),
}

impl Location {
    /// Returns the source of the checkpoint's files.
    pub(crate) fn source(self) -> Source {
        match self {
            Location::Demo => Source::Memory(DEMO),
            Location::Folder(folder) => Source::Directory(folder),
            Location::File(file) => Source::File(file),
        }
    }

    /// Returns the model's name for clients: the name of the repository if the folder is in a
    /// Hugging Face cache, else the name of the folder, or of the file without its ending. `typed`
    /// is the name on the command line.
    pub(crate) fn name(&self, typed: &str) -> String {
        let folder = match self {
            Location::Demo => return typed.to_owned(),
            Location::Folder(folder) => folder,
            Location::File(file) => return file_name(file).unwrap_or_else(|| typed.to_owned()),
        };
        let folder = std::fs::canonicalize(folder).unwrap_or_else(|_| folder.clone());
        let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
        // models--org--name/snapshots/COMMIT
        let repository =
            folder.parent().filter(|parent| parent.ends_with("snapshots")).and_then(Path::parent);
        let repository = repository.and_then(name);
        let repository = repository.as_deref().and_then(|name| name.strip_prefix("models--"));
        repository
            .map(|name| name.replacen("--", "/", 1))
            .or_else(|| name(&folder))
            .unwrap_or_else(|| typed.to_owned())
    }

    /// Returns the commit of a snapshot in a Hugging Face cache.
    pub(crate) fn revision(&self) -> Option<String> {
        let Location::Folder(folder) = self else { return None };
        let is_snapshot = folder.parent()?.file_name()? == "snapshots";
        is_snapshot.then(|| folder.file_name().map(|name| name.to_string_lossy().into_owned()))?
    }
}

/// Returns the name of a file without its ending, and without the number of its part.
fn file_name(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?;
    if let Some((model, ..)) = millrace_formats::split_model_name(name) {
        return Some(model.to_owned());
    }
    file.file_stem().map(|stem| stem.to_string_lossy().into_owned())
}

/// Downloads what is missing of a repository of the hub, except weights, and replaces its name by
/// the folder of its snapshot, so that the shards read the same files. Returns the download of the
/// weights, if some are missing. Other models are left as they are, and nothing is requested for
/// them.
///
/// # Errors
/// If the model can neither be downloaded nor is in the cache.
pub(crate) fn fetch(args: &mut ModelArgs) -> Result<Option<WeightDownload>> {
    let wanted = WantedModel {
        name: &args.model_id,
        revision: &args.revision,
        hub_cache: args.hub_cache(),
        needs_weights: args.load_format == LoadFormat::Auto,
    };
    let fetched = wanted.fetch().with_context(|| format!("--model-id {}", args.model_id))?;
    let Some(FetchedModel { folder, weights }) = fetched else { return Ok(None) };
    args.model_id = folder
        .into_os_string()
        .into_string()
        .map_err(|folder| anyhow::anyhow!("the path {} is not valid UTF-8", folder.display()))?;
    Ok(weights)
}

/// Downloads what is missing of a repository of the hub, weights included, as [`fetch`] does. The
/// progress is shown on standard error.
///
/// # Errors
/// If the model can neither be downloaded nor is in the cache.
pub(crate) fn fetch_completely(args: &mut ModelArgs, json: bool) -> Result<()> {
    let name = args.model_id.clone();
    match fetch(args)? {
        Some(weights) => download_weights(weights, json).with_context(|| format!("--model-id {name}")),
        None => Ok(()),
    }
}

/// Downloads weights, and shows the progress on standard error.
///
/// # Errors
/// If a file cannot be downloaded, or a signal ended the download.
pub(crate) fn download_weights(weights: WeightDownload, json: bool) -> Result<()> {
    let progress = weights.progress();
    hub::block_on(async {
        tokio::select! {
            result = weights.run() => result,
            never = progress.show("Downloading", json) => match never {},
        }
    })
}

/// Returns the source of the checkpoint's files.
///
/// # Errors
/// As [`locate`].
pub(crate) fn source(args: &ModelArgs) -> Result<Source> {
    Ok(locate(args)?.source())
}

/// Finds the model that the command line names.
///
/// # Errors
/// If it is neither `demo`, nor a folder or a file, nor in the local Hugging Face cache. The text
/// names the places that were searched.
pub(crate) fn locate(args: &ModelArgs) -> Result<Location> {
    let named = WantedModel {
        name: &args.model_id,
        revision: &args.revision,
        hub_cache: args.hub_cache(),
        needs_weights: args.load_format == LoadFormat::Auto,
    };
    named.locate().with_context(|| format!("--model-id {}", args.model_id))
}

/// The name of a model on the command line.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedModel<'a> {
    /// `demo`, a folder, a file with a whole model, or a repository in the Hugging Face cache.
    pub(crate) name: &'a str,
    /// Branch, tag or commit of a repository.
    pub(crate) revision: &'a str,
    /// Folder of the Hugging Face cache, if a flag gives it.
    pub(crate) hub_cache: Option<&'a PathBuf>,
    /// Whether a folder without safetensors is useless.
    pub(crate) needs_weights: bool,
}

impl WantedModel<'_> {
    /// Has the small files downloaded if this names a repository of the hub and no folder.
    ///
    /// # Errors
    /// If the repository can neither be downloaded nor is in the cache.
    pub(crate) fn fetch(self) -> Result<Option<FetchedModel>> {
        if self.name == "demo" || Path::new(self.name).exists() {
            return Ok(None);
        }
        let Some(repository) = Repository::named(self.name, self.revision) else { return Ok(None) };
        let settings = HubSettings::from_environment(self.hub_cache)?;
        hub::block_on(hub::fetch(settings, repository, self.needs_weights, check_configuration)).map(Some)
    }

    /// Finds the model.
    ///
    /// # Errors
    /// As [`locate`].
    pub(crate) fn locate(self) -> Result<Location> {
        if self.name == "demo" {
            return Ok(Location::Demo);
        }
        let folder = Path::new(self.name);
        if folder.is_dir() {
            return checked(folder.to_path_buf(), self.needs_weights);
        }
        if folder.exists() {
            if folder.extension().is_some_and(|extension| extension == "safetensors" || extension == "json") {
                bail!("this is a file; give the folder that holds config.json and the weights");
            }
            return Ok(Location::File(folder.to_path_buf()));
        }
        if let Some(link) = dangling_link(folder) {
            bail!("{link}");
        }
        if Repository::named(self.name, self.revision).is_none() && self.name.contains(['/', '\\']) {
            bail!("there is no such folder, and this is not a name of a repository such as `org/name`");
        }
        match self.hub_cache.cloned().or_else(hub::cache_folder) {
            Some(cache) => checked(locate_cached(&cache, self.name, self.revision)?, self.needs_weights),
            None => bail!("there is no such folder"),
        }
    }
}

/// Returns why a model with the configuration of this folder cannot be run, if so.
fn check_configuration(folder: &Path) -> std::result::Result<(), String> {
    let source = Source::Directory(folder.to_owned());
    millrace_model::families::spec(&source).map(|_| ()).map_err(|error| error.to_string())
}

/// Finds the snapshot of `name` at `revision` in a Hugging Face cache:
/// `models--org--name/{refs/REV, snapshots/COMMIT}`.
fn locate_cached(cache: &Path, name: &str, revision: &str) -> Result<PathBuf> {
    let repository = cache.join(format!("models--{}", name.replace('/', "--")));
    if !repository.is_dir() {
        bail!(
            "there is no such folder, and the Hugging Face cache {} does not have it: {}",
            cache.display(),
            match name.contains('/') {
                true => format!("download it with `millrace download {name}`, or give a folder"),
                false => "give a folder, or a repository of the hub as `org/name`".to_owned(),
            }
        );
    }
    let commit = regular_file::read_text(&repository.join("refs").join(revision), MAX_COMMIT).ok();
    let snapshot = repository.join("snapshots").join(commit.as_deref().unwrap_or(revision).trim());
    if snapshot.is_dir() {
        return Ok(snapshot);
    }
    let reason = match &commit {
        Some(commit) => format!(
            "refs/{revision} names the commit {}, but there is no folder {}",
            commit.trim(),
            snapshot.display()
        ),
        None => format!("it has no refs/{revision}, and no folder {}", snapshot.display()),
    };
    bail!("the Hugging Face cache {} has no revision `{revision}` of it: {reason}", cache.display())
}

/// The maximum number of bytes of the file in a cache that has the commit of a branch.
const MAX_COMMIT: u64 = 1 << 10;

/// Limit of the files of a folder that are examined.
const MAX_FILES: usize = 10_000;

/// The folder, unless it holds something that is known and no model.
fn checked(folder: PathBuf, needs_weights: bool) -> Result<Location> {
    let has = |file: &str| folder.join(file).exists();
    if has(CONFIGURATION) && !has("config.json") {
        let config = AdapterConfiguration::read(&folder).ok();
        let rank = config.as_ref().and_then(|config| config.rank().ok());
        let rank = rank.map(|rank| format!(" of rank {rank}")).unwrap_or_default();
        let base = config.and_then(|config| config.base());
        let base = base.map(|base| format!(" for {base}")).unwrap_or_default();
        bail!(
            "this folder holds a LoRA adapter{rank}{base}: give its model as the model, and this folder with \
             --lora-modules NAME=FOLDER"
        );
    }
    if needs_weights {
        match &gguf_models(&folder)[..] {
            [] => {}
            [model] => return Ok(Location::File(folder.join(model))),
            [one, other, ..] => {
                bail!(
                    "this folder holds several GGUF models, such as {one} and {other}; give one of these files"
                )
            }
        }
    }
    Ok(Location::Folder(folder))
}

/// Returns the names of the GGUF files of a folder without safetensors, sorted: those of whole
/// models, and the first ones of models that are split. Encoders of images are no models.
fn gguf_models(folder: &Path) -> Vec<String> {
    let Ok(files) = std::fs::read_dir(folder) else { return Vec::new() };
    let mut models = Vec::new();
    for file in files.take(MAX_FILES).flatten() {
        let Ok(name) = file.file_name().into_string() else { continue };
        if name.ends_with(".safetensors") {
            return Vec::new();
        }
        let is_first = millrace_formats::split_model_name(&name).is_none_or(|(_, part, _)| part == 1);
        if name.ends_with(".gguf") && is_first && !name.starts_with("mmproj") {
            models.push(name);
        }
    }
    models.sort();
    models
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    #[test]
    fn a_cached_repository_is_found_by_branch_and_by_commit() {
        let cache = std::env::temp_dir().join(format!("millrace-cache-{}", std::process::id()));
        let snapshot = cache.join("models--org--tiny/snapshots/abc123");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(cache.join("models--org--tiny/refs")).unwrap();
        std::fs::write(cache.join("models--org--tiny/refs/main"), "abc123\n").unwrap();

        assert_eq!(locate_cached(&cache, "org/tiny", "main").unwrap(), snapshot);
        assert_eq!(locate_cached(&cache, "org/tiny", "abc123").unwrap(), snapshot);
        let unknown = locate_cached(&cache, "org/tiny", "v2").unwrap_err().to_string();
        assert!(unknown.contains("no revision `v2`"), "{unknown}");
        let absent = locate_cached(&cache, "org/other", "main").unwrap_err().to_string();
        assert!(absent.contains("millrace download org/other"), "{absent}");
        std::fs::remove_dir_all(&cache).unwrap();
    }

    /// Returns the error for a path as the model.
    fn refusal(path: &Path, format: &str) -> Option<String> {
        let path = path.to_str().unwrap();
        let cli = Cli::parse_from(["millrace", "inspect", "--model-id", path, "--load-format", format]);
        let Command::Inspect(args) = cli.command else { panic!("not inspect") };
        locate(&args.model).err().map(|error| format!("{error:#}"))
    }

    /// Returns the error for a folder with these files.
    fn of_folder(files: &[(&str, &str)], format: &str) -> Option<String> {
        let folder = std::env::temp_dir().join(format!("millrace-folder-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for (name, text) in files {
            std::fs::write(folder.join(name), text).unwrap();
        }
        let text = refusal(&folder, format);
        std::fs::remove_dir_all(&folder).unwrap();
        text
    }

    #[test]
    fn adapters_and_several_models_are_named_in_the_error() {
        let adapter = ("adapter_config.json", r#"{"base_model_name_or_path": "org/base", "r": 16}"#);
        let text = of_folder(&[adapter, ("adapter_model.safetensors", "")], "auto").unwrap();
        assert!(text.contains("holds a LoRA adapter of rank 16 for org/base: give its model"), "{text}");
        let text = of_folder(&[("adapter_config.json", "{")], "auto").unwrap();
        assert!(text.contains("holds a LoRA adapter: give"), "{text}");
        let several = of_folder(&[("a-Q4_K_M.gguf", ""), ("a-Q8_0.gguf", "")], "auto").unwrap();
        assert!(several.contains("several GGUF models, such as a-Q4_K_M.gguf and a-Q8_0.gguf"), "{several}");
        let split = [("a-00001-of-00002.gguf", ""), ("a-00002-of-00002.gguf", ""), ("mmproj-a.gguf", "")];
        assert_eq!(of_folder(&split, "auto"), None);
        // A folder that also has a model is served.
        let model = [("config.json", "{}"), ("model.safetensors", "")];
        assert_eq!(of_folder(&[&model[..], &[adapter, ("x.gguf", "")]].concat(), "auto"), None);
        assert_eq!(of_folder(&[("config.json", "{}"), ("x.gguf", "")], "dummy"), None);
    }

    #[test]
    fn files_of_weights_are_no_models() {
        let path = std::env::temp_dir().join(format!("millrace-{}.safetensors", std::process::id()));
        std::fs::write(&path, "").unwrap();
        let text = refusal(&path, "auto").unwrap();
        std::fs::remove_file(&path).unwrap();
        assert!(text.contains("this is a file; give the folder that holds config.json"), "{text}");
    }

    #[test]
    fn a_folder_with_one_gguf_model_is_that_model() {
        let folder = std::env::temp_dir().join(format!("millrace-one-gguf-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        for name in ["a-00002-of-00002.gguf", "a-00001-of-00002.gguf", "README.md"] {
            std::fs::write(folder.join(name), "").unwrap();
        }
        let found = checked(folder.clone(), true).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(found, Location::File(folder.join("a-00001-of-00002.gguf")));
    }

    #[test]
    fn clients_see_a_name_and_no_path() {
        let base = std::env::temp_dir().join(format!("millrace-names-{}", std::process::id()));
        let snapshot = base.join("models--org--tiny--chat/snapshots/abc123");
        let folder = base.join("Llama-3.2-1B");
        std::fs::create_dir_all(&snapshot).unwrap();
        std::fs::create_dir_all(folder.join("inner")).unwrap();
        let name = |folder: PathBuf| Location::Folder(folder.clone()).name(&folder.to_string_lossy());
        assert_eq!(name(folder.clone()), "Llama-3.2-1B");
        assert_eq!(name(folder.join("inner/../")), "Llama-3.2-1B");
        assert_eq!(name(folder.join(".")), "Llama-3.2-1B");
        assert_eq!(name(snapshot), "org/tiny--chat");
        assert_eq!(Location::Demo.name("demo"), "demo");
        let of_file = |file: &str| Location::File(file.into()).name(file);
        assert_eq!(of_file("models/a-Q8_0.gguf"), "a-Q8_0");
        assert_eq!(of_file("models/a-Q8_0-00001-of-00003.gguf"), "a-Q8_0");
        std::fs::remove_dir_all(&base).unwrap();
    }
}
