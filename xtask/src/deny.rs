//! `cargo xtask deny`: licenses, sources, forbidden crates and known defects of all dependencies,
//! as `deny.toml` says.

use std::path::Path;
use std::process::Command;

use crate::install;

/// Checks everything that needs no database. Returns whether all is allowed.
pub(crate) fn run() -> bool {
    let check = ["check", "--hide-inclusion-graph", "licenses", "bans", "sources"];
    install() && install::command("cargo-deny", program().args(check))
}

/// Compares the dependencies with the database of RustSec as well. Returns whether there is no
/// advisory. Where the database cannot be reached, this says so and succeeds.
pub(crate) fn advisories() -> bool {
    if !run() {
        return false;
    }
    let Ok(done) = program().args(["check", "advisories"]).output() else { return false };
    let said = String::from_utf8_lossy(&done.stderr);
    eprint!("{said}");
    if said.contains("failed to fetch advisory database") {
        println!("skipped: advisories were not checked, because their database cannot be reached");
        return true;
    }
    done.status.success()
}

fn install() -> bool {
    install::python(Path::new("xtask/cargo-deny"), Path::new("target/cargo-deny"))
}

fn program() -> Command {
    Command::new("target/cargo-deny/bin/cargo-deny")
}
