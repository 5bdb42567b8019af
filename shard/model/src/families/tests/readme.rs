//! Compares `README.md` with the families and the file formats that the code serves.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::models_page::FILES;
use crate::families::registry::FAMILIES;
use crate::families::text_part;

fn readme() -> String {
    fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../README.md")).unwrap()
}

/// Returns the cells of the rows of the table with this head.
fn table<'a>(readme: &'a str, head: &str) -> Vec<Vec<&'a str>> {
    let (_, rest) = readme.split_once(head).unwrap_or_else(|| panic!("README.md has no table {head}"));
    let rows = rest.trim_start().lines().skip(1).take_while(|line| line.starts_with('|'));
    rows.map(|row| row.trim_matches('|').split(" | ").map(str::trim).collect()).collect()
}

/// Returns the words between backticks.
fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_readme_lists_every_family_once() {
    let readme = readme();
    let rows = table(&readme, "| family | `model_type` |");
    let mut listed: Vec<&str> = rows.iter().flat_map(|cells| quoted(cells[1])).collect();
    let mut families: Vec<&str> = FAMILIES.iter().map(|family| family.model_type).collect();
    listed.sort_unstable();
    families.sort_unstable();
    assert_eq!(listed, families, "the table of families in README.md is not that of the code");
}

#[test]
fn the_readme_has_one_number_of_families() {
    let (readme, count) = (readme(), FAMILIES.len());
    let words = readme.split_whitespace().collect::<Vec<_>>().join(" ");
    for text in [format!("It serves {count} families of models"), format!("| models | {count} families,")] {
        assert!(words.contains(&text), "README.md does not say: {text}");
    }
}

#[test]
fn the_readme_names_every_model_with_images_whose_text_part_is_served() {
    let words = readme().split_whitespace().collect::<Vec<_>>().join(" ");
    let (_, rest) = words.split_once(" The text part of ").unwrap();
    let (sentence, _) = rest.split_once("without images").unwrap();
    let listed: BTreeSet<&str> = quoted(sentence).into_iter().collect();
    let served: BTreeSet<&str> =
        FAMILIES.iter().flat_map(|family| text_part::image_models(family.model_type)).collect();
    assert_eq!(listed, served);
}

#[test]
fn the_readme_lists_the_file_formats_of_the_page_of_models() {
    let readme = readme();
    let listed: Vec<&str> = table(&readme, "| files | versions |").iter().map(|cells| cells[0]).collect();
    assert_eq!(listed, FILES.iter().map(|fact| fact.what).collect::<Vec<_>>());
}
