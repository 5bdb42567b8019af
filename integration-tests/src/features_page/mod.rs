//! Writes the tables of `docs/features.md`: which features work together, and the test that proves
//! it.

mod facts;

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use facts::{FACTS, FEATURES, Fact};

/// The lines between which the tables are.
const MARKS: [&str; 2] = ["<!-- features: generated -->\n", "<!-- end -->\n"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn fact(first: &str, second: &str) -> Option<Fact> {
    let is_pair = |(a, b): (&str, &str)| (a, b) == (first, second) || (b, a) == (first, second);
    FACTS.iter().find(|(a, b, _)| is_pair((a, b))).map(|(.., fact)| *fact)
}

/// Returns the table of all pairs.
fn overview() -> String {
    let mut table = format!("| | {} |\n|---|{}\n", FEATURES.join(" | "), "---|".repeat(FEATURES.len()));
    for row in FEATURES {
        let cells = FEATURES.map(|column| match fact(row, column) {
            _ if row == column => "",
            Some(fact) => fact.word(),
            None => "?",
        });
        writeln!(table, "| **{row}** | {} |", cells.join(" | ")).unwrap();
    }
    table
}

/// Returns the table of the known pairs with their tests.
fn proofs() -> String {
    let mut table = "| features | | test |\n|---|---|---|\n".to_owned();
    for (first, second, fact) in FACTS {
        let sentence = match fact {
            Fact::Yes(_) => String::new(),
            Fact::Without { sentence, .. } | Fact::No { sentence, .. } => format!(": {sentence}"),
        };
        writeln!(table, "| {first}, {second} | {}{sentence} | `{}` |", fact.word(), fact.test()).unwrap();
    }
    table
}

#[test]
fn the_page_has_the_tables() {
    let path = root().join("docs/features.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(MARKS[0]).unwrap();
    let (found, after) = rest.split_once(MARKS[1]).unwrap();
    let tables = format!("\n{}\n{}\n", overview(), proofs());
    if std::env::var_os("MILLRACE_WRITE_MODELS").is_some() {
        fs::write(path, [before, MARKS[0], &tables, MARKS[1], after].concat()).unwrap();
    } else {
        assert_eq!(found, tables, "write docs/features.md again with cargo xtask models");
    }
}

#[test]
fn every_fact_names_a_test_and_a_sentence_that_exist() {
    let read = |file: &str| fs::read_to_string(root().join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
    for (index, (first, second, fact)) in FACTS.iter().enumerate() {
        let place = |name: &str| FEATURES.iter().position(|feature| *feature == name);
        assert!(place(first).is_some() && place(first) < place(second), "{first}, {second}");
        assert!(!FACTS[..index].iter().any(|(a, b, _)| (a, b) == (first, second)), "{first}, {second} twice");
        let (file, name) = fact.test().split_once("::").unwrap();
        let source = read(file);
        let (_, definition) = source.split_once(&format!("fn {name}(")).unwrap_or_else(|| panic!("{name}"));
        let attribute = &source[..source.len() - definition.len()];
        let attribute = attribute.rfind("test]\n").map_or("", |at| &attribute[at..]);
        assert!(!attribute.is_empty() && attribute.lines().count() <= 4, "{name} is no test");
        if let Fact::No { sentence, source, .. } = fact {
            assert!(read(source).contains(sentence), "{source} does not say {sentence:?}");
        }
    }
    assert!(FACTS.len() >= 45, "{} pairs", FACTS.len());
}
