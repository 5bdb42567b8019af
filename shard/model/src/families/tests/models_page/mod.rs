//! Writes the tables of `docs/models.md` that concern families and files: each cell follows from
//! the golden checkpoints, or names the test that proves it.

mod facts;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

pub(super) use facts::FILES;
use facts::{Fact, QUANTIZATIONS, TEMPLATES, UNTESTED_IN_GGUF};
use millrace_formats::{GgufArchitecture, Source};

use crate::description::{DecoderSpec, ExpertsSpec, Mlp};
use crate::families::load::find_family;
use crate::families::registry::FAMILIES;
use crate::families::text_part;
use crate::split::Split;

/// The root of the repository.
fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A golden checkpoint.
struct Case {
    name: String,
    /// Whether the expected numbers are states and not logits.
    is_encoder: bool,
    spec: DecoderSpec,
}

/// Returns the golden checkpoints by their families.
fn cases() -> BTreeMap<&'static str, Vec<Case>> {
    let mut cases: BTreeMap<&str, Vec<Case>> = BTreeMap::new();
    for (folder, is_encoder) in [("golden", false), ("golden-encoders", true)] {
        let folder = root().join("integration-tests").join(folder);
        for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap()) {
            if !entry.path().join("config.json").exists() {
                continue;
            }
            let name = entry.file_name().into_string().unwrap();
            let source = Source::Directory(entry.path());
            let family = find_family(&source).unwrap().model_type;
            let spec = crate::families::spec(&source).unwrap();
            cases.entry(family).or_default().push(Case { name, is_encoder, spec });
        }
    }
    cases.values_mut().for_each(|cases| cases.sort_by(|a, b| a.name.cmp(&b.name)));
    cases
}

/// Returns the families of the GGUF files beside the golden checkpoints, with the names of the
/// files. A file may be read as another family than its checkpoint is: RoBERTa as BERT.
fn gguf_cases() -> BTreeMap<&'static str, Vec<String>> {
    let mut cases: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for (files, checkpoints) in [("golden-gguf", "golden"), ("golden-gguf/encoders", "golden-encoders")] {
        let [files, checkpoints] =
            [files, checkpoints].map(|folder| root().join("integration-tests").join(folder));
        let Ok(files) = fs::read_dir(files) else { continue };
        for path in files.map(|entry| entry.unwrap().path()) {
            if path.extension().is_some_and(|end| end == "gguf") {
                let name = path.file_stem().unwrap().to_string_lossy().into_owned();
                let sources = [Source::File(path), Source::Directory(checkpoints.join(&name))];
                let families: BTreeSet<&str> =
                    sources.iter().map(|source| find_family(source).unwrap().model_type).collect();
                families.into_iter().for_each(|family| cases.entry(family).or_default().push(name.clone()));
            }
        }
    }
    cases.values_mut().for_each(|names| names.sort());
    cases
}

fn quoted<'a>(names: impl Iterator<Item = &'a str>) -> String {
    names.map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
}

/// Returns `yes` with the number of cases for which `holds`, `no` with a reason, or `untested`.
fn verdict(cases: &[Case], holds: impl Fn(&Case) -> Result<(), String>) -> String {
    let mut reasons = BTreeSet::new();
    let mut count = 0;
    for case in cases {
        match holds(case) {
            Ok(()) => count += 1,
            Err(reason) => {
                reasons.insert(reason);
            }
        }
    }
    let reasons = reasons.into_iter().collect::<Vec<_>>().join("; ");
    match (count, reasons.is_empty()) {
        (0, true) => "untested".to_owned(),
        (0, false) => format!("no: {reasons}"),
        (count, true) => format!("yes ({count})"),
        (count, false) => format!("yes ({count}); others no: {reasons}"),
    }
}

/// Returns whether a checkpoint is one of those that are computed on the simulated GPU.
fn on_gpu(case: &Case) -> Result<(), String> {
    for layer in &case.spec.layers {
        let Mlp::Experts(ExpertsSpec { router, .. }) = &layer.mlp else { continue };
        if router.groups.is_some() {
            return Err("experts in groups".to_owned());
        }
        if router.weighs_inputs && router.top_k > 1 {
            return Err("weighted inputs of several experts".to_owned());
        }
    }
    case.spec.cpu_only_part().map_or(Ok(()), |part| Err(part.to_owned()))
}

/// Returns whether a checkpoint is one of those that are computed by two shards.
fn by_two(case: &Case) -> Result<(), String> {
    let split = Split { rank: 0, world_size: 2 }.spec(&case.spec);
    split.map(|_| ()).map_err(|indivisible| indivisible.reason)
}

fn of_prefixes(case: &Case) -> Result<(), String> {
    if case.spec.is_bidirectional() { Err("a prompt is computed as a whole".to_owned()) } else { Ok(()) }
}

/// Returns the formats of calls and of reasoning of each chat template, as the table of the page
/// says that the router's test writes.
fn templates(page: &str) -> BTreeMap<String, [String; 2]> {
    let rows = page.lines().filter_map(|line| {
        let cells: Vec<&str> = line.strip_prefix("| `")?.split(" | ").collect();
        let [name, tools, reasoning, _] = cells[..] else { return None };
        Some((name.trim_end_matches('`').to_owned(), [tools.to_owned(), reasoning.to_owned()]))
    });
    rows.collect()
}

/// Returns the table of families.
fn families(page: &str) -> String {
    let (cases, gguf, templates) = (cases(), gguf_cases(), templates(page));
    let mut table =
        "| `model_type` | CPU | CUDA (simulated) | two shards | prefix cache | GGUF | to GGUF | tools | reasoning |\n\
                     |---|---|---|---|---|---|---|---|---|\n"
            .to_owned();
    for family in FAMILIES {
        let found = cases.get(family.model_type).map_or(&[][..], Vec::as_slice);
        let is_encoder = !found.is_empty() && found.iter().all(|case| case.is_encoder);
        let with_images = text_part::image_models(family.model_type);
        let mut name = format!("`{}`", family.model_type);
        if !with_images.is_empty() {
            name += &format!("; the text part of {}", quoted(with_images.into_iter()));
        }
        let names = quoted(found.iter().map(|case| case.name.as_str()));
        let cpu = match found.len() {
            0 => "untested".to_owned(),
            count => format!("yes ({count}): {names}"),
        };
        let (gpu, two) = (verdict(found, on_gpu), verdict(found, by_two));
        let prefix = verdict(found, of_prefixes).split(" (").next().unwrap_or_default().to_owned();
        let gguf = match gguf.get(family.model_type) {
            Some(names) => format!("yes: {}", quoted(names.iter().map(String::as_str))),
            None if UNTESTED_IN_GGUF.contains(&family.model_type) => "untested".to_owned(),
            None => "no".to_owned(),
        };
        // A test writes all golden checkpoints.
        let written = match GgufArchitecture::of(family.model_type).find(|found| found.can_be_written()) {
            None => "no",
            Some(_) if found.is_empty() => "untested",
            Some(_) => "yes",
        };
        let [tools, reasoning] = match TEMPLATES.iter().find(|(name, _)| *name == family.model_type) {
            Some((_, of_family)) => [0, 1].map(|column| {
                let cells: BTreeSet<&str> = of_family
                    .iter()
                    .map(|name| {
                        let known = templates.get(*name);
                        known.unwrap_or_else(|| panic!("the page has no template {name}"))[column].as_str()
                    })
                    .collect();
                format!("{}: {}", cells.into_iter().collect::<Vec<_>>().join(", "), of_family.join(", "))
            }),
            None if is_encoder => ["no".to_owned(), "no".to_owned()],
            None => ["untested".to_owned(), "untested".to_owned()],
        };
        table += &format!(
            "| {name} | {cpu} | {gpu} | {two} | {prefix} | {gguf} | {written} | {tools} | {reasoning} |\n"
        );
    }
    table
}

/// Returns a table of facts with the tests that prove them. Every test must exist.
fn table(head: &str, facts: &[Fact]) -> String {
    let mut table = format!("| {head} | CPU | CUDA (simulated) | families of the tests | proven by |\n");
    table += "|---|---|---|---|---|\n";
    for Fact { what, cpu, gpu, families, tests } in facts {
        for (file, test) in *tests {
            let text =
                fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
            assert!(text.contains(&format!("fn {test}(")), "{file} has no test {test}");
        }
        let tests = tests.iter().map(|(file, test)| format!("`{test}` in `{file}`")).collect::<Vec<_>>();
        table += &format!("| {what} | {cpu} | {gpu} | {families} | {} |\n", tests.join(", "));
    }
    table
}

/// Replaces the text between two marks of the page.
fn replaced(page: &str, section: &str, text: &str) -> String {
    let [begin, end] = ["begin", "end"].map(|mark| format!("<!-- {mark}: {section} -->\n"));
    let (before, rest) = page.split_once(&begin).unwrap_or_else(|| panic!("docs/models.md lacks {begin}"));
    let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("docs/models.md lacks {end}"));
    format!("{before}{begin}\n{text}\n{end}{after}")
}

/// The router's test of the same name writes the table of chat templates.
#[test]
fn the_page_of_models_is_up_to_date() {
    let path = root().join("docs/models.md");
    let page = fs::read_to_string(&path).unwrap();
    let new = replaced(&page, "families", &families(&page));
    let new = replaced(&new, "files", &table("format", FILES));
    let new = replaced(&new, "quantizations", &table("format", QUANTIZATIONS));
    if std::env::var_os("MILLRACE_WRITE_MODELS").is_some() {
        fs::write(&path, &new).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(page == new, "docs/models.md is not up to date; `cargo xtask models` writes it");
    for family in FAMILIES {
        let row = format!("\n| `{}`", family.model_type);
        assert!(page.contains(&row), "docs/models.md has no row for {}", family.model_type);
    }
}
