//! Benchmark of the whole server: `cargo bench --profile dist --package millrace-integration-tests
//! --bench http`.
//!
//! Starts the binary of the same profile, sends requests over loopback, mostly with `millrace
//! bench-http`, and prints a table of throughput, one of the gaps between tokens and one of prompts
//! per model. `-- --help` lists the
//! options that choose a part of it. A second binary is measured in turns with the first one
//! (`--table gaps --against PATH`).
#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

mod candidate;
mod gaps;
mod load;
mod model;
mod options;
mod prompts;
mod throughput;

use clap::Parser;

use crate::options::{BenchOptions, Table};

fn main() {
    let options = BenchOptions::parse();
    let models = model::all();
    let is_wanted = |name: &str| options.model.as_deref().is_none_or(|wanted| wanted == name);
    assert!(models.iter().any(|model| is_wanted(model.name)), "no model of this name");
    for model in models.iter().filter(|model| is_wanted(model.name)) {
        let has_table = |table| options.table.is_none_or(|wanted| wanted == table);
        if has_table(Table::Throughput) {
            throughput::measure(model);
        }
        if has_table(Table::Gaps) {
            gaps::measure(model, &options);
        }
        if has_table(Table::Prompts) {
            prompts::measure(model, &options);
        }
    }
}
