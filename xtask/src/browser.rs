//! The page `/ui` in a real browser: Debian's Chromium, driven by Playwright.

use std::path::Path;
use std::process::Command;

use crate::{install, pytest};

/// The folder of the tests.
const TESTS: &str = "integration-tests/browser";

/// The folder that the packages which drive the browser are installed into.
const FOLDER: &str = "target/browser";

const CHROMIUM: &str = "/usr/bin/chromium";

/// Installs missing packages and runs the tests against the release build, with `arguments` for
/// pytest.
pub(crate) fn run(arguments: &[String]) -> bool {
    let binary = match prepare() {
        Ok(binary) => binary,
        Err(reason) => {
            eprintln!("{reason}");
            return false;
        }
    };
    let python = || Command::new(Path::new(FOLDER).join("bin/python"));
    let mut options = vec!["--durations=5".into(), "--binary".into(), binary.into_os_string()];
    options.extend(arguments.iter().map(Into::into));
    pytest::run(python, TESTS, &options)
}

/// Installs Chromium and packages, builds the server, and returns the path of the binary.
fn prepare() -> Result<std::path::PathBuf, String> {
    chromium()?;
    if !install::python(Path::new(TESTS), Path::new(FOLDER)) {
        return Err("the packages of the tests cannot be installed".to_owned());
    }
    let built = crate::cargo::build(&["build", "--release", "--bin", "millrace"], &[], "millrace")?;
    built.executable.ok_or_else(|| "cargo has built no millrace".to_owned())
}

fn chromium() -> Result<(), String> {
    if Path::new(CHROMIUM).exists() || install::apt(&["chromium"]) {
        return Ok(());
    }
    Err(format!("{CHROMIUM} is missing and cannot be installed: as root, run `apt-get install chromium`"))
}
