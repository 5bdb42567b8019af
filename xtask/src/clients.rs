//! Other projects' clients against the built server: `cargo xtask clients` and `cargo xtask
//! agents`.

use std::path::Path;
use std::process::Command;

use crate::cargo::cargo_test;
use crate::features::FEATURES;
use crate::{install, pytest, suites};

/// The pinned packages that `clients` installs.
const CLIENTS: &str = "integration-tests/clients";
/// The pinned packages that `agents` installs, about three gigabytes.
const AGENTS: &str = "integration-tests/clients/agents";

/// Installs the clients below target/, unless the same ones are there, and runs their tests.
pub(crate) fn run() -> bool {
    let Ok(root) = std::env::current_dir() else { return false };
    let (pinned, installed) = (Path::new(CLIENTS), root.join("target/clients"));
    if !(install::python(pinned, &installed.join("python")) && install::node(pinned, &installed.join("node")))
    {
        return false;
    }
    let environment =
        [("MILLRACE_CLIENTS", installed.to_str().unwrap_or_default()), ("MILLRACE_BINARY_IS_BUILT", "1")];
    // These are the packages and features of `cargo xtask test`, so nothing is built twice. The
    // test `version` belongs to the launcher and makes Cargo build the binary.
    let tests = ["test", "--workspace", FEATURES, "--test", "version", "--test", "server"];
    let mut harness = vec!["clients::", "--include-ignored", "--nocapture"];
    if std::env::var_os("MILLRACE_TEST_DATA").is_some() {
        harness.push("model_formats::");
    } else {
        println!("left out: the tests `model_formats::`, whose files are in the folder MILLRACE_TEST_DATA");
    }
    cargo_test(&tests, &harness, &environment).is_some()
}

/// Installs agents and larger libraries below target/, and runs their tests with `arguments` for
/// pytest.
///
/// The tests run in a network namespace that has only loopback, so the results do not depend on
/// servers that the agents try to reach.
pub(crate) fn agents(arguments: &[String]) -> bool {
    let Ok(root) = std::env::current_dir() else { return false };
    let (pinned, installed) = (Path::new(AGENTS), root.join("target/agents"));
    let (python, aider, node) = (installed.join("python"), installed.join("aider"), installed.join("node"));
    let ready = install::python(pinned, &python)
        && install::python(&pinned.join("aider"), &aider)
        && install::node(pinned, &node)
        && suites::build_binary();
    if !ready {
        return false;
    }
    let tests = || {
        let mut tests = Command::new("unshare");
        tests.args(["--map-root-user", "--net", "sh", "-c", "ip link set lo up && exec \"$@\"", "sh"]);
        tests.arg(python.join("bin/python"));
        tests.env("MILLRACE_BINARY", root.join("target/debug/millrace")).env("MILLRACE_AGENTS_NODE", &node);
        tests.env("MILLRACE_AIDER", aider.join("bin/aider"));
        tests
    };
    pytest::run(tests, AGENTS, &arguments.iter().map(Into::into).collect::<Vec<_>>())
}
