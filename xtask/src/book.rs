//! The documentation: checks the Markdown pages, and builds `docs/` into a book with mdBook.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};
use std::process::Command;

use crate::cargo::cargo;
use crate::install;

/// The folder of the book's pages. Their links stay inside it, because the book has nothing else.
const DOCS: &str = "docs";
/// The book's table of contents.
const SUMMARY: &str = "docs/SUMMARY.md";
/// The page with a link to each page of the book that has no folder of its own.
const README: &str = "README.md";
/// The folder of the decisions.
const DECISIONS: &str = "docs/decisions";
/// The page that lists the decisions.
const DECISION_INDEX: &str = "docs/decisions/index.md";
/// The version of mdBook that is installed.
const MDBOOK: &str = "0.5.4";
/// The folder that mdBook is installed into.
const INSTALLED: &str = "target/mdbook";
/// The folder that `book.toml` builds into.
const BOOK: &str = "target/book";

/// Builds the book, unless a page has a problem.
pub(crate) fn run() -> bool {
    let built = check() && build();
    if built {
        println!("the book is {BOOK}/index.html");
    }
    built
}

/// Checks the links of all pages and the table of contents, and prints what it finds. Returns
/// whether there is nothing.
pub(crate) fn check() -> bool {
    let pages = match read(Path::new(".")) {
        Ok(pages) => pages,
        Err(reason) => {
            eprintln!("{reason}");
            return false;
        }
    };
    let problems = find_problems(&pages, |path| path.exists());
    for problem in &problems {
        eprintln!("{problem}");
    }
    if !problems.is_empty() {
        eprintln!("{} problems in {} pages", problems.len(), pages.len());
    }
    problems.is_empty()
}

/// Runs mdBook, which is compiled below target/ the first time: neither Debian 12 nor PyPI has it.
fn build() -> bool {
    let root = ["--root", INSTALLED, "--version", MDBOOK, "--locked", "--debug"];
    let features = ["--no-default-features", "--features", "search"];
    let mdbook = Path::new(INSTALLED).join("bin/mdbook");
    let version = Command::new(&mdbook).arg("--version").output();
    let is_installed = version
        .is_ok_and(|done| String::from_utf8_lossy(&done.stdout).trim().ends_with(&format!("v{MDBOOK}")));
    let install = [&["install", "mdbook", "--quiet", "--force"][..], &root, &features].concat();
    if !is_installed && !install::attempt(|| cargo(&install)) {
        return false;
    }
    Command::new(&mdbook).arg("build").status().is_ok_and(|done| done.success())
}

/// A Markdown page, as far as it is checked.
#[derive(Debug, Default)]
struct Page {
    /// The names by which links reach its headings.
    anchors: BTreeSet<String>,
    /// Target and line number of each link and image.
    links: Vec<(usize, String)>,
}

/// Reads the pages at the root of the repository and all below `docs/`. Their paths are relative to
/// the root.
///
/// # Errors
/// Names the file or folder that cannot be read.
fn read(root: &Path) -> Result<BTreeMap<PathBuf, Page>, String> {
    let mut pages = BTreeMap::new();
    let mut folders = vec![(root.to_path_buf(), false), (root.join(DOCS), true)];
    while let Some((folder, with_folders)) = folders.pop() {
        let about = |error: std::io::Error| format!("{}: {error}", folder.display());
        for entry in std::fs::read_dir(&folder).map_err(about)? {
            let path = entry.map_err(about)?.path();
            if path.is_dir() && with_folders {
                folders.push((path, true));
            } else if path.extension().is_some_and(|extension| extension == "md") {
                let text =
                    std::fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
                let name = path.strip_prefix(root).unwrap_or(&path).to_path_buf();
                pages.insert(name, scan(&text));
            }
        }
    }
    Ok(pages)
}

/// Finds the headings and the links of a page. Fenced code has none of them.
fn scan(text: &str) -> Page {
    let mut page = Page::default();
    let mut is_code = false;
    for (number, line) in (1..).zip(text.lines()) {
        if line.trim_start().starts_with("```") {
            is_code = !is_code;
        }
        if is_code || line.trim_start().starts_with("```") {
            continue;
        }
        if let Some(heading) = heading(line) {
            let name = anchor(heading);
            let repeated = (1..).map(|count| format!("{name}-{count}"));
            let free =
                std::iter::once(name.clone()).chain(repeated).find(|name| !page.anchors.contains(name));
            page.anchors.extend(free);
        }
        page.links.extend(targets(&without_code(line)).map(|target| (number, target.to_owned())));
    }
    page
}

/// The text of a heading, if the line is one.
fn heading(line: &str) -> Option<&str> {
    let text = line.trim_start_matches('#');
    let level = line.len() - text.len();
    ((1..=6).contains(&level) && text.starts_with(' ')).then(|| text.trim())
}

/// The anchor that GitHub and mdBook give a heading.
fn anchor(heading: &str) -> String {
    let mut name = String::new();
    let mut is_target = false;
    let mut before = ' ';
    for character in heading.chars() {
        match character {
            '(' if before == ']' => is_target = true,
            ')' if is_target => is_target = false,
            _ if is_target => {}
            ' ' => name.push('-'),
            '-' | '_' => name.push(character),
            _ if character.is_alphanumeric() => name.extend(character.to_lowercase()),
            _ => {}
        }
        before = character;
    }
    name
}

/// A line without its spans of code.
fn without_code(line: &str) -> String {
    line.split('`').step_by(2).collect::<Vec<_>>().join("``")
}

/// The targets of the links and images in a line.
fn targets(line: &str) -> impl Iterator<Item = &str> {
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')')).map(|(target, _)| target);
    let defined = line.strip_prefix('[').and_then(|rest| rest.split_once("]: ")).map(|(_, target)| target);
    inline.chain(defined).map(str::trim)
}

/// Lists every mistake in the pages: links that lead nowhere or out of the book, pages that the
/// table of contents, the README or the list of decisions lacks, and gaps between decisions.
fn find_problems(pages: &BTreeMap<PathBuf, Page>, exists: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut problems = Vec::new();
    for (path, page) in pages {
        let name = path.display();
        for (line, target) in &page.links {
            if let Some(problem) = check_link(pages, path, target, &exists) {
                problems.push(format!("{name}:{line}: {problem}"));
            }
        }
    }
    let in_docs = |path: &Path| path.starts_with(DOCS) && path != Path::new(SUMMARY);
    let is_top = |path: &Path| in_docs(path) && path.parent() == Some(Path::new(DOCS));
    let is_decision = |path: &Path| path.starts_with(DECISIONS) && path != Path::new(DECISION_INDEX);
    problems.extend(unlisted(pages, SUMMARY, in_docs));
    problems.extend(unlisted(pages, README, |path| is_top(path) && !path.ends_with(README)));
    problems.extend(unlisted(pages, DECISION_INDEX, is_decision));
    problems.extend(gaps(pages.keys().filter(|path| is_decision(path))));
    problems
}

/// Lists the pages among `wanted` that `list` does not link to.
fn unlisted(pages: &BTreeMap<PathBuf, Page>, list: &str, wanted: impl Fn(&Path) -> bool) -> Vec<String> {
    let mut wanted = pages.keys().filter(|path| wanted(path)).peekable();
    let Some(page) = pages.get(Path::new(list)) else {
        return wanted.next().map(|_| format!("{list} is missing")).into_iter().collect();
    };
    let file = |target: &str| target.split('#').next().unwrap_or_default().to_owned();
    let listed: BTreeSet<PathBuf> =
        page.links.iter().map(|(_, target)| resolve(Path::new(list), &file(target))).collect();
    let missing = wanted.filter(|path| !listed.contains(*path));
    missing.map(|path| format!("{}: not listed in {list}", path.display())).collect()
}

/// Lists the numbers that no decision has although a later one has a greater number.
fn gaps<'a>(decisions: impl Iterator<Item = &'a PathBuf>) -> Vec<String> {
    let number = |path: &PathBuf| path.file_name()?.to_str()?.split('-').next()?.parse().ok();
    let numbers: BTreeSet<u32> = decisions.filter_map(number).collect();
    let last = numbers.last().copied().unwrap_or(0);
    let missing = (1..last).filter(|number| !numbers.contains(number));
    missing.map(|number| format!("{DECISIONS}: no decision has the number {number:03}")).collect()
}

/// The mistake in one link, if there is one. No link to other sites is followed.
fn check_link(
    pages: &BTreeMap<PathBuf, Page>,
    from: &Path,
    target: &str,
    exists: impl Fn(&Path) -> bool,
) -> Option<String> {
    if ["http://", "https://", "mailto:"].iter().any(|scheme| target.starts_with(scheme)) {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { from.to_path_buf() } else { resolve(from, file) };
    if from.starts_with(DOCS) && !path.starts_with(DOCS) {
        return Some(format!("{target}: leads out of {DOCS}/, which is all that the book has"));
    }
    let is_chapter = from == Path::new(SUMMARY);
    if from.starts_with(DOCS) && !is_chapter && path.ends_with("README.md") {
        return Some(format!(
            "{target}: mdBook builds README.md as index.html and does not rewrite links to it"
        ));
    }
    match (pages.get(&path), anchor) {
        (Some(page), Some(anchor)) if !page.anchors.contains(anchor) => {
            Some(format!("{target}: {} has no such heading", path.display()))
        }
        (None, _) if !exists(&path) => Some(format!("{target}: there is no {}", path.display())),
        _ => None,
    }
}

/// The path of a link's file, relative to the root of the repository.
fn resolve(from: &Path, file: &str) -> PathBuf {
    let mut path = from.parent().unwrap_or(Path::new("")).to_path_buf();
    for part in Path::new(file).components() {
        match part {
            Component::ParentDir => {
                path.pop();
            }
            Component::CurDir => {}
            other => path.push(other),
        }
    }
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(pages: &[(&str, &str)]) -> Vec<String> {
        let pages: BTreeMap<_, _> =
            pages.iter().map(|(path, text)| (PathBuf::from(path), scan(text))).collect();
        find_problems(&pages, |path| path == Path::new("docs/picture.png"))
    }

    const SUMMARY_OF_A: (&str, &str) = (SUMMARY, "# Summary\n\n- [A](a.md)\n");
    const README_OF_A: (&str, &str) = (README, "# R\n[A](docs/a.md#a)\n");

    #[test]
    fn links_lead_to_pages_files_and_headings_that_exist() {
        let page = "# One `two` & three\n[x](#one-two--three) ![y](picture.png) [z](https://a.b/c)\n`[not](code.md)`\n";
        assert_eq!(problems(&[SUMMARY_OF_A, ("README.md", "[A](docs/a.md)"), ("docs/a.md", page)]), [""; 0]);
        let broken = "# A\n[x](#b) [y](missing.md)\n[z](../README.md)\n";
        let found = problems(&[SUMMARY_OF_A, ("docs/a.md", broken), ("README.md", "[A](docs/a.md)")]);
        assert_eq!(found.len(), 3, "{found:?}");
        assert!(found[0].starts_with("docs/a.md:2: #b:"), "{found:?}");
        assert!(found[2].contains("leads out of docs/"), "{found:?}");
    }

    #[test]
    fn the_pages_of_this_repository_have_no_mistakes() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let found = find_problems(&read(&root).unwrap(), |path| root.join(path).exists());
        assert_eq!(found, [""; 0]);
    }

    #[test]
    fn links_to_a_readme_would_break_in_the_book() {
        let page = "# A\n[x](README.md)\n";
        let summary = (SUMMARY, "[R](README.md)\n- [A](a.md)\n");
        let found = problems(&[
            summary,
            ("docs/a.md", page),
            ("docs/README.md", "# R\n"),
            ("README.md", "[A](docs/a.md)"),
        ]);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("mdBook builds README.md as index.html"), "{found:?}");
    }

    #[test]
    fn repeated_headings_have_numbered_anchors() {
        let page = scan("## The same\n## The same\n### [A link](there.md), too\n");
        let anchors: Vec<_> = page.anchors.iter().map(String::as_str).collect();
        assert_eq!(anchors, ["a-link-too", "the-same", "the-same-1"]);
    }

    #[test]
    fn the_summary_lists_every_page() {
        let page = ("docs/guides/b.md", "# B\n");
        let found = problems(&[SUMMARY_OF_A, README_OF_A, ("docs/a.md", "# A\n"), page]);
        assert_eq!(found, ["docs/guides/b.md: not listed in docs/SUMMARY.md"]);
    }

    #[test]
    fn the_readme_lists_every_page_without_a_folder() {
        let summary = (SUMMARY, "- [A](a.md)\n- [B](b.md)\n");
        let found = problems(&[summary, README_OF_A, ("docs/a.md", "# A\n"), ("docs/b.md", "# B\n")]);
        assert_eq!(found, ["docs/b.md: not listed in README.md"]);
    }

    #[test]
    fn decisions_are_listed_and_have_all_numbers() {
        let decisions = ["docs/decisions/001-a.md", "docs/decisions/003-c.md"].map(|path| (path, "# A\n"));
        let summary = "[A](decisions/001-a.md) [C](decisions/003-c.md) [I](decisions/index.md)\n";
        let index = (DECISION_INDEX, "[A](001-a.md)\n");
        let found = problems(&[(SUMMARY, summary), index, decisions[0], decisions[1]]);
        let wanted = [
            "docs/decisions/003-c.md: not listed in docs/decisions/index.md",
            "docs/decisions: no decision has the number 002",
        ];
        assert_eq!(found, wanted);
    }
}
