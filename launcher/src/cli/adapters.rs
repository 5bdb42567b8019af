//! The flags that name LoRA adapters, as TGI and vLLM have them.

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use millrace_router::http::ApiKey;
use serde::Deserialize;

/// Flags of the adapters that requests may name.
#[derive(Debug, Clone, Default, Args)]
#[command(next_help_heading = "Adapters")]
pub(crate) struct AdapterArgs {
    /// LoRA adapters of the model, as TGI's flag names them: folders in PEFT's layout or
    /// repositories on the hub. A request chooses one by its name, which is the folder or
    /// repository if none is given
    #[arg(
        long,
        env = "LORA_ADAPTERS",
        value_delimiter = ',',
        value_name = "[NAME=]FOLDER|REPOSITORY[@REVISION],…"
    )]
    lora_adapters: Vec<String>,
    /// LoRA adapters of the model, as vLLM's flag names them: NAME=FOLDER, NAME=REPOSITORY, or JSON
    /// with `name`, `path` and `base_model_name`
    #[arg(long, num_args = 1.., value_name = "NAME=FOLDER|REPOSITORY|JSON")]
    lora_modules: Vec<String>,
    /// Reserve memory for adapters that are loaded while the server runs, with
    /// `/v1/load_lora_adapter`. They also need --admin-key
    #[arg(long, env = "ENABLE_LORA", value_parser = clap::builder::BoolishValueParser::new())]
    enable_lora: bool,
    /// Largest rank of an adapter. If absent, it is the largest rank among the adapters at the
    /// start, up to 256, and with --enable-lora at least 16
    #[arg(long, env = "MAX_LORA_RANK", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=4096))]
    max_lora_rank: Option<u32>,
    /// Number of places for adapters: requests for so many adapters run at the same time. If
    /// absent, it is the number of adapters at the start, and with --enable-lora 4 more
    #[arg(long, env = "MAX_LORAS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_loras: Option<u32>,
    /// Number of adapters that may be loaded. If there are more than --max-loras, all of them are
    /// kept in the memory of the CPU, and are copied into places when requests need them. If
    /// absent, it is --max-loras
    #[arg(long, env = "MAX_CPU_LORAS", value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_cpu_loras: Option<u32>,
    /// Key with which `/v1/load_lora_adapter`, `/v1/unload_lora_adapter` and `/v1/restart_groups`
    /// are used, in the headers of API keys. Whoever has it can read any folder with an adapter.
    /// Without it, these routes are forbidden
    #[arg(long, env = "ADMIN_KEY", hide_env_values = true, value_name = "KEY")]
    admin_key: Option<String>,
}

/// An adapter as the command line names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RequestedAdapter {
    /// The flag that names it, for errors.
    pub(crate) flag: &'static str,
    /// The name by which requests choose it.
    pub(crate) name: String,
    /// A folder, or a repository on the hub.
    pub(crate) path: String,
    /// Branch, tag or commit of a repository.
    pub(crate) revision: String,
    /// The name of the model that clients see as the parent, if it is not the name of the served
    /// model.
    pub(crate) parent: Option<String>,
}

/// The sizes that memory for adapters is reserved for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct AdapterPool {
    /// Number of places.
    pub(crate) places: usize,
    /// Maximum number of adapters that are loaded, at least `places`.
    pub(crate) max_loaded: usize,
    /// The largest rank.
    pub(crate) max_rank: usize,
}

/// The JSON form of an adapter in vLLM.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Module {
    name: String,
    path: String,
    base_model_name: Option<String>,
}

const TGI_FLAG: &str = "--lora-adapters";
const VLLM_FLAG: &str = "--lora-modules";

/// Number of places for further adapters with `--enable-lora`, unless `--max-loras` sets another.
const FURTHER_PLACES: usize = 4;

/// The largest rank of further adapters, unless `--max-lora-rank` sets another. vLLM has the same.
const FURTHER_RANK: usize = 16;

/// The revision of a repository if the command line names none.
const DEFAULT_REVISION: &str = "main";

impl AdapterArgs {
    /// Returns the adapters in the order of the command line: TGI's flag first.
    ///
    /// # Errors
    /// If an adapter is not in one of the forms, two of them have one name, there are more than may
    /// be loaded, or more places than adapters that may be loaded.
    pub(crate) fn requested(&self) -> Result<Vec<RequestedAdapter>> {
        let adapters = requested(&self.lora_adapters, &self.lora_modules)?;
        self.check_limits(adapters.len())?;
        Ok(adapters)
    }

    /// Checks that so many adapters can be loaded at the start.
    fn check_limits(&self, adapters: usize) -> Result<()> {
        match (self.max_loras, self.max_cpu_loras) {
            (Some(places), Some(most)) if most < places => {
                bail!(
                    "--max-cpu-loras {most} is less than --max-loras {places}: every place holds an adapter"
                )
            }
            (_, Some(most)) if (most as usize) < adapters => {
                bail!("--max-cpu-loras {most} is less than the number of adapters, {adapters}")
            }
            (Some(places), None) if (places as usize) < adapters => {
                bail!(
                    "--max-loras {places} is less than the number of adapters, {adapters}; with --max-cpu-loras {adapters} \
                     as well they take turns"
                )
            }
            _ => Ok(()),
        }
    }

    /// Returns the largest rank that `--max-lora-rank` allows.
    pub(crate) fn max_rank(&self) -> Option<usize> {
        self.max_lora_rank.map(|rank| rank as usize)
    }

    /// Returns whether adapters can be loaded while the server runs.
    pub(crate) fn is_open(&self) -> bool {
        self.enable_lora
    }

    /// Returns the sizes that memory is reserved for, if this many adapters are loaded at the start
    /// and `widest` is the largest of their ranks.
    pub(crate) fn pool(&self, adapters: usize, widest: usize) -> AdapterPool {
        let (further, rank) = if self.enable_lora { (FURTHER_PLACES, FURTHER_RANK) } else { (0, 0) };
        let places = self.max_loras.map(|places| places as usize);
        let most = self.max_cpu_loras.map(|most| most as usize);
        // `requested` has checked that the adapters of the start fit.
        let max_loaded = match self.enable_lora {
            true => most.or(places).unwrap_or(adapters + further),
            false => adapters,
        };
        let places = places.unwrap_or(adapters + further).min(max_loaded);
        AdapterPool { places, max_loaded, max_rank: self.max_rank().unwrap_or(widest.max(rank)) }
    }

    /// Returns the admin key.
    ///
    /// # Errors
    /// If no client could send the key in a header. The message does not contain it.
    pub(crate) fn admin_key(&self) -> Result<Option<ApiKey>> {
        let Some(text) = &self.admin_key else { return Ok(None) };
        ensure!(!text.contains(char::is_whitespace), "--admin-key: the key must not contain spaces");
        Ok(Some(text.parse().context("--admin-key")?))
    }

    /// Returns a warning about a flag without effect.
    pub(crate) fn warning(&self) -> Option<&'static str> {
        (self.enable_lora && self.admin_key.is_none()).then_some(
            "--enable-lora has no effect but to reserve memory: adapters can be loaded while the server runs only \
             with --admin-key",
        )
    }
}

/// Reads the adapters of both flags: TGI's first.
///
/// # Errors
/// If an adapter is not in one of the forms, or two of them have one name.
pub(super) fn requested(tgi: &[String], vllm: &[String]) -> Result<Vec<RequestedAdapter>> {
    let given = tgi.iter().map(|text| text.trim()).filter(|text| !text.is_empty());
    let tgi = given.map(|text| adapter_of_tgi(text).with_context(|| format!("{TGI_FLAG} {text}")));
    let vllm = vllm.iter();
    let vllm = vllm.map(|text| module_of_vllm(text).with_context(|| format!("{VLLM_FLAG} {text}")));
    let adapters: Vec<RequestedAdapter> = tgi.chain(vllm).collect::<Result<_>>()?;
    for (index, adapter) in adapters.iter().enumerate() {
        if adapters[..index].iter().any(|other| other.name == adapter.name) {
            bail!("{}: two adapters have the name {:?}", adapter.flag, adapter.name);
        }
    }
    Ok(adapters)
}

/// Reads one adapter of TGI's flag: `repository`, `folder`, `name=folder` or
/// `name=repository@revision`.
fn adapter_of_tgi(text: &str) -> Result<RequestedAdapter> {
    let (name, source) = text.split_once('=').map_or((None, text), |(name, source)| (Some(name), source));
    // The path of a folder may contain the sign that begins a revision.
    let (path, revision) = match source.rsplit_once('@') {
        Some((path, revision)) if !std::path::Path::new(source).exists() => (path, revision),
        _ => (source, DEFAULT_REVISION),
    };
    adapter(TGI_FLAG, name.unwrap_or(path), path, revision, None)
}

/// Reads one adapter of vLLM's flag: `name=path`, or JSON.
fn module_of_vllm(text: &str) -> Result<RequestedAdapter> {
    if text.trim_start().starts_with('{') {
        let Module { name, path, base_model_name } = serde_json::from_str(text)?;
        return adapter(VLLM_FLAG, &name, &path, DEFAULT_REVISION, base_model_name);
    }
    let (name, path) = text.split_once('=').context("give NAME=FOLDER, NAME=REPOSITORY or JSON")?;
    adapter(VLLM_FLAG, name, path, DEFAULT_REVISION, None)
}

/// Returns the adapter that an administrator names while the server runs.
///
/// # Errors
/// If the name or the path cannot be one.
pub(crate) fn adapter_at_run_time(name: &str, path: &str) -> Result<RequestedAdapter> {
    adapter("lora_path", name, path, DEFAULT_REVISION, None)
}

fn adapter(
    flag: &'static str,
    name: &str,
    path: &str,
    revision: &str,
    parent: Option<String>,
) -> Result<RequestedAdapter> {
    let (name, path, revision) = (name.trim().to_owned(), path.trim().to_owned(), revision.trim().to_owned());
    ensure!(!name.is_empty(), "the name is empty");
    ensure!(!path.is_empty(), "the folder is empty");
    // The metrics separate names by commas.
    ensure!(
        !name.contains(|c: char| c == ',' || c.is_control()),
        "a name has no commas or control characters"
    );
    Ok(RequestedAdapter { flag, name, path, revision, parent })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::{Cli, Command};

    fn args(flags: &[&str]) -> AdapterArgs {
        let cli = Cli::parse_from([&["millrace", "serve"][..], flags].concat());
        let Command::Serve(args) = cli.command else { panic!("not serve") };
        args.adapters
    }

    /// Name, path, revision and parent of an adapter.
    type Parts = (String, String, String, Option<String>);

    fn requested(flags: &[&str]) -> Result<Vec<Parts>, String> {
        let adapters = args(flags).requested().map_err(|error| format!("{error:#}"))?;
        Ok(adapters.into_iter().map(|one| (one.name, one.path, one.revision, one.parent)).collect())
    }

    fn of(name: &str, path: &str, revision: &str) -> Parts {
        (name.to_owned(), path.to_owned(), revision.to_owned(), None)
    }

    #[test]
    fn both_forms_are_read_in_their_order() {
        let folder = std::env::temp_dir().join(format!("millrace-lora@{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let path = folder.to_str().unwrap();
        let tgi = format!("org/a, b=org/c@v2 ,d=./e,f={path},org/g@refs/pr/1,");
        let json = r#"{"name": "sql", "path": "/x", "base_model_name": "org/base"}"#;
        let found = requested(&["--lora-modules", "h=org/i", json, "--lora-adapters", &tgi, "--enable-lora"]);
        std::fs::remove_dir(&folder).unwrap();
        let mut sql = of("sql", "/x", "main");
        sql.3 = Some("org/base".to_owned());
        let expected = vec![
            of("org/a", "org/a", "main"),
            of("b", "org/c", "v2"),
            of("d", "./e", "main"),
            of("f", path, "main"),
            of("org/g", "org/g", "refs/pr/1"),
            of("h", "org/i", "main"),
            sql,
        ];
        assert_eq!(found, Ok(expected));
        assert_eq!(requested(&["--lora-adapters", ""]), Ok(Vec::new()));
    }

    #[test]
    fn wrong_adapters_and_limits_are_named() {
        for (flags, text) in [
            (&["--lora-modules", "sql"][..], "--lora-modules sql: give NAME=FOLDER"),
            (&["--lora-modules", "=x"], "the name is empty"),
            (&["--lora-modules", "a="], "the folder is empty"),
            (&["--lora-modules", r#"{"name": "a"}"#], "missing field `path`"),
            (&["--lora-modules", r#"{"name": "a", "path": "b", "rank": 1}"#], "unknown field `rank`"),
            (&["--lora-modules", "a,b=x"], "a name has no commas"),
            (&["--lora-modules", "a=x", "--lora-adapters", "a=y"], "two adapters have the name \"a\""),
            (&["--lora-modules", "a=x", "b=y", "--max-loras", "1"], "--max-loras 1 is less than the number"),
            (
                &["--lora-modules", "a=x", "b=y", "--max-loras", "1"],
                "with --max-cpu-loras 2 as well they take turns",
            ),
            (&["--lora-adapters", "a,b", "--max-cpu-loras=1"], "--max-cpu-loras 1 is less than the number"),
            (&["--max-loras=3", "--max-cpu-loras=2"], "--max-cpu-loras 2 is less than --max-loras 3"),
        ] {
            let error = requested(flags).unwrap_err();
            assert!(error.contains(text), "{flags:?}: {error}");
        }
        for limits in [&["--max-loras=2", "--max-cpu-loras=2"][..], &["--max-loras=1", "--max-cpu-loras=2"]] {
            assert!(requested(&[&["--lora-modules", "a=x", "b=y"], limits].concat()).is_ok());
        }
    }

    #[test]
    fn flags_without_effect_are_named() {
        assert!(args(&["--enable-lora"]).warning().unwrap().contains("only with --admin-key"));
        assert_eq!(args(&["--admin-key", "k"]).warning(), None, "it restarts groups");
        assert_eq!(args(&["--enable-lora", "--admin-key", "k"]).warning(), None);
        assert_eq!(args(&["--lora-modules", "a=x"]).warning(), None);
    }

    #[test]
    fn memory_is_reserved_for_further_adapters() {
        let sizes = |flags: &[&str], adapters: usize, widest: usize| {
            let AdapterPool { places, max_loaded, max_rank } = args(flags).pool(adapters, widest);
            [places, max_loaded, max_rank]
        };
        assert_eq!(sizes(&["--max-loras", "9"], 2, 8), [2, 2, 8]);
        assert_eq!(sizes(&["--max-lora-rank", "64"], 2, 8), [2, 2, 64]);
        assert_eq!(sizes(&["--max-loras=2", "--max-cpu-loras=9"], 5, 8), [2, 5, 8]);
        assert_eq!(sizes(&["--enable-lora"], 0, 1), [4, 4, 16]);
        assert_eq!(sizes(&["--enable-lora"], 2, 32), [6, 6, 32]);
        assert_eq!(sizes(&["--enable-lora", "--max-loras=3", "--max-lora-rank=8"], 2, 8), [3, 3, 8]);
        assert_eq!(sizes(&["--enable-lora", "--max-loras=3", "--max-cpu-loras=9"], 2, 8), [3, 9, 16]);
        assert_eq!(sizes(&["--enable-lora", "--max-cpu-loras=3"], 2, 8), [3, 3, 16]);
    }

    #[test]
    fn an_admin_key_is_one_word_and_is_not_shown() {
        assert_eq!(args(&["--admin-key", "k-1"]).admin_key().unwrap().unwrap().secret(), "k-1");
        for wrong in ["secret priority=high", "", "größe"] {
            let error = format!("{:#}", args(&["--admin-key", wrong]).admin_key().unwrap_err());
            assert!(error.contains("--admin-key") && !error.contains("secret"), "{error}");
        }
    }
}
