//! Writes the table of chat templates of `docs/models.md`.

use std::fs;
use std::path::Path;

use millrace_answers::reasoning::ReasoningFormat;
use millrace_answers::tools::ToolFormat;
use serde_json::Value;

use super::published_tests::FORMATS;
use crate::test_support;

const BEGIN: &str = "<!-- begin: templates -->\n";
const END: &str = "<!-- end: templates -->\n";

fn row(name: &str, calls: &str, reasoning: &str, test: &str) -> String {
    let calls = if calls == "json" { "plain JSON".to_owned() } else { format!("`{calls}`") };
    let reasoning = if reasoning.is_empty() { "none".to_owned() } else { format!("`{reasoning}`") };
    format!("| `{name}` | {calls} | {reasoning} | {test} |\n")
}

/// Returns the table: the published templates, whose formats another test compares with the
/// templates themselves, and the templates in `integration-tests/golden`.
fn table() -> String {
    let mut table = "| chat template | tool calls | reasoning | proven by |\n|---|---|---|---|\n".to_owned();
    for (name, calls, reasoning) in FORMATS {
        table += &row(name, calls, reasoning, "`published_templates_show_their_formats`");
    }
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../integration-tests/golden/templates.json");
    let golden: Value = serde_json::from_slice(&fs::read(path).unwrap()).unwrap();
    let tokenizer = test_support::tokenizer();
    for template in golden["templates"].as_array().unwrap() {
        let source = template["template"].as_str();
        let calls = ToolFormat::of(source, &tokenizer).to_string();
        let reasoning = ReasoningFormat::of(source).map_or("", ReasoningFormat::name);
        table += &row(template["name"].as_str().unwrap(), &calls, reasoning, "this table's test");
    }
    table
}

/// The shard's test of the same name writes the other tables.
#[test]
fn the_page_of_models_is_up_to_date() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/models.md");
    let page = fs::read_to_string(&path).unwrap();
    let (before, rest) = page.split_once(BEGIN).unwrap();
    let (_, after) = rest.split_once(END).unwrap();
    let new = format!("{before}{BEGIN}\n{}\n{END}{after}", table());
    if std::env::var_os("MILLRACE_WRITE_MODELS").is_some() {
        fs::write(&path, &new).unwrap();
    }
    let page = fs::read_to_string(&path).unwrap();
    assert!(page == new, "docs/models.md is not up to date; `cargo xtask models` writes it");
}
