//! `cargo xtask lint`.

use std::process::Command;

use crate::cargo::{cargo, cargo_path};
use crate::features::FEATURES;
use crate::{book, prose, structure};

/// Checks formatting, clippy, module cycles, language and the pages of documentation. Returns
/// whether all are clean.
pub(crate) fn run() -> bool {
    structure::check()
        && prose::check()
        && book::check()
        && cargo(&["fmt", "--all", "--check"])
        && families_are_formatted()
        && cargo(&["clippy", "--workspace", "--all-targets", FEATURES, "--", "-D", "warnings"])
}

/// Checks the formatting of the model families. A macro declares their modules, and `cargo fmt`
/// does not look into macros.
fn families_are_formatted() -> bool {
    const FOLDER: &str = "shard/model/src/families";
    let Ok(entries) = std::fs::read_dir(FOLDER) else {
        eprintln!("cannot read {FOLDER}");
        return false;
    };
    let files = entries.flatten().map(|entry| entry.path());
    let files = files.filter(|file| file.extension().is_some_and(|extension| extension == "rs"));
    let rustfmt = std::path::Path::new(&cargo_path()).with_file_name("rustfmt");
    let mut check = Command::new(rustfmt);
    check.args(["--edition", "2024", "--check"]).args(files);
    check.status().is_ok_and(|status| status.success())
}
