//! Checks of the language of code and docs that a program can make: the field's words, one
//! spelling, first words of doc comments, and lines of at most 100 columns.

mod wrap;

use std::path::Path;
use std::process::Command;
use std::{fs, io};

use wrap::WIDTH;

/// Words that are not used, and what is used instead.
const WORDS: [(&str, &str); 6] = [
    ("card", "GPU"),
    ("cards", "GPUs"),
    ("processor", "CPU"),
    ("processors", "CPUs"),
    ("heeded", "applied"),
    ("whilst", "while"),
];

/// Stems of words in another spelling than the code's.
const STEMS: [&str; 12] = [
    "quantis",
    "normalis",
    "optimis",
    "serialis",
    "initialis",
    "synchronis",
    "tokenis",
    "recognis",
    "utilis",
    "summaris",
    "vectoris",
    "parallelise",
];

/// First words that leave the noun of a doc comment out.
const FRAGMENTS: [&str; 7] = ["What", "Whose", "Which", "Who", "Whom", "Likewise", "Ditto"];

/// Files that quote these words, speak of the past, or belong to others.
const EXCEPTIONS: [&str; 7] = [
    "CHANGELOG.md",
    "xtask/src/prose/",
    "docs/glossary.md",
    "proto/src/generated.rs",
    "/vendor/",
    "/templates/",
    "Cargo.lock",
];

/// Names and terms that contain one of the words.
const NAMES: [&str; 11] = [
    "logits_processor",
    "mm_processor_kwargs",
    "processor_kwargs",
    "pre_tokenizers, processors",
    "create_model_card",
    "logits processor",
    "post_processor",
    "post-processor",
    "/processors",
    "model card",
    "alias = \"cards\"",
];

/// File name extensions whose files are checked.
const CHECKED: [&str; 9] = ["rs", "md", "cu", "cuh", "cpp", "h", "py", "js", "proto"];

/// Runs the check. With `--fix` among the arguments, wraps wide paragraphs first.
pub(crate) fn run(arguments: &[String]) -> bool {
    let is_fix = match arguments {
        [] => false,
        [flag] if flag == "--fix" => true,
        _ => {
            eprintln!("usage: cargo xtask prose [--fix]");
            return false;
        }
    };
    (!is_fix || fix()) && check()
}

/// Wraps the wide paragraphs of every tracked file. Returns false if a file cannot be written.
fn fix() -> bool {
    let fixed =
        tracked().and_then(|files| files.iter().filter(|file| is_checked(file)).try_for_each(fix_file));
    fixed.inspect_err(|error| eprintln!("{error}")).is_ok()
}

fn fix_file(file: &String) -> io::Result<()> {
    let Ok(text) = fs::read_to_string(file) else { return Ok(()) };
    let wrapped = if file.ends_with(".md") { wrap::page(&text) } else { wrap::code(&text) };
    if wrapped != text {
        println!("wrapped {file}");
        fs::write(file, wrapped)?;
    }
    Ok(())
}

/// Checks every tracked file and prints what it finds. Returns whether there is nothing.
pub(crate) fn check() -> bool {
    let files = match tracked() {
        Ok(files) => files,
        Err(error) => {
            eprintln!("git ls-files: {error}");
            return false;
        }
    };
    let mut found = 0;
    for file in files.iter().filter(|file| is_checked(file)) {
        let Ok(text) = fs::read_to_string(file) else { continue };
        for (line, what) in findings(Path::new(file), &text) {
            found += 1;
            eprintln!("{file}:{line}: {what}");
        }
    }
    if found > 0 {
        eprintln!("{found} places that CONTRIBUTING.md's rules of language speak against");
        eprintln!("`cargo xtask prose --fix` wraps lines that are too wide");
    }
    found == 0
}

/// The files that git tracks or would track.
fn tracked() -> io::Result<Vec<String>> {
    // Files that are new belong to the next commit.
    let output =
        Command::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard"]).output()?;
    Ok(String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect())
}

fn is_checked(file: &str) -> bool {
    let extension = Path::new(file).extension().and_then(|extension| extension.to_str());
    extension.is_some_and(|extension| CHECKED.contains(&extension))
        && !EXCEPTIONS.iter().any(|exception| file.contains(exception))
}

/// The lines of a file that are spoken against, with the reason.
fn findings(file: &Path, text: &str) -> Vec<(usize, String)> {
    let is_docs = file.extension().is_some_and(|extension| extension == "md");
    let mut found = Vec::new();
    let (mut is_fenced, mut before) = (false, "");
    for (index, line) in text.lines().enumerate() {
        let trimmed = line.trim_start();
        is_fenced ^= is_docs && trimmed.starts_with("```");
        let is_comment = ["//", "* "].iter().any(|mark| trimmed.starts_with(mark));
        let mut report = |what: String| found.push((index + 1, what));
        let named = NAMES.iter().any(|name| trimmed.contains(name));
        for word in trimmed.split(|c: char| !c.is_alphanumeric()).filter(|_| !named) {
            let lower = word.to_lowercase();
            if let Some((_, instead)) = WORDS.iter().find(|(wrong, _)| *wrong == lower) {
                report(format!("`{word}`: write {instead}"));
            } else if word.contains("Card") && !word.contains("Cardinal") {
                report(format!("`{word}`: write Gpu"));
            }
            if let Some(stem) = STEMS.iter().find(|stem| lower.contains(**stem)) {
                let (start, _) = stem.split_at(stem.len() - 1);
                report(format!("`{word}`: write {start}z…"));
            }
        }
        let is_table = trimmed.trim_start_matches(['/', '!', ' ']).starts_with('|');
        let is_prose =
            !is_table && (is_comment || (is_docs && !is_fenced && !trimmed.starts_with(['[', '<'])));
        if is_prose && line.chars().count() > WIDTH && !trimmed.contains("://") {
            report(format!("{} columns, of at most {WIDTH}", line.chars().count()));
        }
        let doc = |line: &'_ str| line.starts_with("///") || line.starts_with("//!");
        if doc(trimmed) && !doc(before) {
            let first = trimmed[3..].split_whitespace().next().unwrap_or_default();
            if FRAGMENTS.contains(&first.trim_end_matches(['.', ',', ':', ';'])) {
                report(format!("a doc comment begins with what the item is, not with `{first}`"));
            }
        }
        before = trimmed;
    }
    found
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::findings;

    #[test]
    fn words_spelling_fragments_and_wide_lines_are_found() {
        let wide = format!("// {}", "word ".repeat(20));
        let text = format!(
            "/// Which.\nlet discarded = wildcard;\n/// The GPU.\n/// Which is one.\n// quantised on cards\n{wide}\n"
        );
        let found: Vec<usize> = findings(Path::new("a.rs"), &text).iter().map(|(line, _)| *line).collect();
        assert_eq!(found, [1, 5, 5, 6]);
    }

    #[test]
    fn tables_code_and_links_of_docs_may_be_wide() {
        let wide = "word ".repeat(21);
        let text = format!("{wide}\n| {wide}\n```sh\n{wide}\n```\nsee https://{wide}\n");
        let found: Vec<usize> = findings(Path::new("a.md"), &text).iter().map(|(line, _)| *line).collect();
        assert_eq!(found, [1]);
    }
}
