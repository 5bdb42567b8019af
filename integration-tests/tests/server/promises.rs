//! Checks that each promise of docs/security.md names a test that exists.

use std::path::Path;

#[test]
fn every_promise_names_a_test_that_exists() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let page = std::fs::read_to_string(root.join("docs/security.md")).unwrap();
    let mut rows = 0;
    for row in page.lines().filter(|row| row.starts_with("| ") && row.contains("::")) {
        let test = row.rsplit('|').nth(1).unwrap().trim().trim_matches('`');
        let (file, name) = test.split_once("::").unwrap_or_else(|| panic!("no test in: {row}"));
        let source =
            std::fs::read_to_string(root.join(file)).unwrap_or_else(|error| panic!("{file}: {error}"));
        assert!(source.contains(&format!("fn {name}(")), "{file} has no test {name}");
        rows += 1;
    }
    assert!(rows >= 30, "{rows} promises");
}
