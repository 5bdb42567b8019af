//! Mutation tests of the CUDA kernels: each change in `kernels/cuda/kernels/mutations/` must
//! make a test fail.
//!
//! The file `MODULE.txt` holds mutations that the tests `MODULE::` must catch:
//!
//! ```text
//! ## description of the mistake
//! @ include/reduce.cuh
//! -  lines that are removed, in full
//! +  lines that stand there instead
//! ```
//!
//! Without `@` the file is `MODULE.cu`. Several `-` or `+` lines are consecutive lines of the file.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use crate::simulated::{self, ORDERS, Outcome, SOURCES};
use crate::suites;

/// One planted mistake.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Mutation {
    what: String,
    /// Path of the changed file, below the folder of the sources.
    file: String,
    removed: Vec<String>,
    added: Vec<String>,
}

impl Mutation {
    /// The description of the mistake.
    pub(crate) fn what(&self) -> &str {
        &self.what
    }
}

/// The mutations that run.
#[derive(Debug, Clone, Copy)]
enum Chosen<'a> {
    All,
    /// Those of a third of the modules, so that three nights have all of them.
    Third {
        day: u64,
    },
    Module(&'a str),
}

impl Chosen<'_> {
    /// Whether the mutations of a module run, which has this place in the order of the names.
    fn has(self, place: usize, module: &str) -> bool {
        match self {
            Chosen::All => true,
            Chosen::Third { day } => place as u64 % 3 == day % 3,
            Chosen::Module(name) => name == module,
        }
    }
}

/// Runs all mutations, those of one module, or with `third` those of a third of the modules, which
/// changes from day to day. Returns whether every one was caught.
pub(crate) fn run(only: Option<&str>) -> bool {
    let chosen = match only {
        None => Chosen::All,
        Some("third") => Chosen::Third { day: suites::day() },
        Some(module) => Chosen::Module(module),
    };
    match all(chosen) {
        Ok(survivors) if survivors.is_empty() => {
            println!("every mutation was caught");
            true
        }
        Ok(survivors) => {
            println!("\nnot caught:\n  {}", survivors.join("\n  "));
            false
        }
        Err(e) => {
            eprintln!("{e}");
            false
        }
    }
}

/// Reads the chosen lists of mutations below `sources`, in the order of their names.
fn lists(sources: &Path, chosen: Chosen<'_>) -> Result<Vec<(String, Vec<Mutation>)>, String> {
    let mut files = fs::read_dir(sources.join("mutations"))
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect::<std::io::Result<Vec<_>>>())
        .map_err(|e| e.to_string())?;
    files.sort();
    let mut lists = Vec::new();
    for (place, file) in files.iter().enumerate() {
        let module = file.file_stem().map(|s| s.to_string_lossy().into_owned()).unwrap_or_default();
        if chosen.has(place, &module) {
            let text = fs::read_to_string(file).map_err(|e| format!("{}: {e}", file.display()))?;
            let list = parse(&module, &text).map_err(|e| format!("{}: {e}", file.display()))?;
            lists.push((module, list));
        }
    }
    if lists.is_empty() {
        return Err(format!("there are no mutations for {chosen:?}"));
    }
    Ok(lists)
}

fn all(chosen: Chosen<'_>) -> Result<Vec<String>, String> {
    let lists = lists(Path::new(SOURCES), chosen)?;
    let tests = simulated::tests()?;
    let folder = Path::new("target/mutations");
    let mut survivors = Vec::new();
    for (module, list) in &lists {
        let start = Instant::now();
        match simulated::run(&mut Command::new(&tests), &format!("{module}::"), Duration::from_secs(600))? {
            Outcome::Passed(n) if n > 0 => {}
            other => return Err(format!("the tests {module}:: do not pass as they are: {other:?}")),
        }
        // A mutation may make a kernel slower, or make it wait for ever.
        let limit = (start.elapsed() * 5).max(Duration::from_secs(45));
        for mutation in list {
            let name = format!("{module}: {}", mutation.what);
            let caught =
                try_one(&tests, folder, module, mutation, limit).map_err(|e| format!("{name}: {e}"))?;
            println!(
                "{} {name}{}",
                if caught.is_some() { "caught  " } else { "SURVIVED" },
                caught.as_deref().unwrap_or("")
            );
            if caught.is_none() {
                survivors.push(name);
            }
        }
    }
    Ok(survivors)
}

/// Runs the tests with one mutation. Returns what caught it, or `None` if it survived.
fn try_one(
    tests: &Path,
    folder: &Path,
    module: &str,
    mutation: &Mutation,
    limit: Duration,
) -> Result<Option<String>, String> {
    let _ = fs::remove_dir_all(folder);
    let tree = folder.join("cuda");
    let io = |e: std::io::Error| format!("{}: {e}", folder.display());
    plant(Path::new(SOURCES), &tree, mutation)?;
    let libraries = folder.join("libraries");
    fs::create_dir_all(&libraries).map_err(io)?;
    let affected = affected(&tree, module, &mutation.file)?;
    if affected.is_empty() {
        return Err(format!("no module that the simulated device runs is made of {}", mutation.file));
    }
    for (name, file) in affected {
        simulated::compile(&tree, &file, &["-w"], &libraries.join(format!("{name}.so")))
            .map_err(|said| format!("the mutated {name} does not compile:\n{said}"))?;
    }
    let libraries = fs::canonicalize(&libraries).map_err(io)?;
    for order in ORDERS {
        let mut command = Command::new(tests);
        command.env("MILLRACE_SIM_LIBRARIES", &libraries).env("MILLRACE_SIM_ORDER", order);
        match simulated::run(&mut command, &format!("{module}::"), limit)? {
            Outcome::Passed(_) => {}
            Outcome::Failed(by) => return Ok(Some(format!(" ({order}: {by})"))),
            Outcome::TimedOut => return Ok(Some(format!(" ({order}: no end in {limit:.0?})"))),
        }
    }
    Ok(None)
}

/// Copies the sources to `tree` and makes the mistake there.
///
/// # Errors
/// If the file does not have the mutation's lines, or something cannot be written.
pub(crate) fn plant(sources: &Path, tree: &Path, mutation: &Mutation) -> Result<(), String> {
    copy(sources, tree).map_err(|e| format!("{}: {e}", tree.display()))?;
    let file = tree.join(&mutation.file);
    let io = |e: std::io::Error| format!("{}: {e}", file.display());
    let before = fs::read_to_string(&file).map_err(io)?;
    fs::write(&file, mutated(&before, mutation)?).map_err(io)
}

/// Returns the modules that include `file`: only `module` if it is one of them.
fn affected(tree: &Path, module: &str, file: &str) -> Result<Vec<(String, PathBuf)>, String> {
    let mut sources = HashMap::new();
    for folder in [tree.to_owned(), tree.join("include"), tree.join("sim")] {
        for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
            if let Ok(text) = fs::read_to_string(entry.path()) {
                sources.insert(entry.file_name().to_string_lossy().into_owned(), text);
            }
        }
    }
    let wanted = Path::new(file).file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
    let mut all = simulated::modules(tree)?;
    // Every module is linked with the runtime, but only its own tests must fail.
    if file == simulated::RUNTIME {
        all.retain(|(name, _)| name == "sim_tests");
        return Ok(all);
    }
    all.retain(|(name, _)| includes(&sources, &format!("{name}.cu"), &wanted, 8));
    let own_tests = format!("{module}_tests");
    if let Some(own) = all.iter().find(|(name, _)| name == module || *name == own_tests) {
        return Ok(vec![own.clone()]);
    }
    Ok(all)
}

/// Returns whether `from` is `wanted`, or includes it through at most `depth` headers.
fn includes(sources: &HashMap<String, String>, from: &str, wanted: &str, depth: usize) -> bool {
    if from == wanted {
        return true;
    }
    let Some(text) = sources.get(from).filter(|_| depth > 0) else { return false };
    let names = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.split('"').next());
    names
        .into_iter()
        .any(|name| includes(sources, name.rsplit('/').next().unwrap_or(name), wanted, depth - 1))
}

fn copy(from: &Path, to: &Path) -> std::io::Result<()> {
    fs::create_dir_all(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            copy(&entry.path(), &target)?
        } else {
            fs::copy(entry.path(), target).map(|_| ())?
        }
    }
    Ok(())
}

/// Applies the mutation to `text`. Whole lines are replaced if they match, otherwise parts of
/// lines.
fn mutated(text: &str, mutation: &Mutation) -> Result<String, String> {
    let lines: Vec<&str> = text.lines().collect();
    let n = mutation.removed.len();
    let places: Vec<usize> = (0..(lines.len() + 1).saturating_sub(n))
        .filter(|&at| lines[at..at + n].iter().zip(&mutation.removed).all(|(line, removed)| line == removed))
        .collect();
    match places[..] {
        [at] => {
            let added = mutation.added.iter().map(String::as_str);
            let all: Vec<&str> =
                lines[..at].iter().copied().chain(added).chain(lines[at + n..].iter().copied()).collect();
            Ok(all.join("\n") + "\n")
        }
        [] => {
            let (removed, added) = (mutation.removed.join("\n"), mutation.added.join("\n"));
            match text.matches(&removed).count() {
                1 => Ok(text.replacen(&removed, &added, 1)),
                0 => Err(format!("{} has no\n{removed}", mutation.file)),
                n => Err(format!("{} has {n} times\n{removed}", mutation.file)),
            }
        }
        _ => Err(format!(
            "{} has the lines {} times: name one more of their neighbours",
            mutation.file,
            places.len()
        )),
    }
}

/// Reads a list of mutations of the source `module`.
///
/// # Errors
/// The number of a line that cannot be parsed.
pub(crate) fn parse(module: &str, text: &str) -> Result<Vec<Mutation>, String> {
    let mut all: Vec<Mutation> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let wrong = |why: &str| format!("line {}: {why}", number + 1);
        if let Some(what) = line.strip_prefix("## ") {
            let file = format!("{module}.cu");
            all.push(Mutation { what: what.trim().to_owned(), file, removed: Vec::new(), added: Vec::new() });
            continue;
        }
        let last = all.last_mut();
        match (line.split_at_checked(1), last) {
            (None, _) => {}
            (_, None) => return Err(wrong("before the first `## what`")),
            (Some(("@", file)), Some(last)) => last.file = file.trim().to_owned(),
            (Some(("-", _)), Some(last)) if !last.added.is_empty() => {
                return Err(wrong("one mutation is one change: `-` lines, then `+` lines"));
            }
            (Some(("-", removed)), Some(last)) => last.removed.push(removed.to_owned()),
            (Some(("+", added)), Some(last)) => last.added.push(added.to_owned()),
            _ => return Err(wrong("neither `## what`, `@ file`, `-` nor `+`")),
        }
    }
    match all.iter().find(|m| m.removed.is_empty() || m.removed == m.added) {
        Some(nothing) => Err(format!("`{}` changes nothing", nothing.what)),
        None => Ok(all),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "## no barrier\n@ include/reduce.cuh\n-  a();\n-  b();\n+  a();\n\n## other\n-x\n+\n";

    #[test]
    fn lists_are_read() {
        let all = parse("norm", LIST).unwrap();
        assert_eq!((all[0].what.as_str(), all[0].file.as_str()), ("no barrier", "include/reduce.cuh"));
        assert_eq!((all[0].removed.len(), all[0].added.len()), (2, 1));
        assert_eq!((all[1].file.as_str(), all[1].added[0].as_str()), ("norm.cu", ""));
        assert!(parse("norm", "-x").unwrap_err().contains("line 1"));
        assert!(parse("norm", "## a\n-x\n+y\n-z").unwrap_err().contains("one change"));
        assert!(parse("norm", "## a\n-x\n+x").unwrap_err().contains("changes nothing"));
        assert!(parse("norm", "## a\nx").unwrap_err().contains("line 2"));
    }

    #[test]
    fn every_mutation_finds_its_lines_in_the_sources() {
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(SOURCES);
        let hopper = fs::read_to_string(sources.join("sm90/mutations.txt")).unwrap();
        let hopper = ("sm90/prefill".to_owned(), parse("sm90/prefill", &hopper).unwrap());
        for (module, list) in lists(&sources, Chosen::All).unwrap().into_iter().chain([hopper]) {
            for mutation in list {
                let text = fs::read_to_string(sources.join(&mutation.file)).unwrap();
                if let Err(why) = mutated(&text, &mutation) {
                    panic!("mutations/{module}.txt, {}: {why}", mutation.what);
                }
            }
        }
    }

    #[test]
    fn whole_lines_are_replaced_where_they_are_unique() {
        let mutation = |removed: &str| Mutation {
            what: String::new(),
            file: "f".to_owned(),
            removed: removed.lines().map(str::to_owned).collect(),
            added: vec!["new".to_owned()],
        };
        // The longer line contains the shorter one, and is another.
        let text = "  a();\n    a();\nb();\nb();\nc(d);\n";
        assert_eq!(mutated(text, &mutation("  a();")).unwrap(), "new\n    a();\nb();\nb();\nc(d);\n");
        assert_eq!(mutated(text, &mutation("b();\nc(d);")).unwrap(), "  a();\n    a();\nb();\nnew\n");
        assert_eq!(mutated(text, &mutation("(d)")).unwrap(), "  a();\n    a();\nb();\nb();\ncnew;\n");
        assert!(mutated(text, &mutation("b();")).unwrap_err().contains("2 times"));
        assert!(mutated(text, &mutation("e")).unwrap_err().contains("has no"));
    }
}
