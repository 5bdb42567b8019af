//! The Helm chart, the Compose file and the systemd unit: `cargo xtask deploy`.

use std::path::Path;
use std::process::Command;

use crate::cargo::cargo;
use crate::{install, pytest};

/// The tests, and the pinned packages that they need.
const TESTS: &str = "integration-tests/deploy";

/// Installs Helm's engine and the schemas of Kubernetes below target/, builds the server, and runs
/// the tests with `arguments` for pytest.
pub(crate) fn run(arguments: &[String]) -> bool {
    let Ok(root) = std::env::current_dir() else { return false };
    let installed = root.join("target/deploy");
    // These are the packages and features of `cargo xtask test`, so nothing is built twice.
    let build = ["build", "--workspace", crate::features::FEATURES, "--bin", "millrace"];
    if !(install::python(Path::new(TESTS), &installed) && cargo(&build)) {
        return false;
    }
    let python = || {
        let mut python = Command::new(installed.join("bin/python"));
        python.env("MILLRACE_BINARY", root.join("target/debug/millrace"));
        python
    };
    pytest::run(python, TESTS, &arguments.iter().map(Into::into).collect::<Vec<_>>())
}
