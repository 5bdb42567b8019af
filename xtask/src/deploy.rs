//! The Helm chart, the Compose file and the systemd unit: `cargo xtask deploy`.

use std::path::Path;
use std::process::Command;

use crate::{install, pytest, suites};

/// The tests, and the pinned packages that they need.
const TESTS: &str = "integration-tests/deploy";

/// Installs Helm's engine and the schemas of Kubernetes below target/, builds the server, and runs
/// the tests with `arguments` for pytest.
pub(crate) fn run(arguments: &[String]) -> bool {
    let Ok(root) = std::env::current_dir() else { return false };
    let installed = root.join("target/deploy");
    if !(install::python(Path::new(TESTS), &installed) && suites::build_binary()) {
        return false;
    }
    let python = || {
        let mut python = Command::new(installed.join("bin/python"));
        python.env("MILLRACE_BINARY", root.join("target/debug/millrace"));
        python
    };
    pytest::run(python, TESTS, &arguments.iter().map(Into::into).collect::<Vec<_>>())
}
