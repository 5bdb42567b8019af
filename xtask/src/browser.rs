//! The page `/ui` in a real browser: Debian's Chromium, driven by Playwright.

use std::fs;
use std::path::Path;
use std::process::Command;

/// The folder of the tests.
const TESTS: &str = "integration-tests/browser";

/// The folder that the packages which drive the browser are installed into.
const FOLDER: &str = "target/browser";

const CHROMIUM: &str = "/usr/bin/chromium";

/// Installs missing packages and runs the tests against the release build, with `arguments` for
/// pytest.
pub(crate) fn run(arguments: &[String]) -> bool {
    match prepare() {
        Ok(binary) => {
            let mut tests = Command::new(python());
            tests.args([
                "-m",
                "pytest",
                "--quiet",
                "-p",
                "no:cacheprovider",
                "--durations=5",
                TESTS,
                "--binary",
            ]);
            run_it(tests.arg(binary).args(arguments))
        }
        Err(why) => {
            eprintln!("{why}");
            false
        }
    }
}

/// Installs Chromium and packages, builds the server, and returns the path of the binary.
fn prepare() -> Result<std::path::PathBuf, String> {
    chromium()?;
    packages()?;
    let built = crate::cargo::build(&["build", "--release", "--bin", "millrace"], &[], "millrace")?;
    built.executable.ok_or_else(|| "cargo has built no millrace".to_owned())
}

fn chromium() -> Result<(), String> {
    let install = ["apt-get", "install", "--yes", "--quiet=2", "--no-install-recommends", "chromium"];
    let apt = |arguments: &[&str]| {
        run_it(Command::new(arguments[0]).args(&arguments[1..]).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    if Path::new(CHROMIUM).exists() || (apt(&["apt-get", "update", "--quiet=2"]) && apt(&install)) {
        return Ok(());
    }
    Err(format!("{CHROMIUM} is missing and cannot be installed: as root, run `apt-get install chromium`"))
}

/// Makes a virtual environment with the pinned packages, unless it exists.
fn packages() -> Result<(), String> {
    let list = format!("{TESTS}/requirements.txt");
    let wanted = fs::read_to_string(&list).map_err(|e| format!("{list}: {e}"))?;
    let stamp = Path::new(FOLDER).join("requirements.txt");
    if fs::read_to_string(&stamp).is_ok_and(|installed| installed == wanted) {
        return Ok(());
    }
    let pip = ["-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--requirement", &list];
    let made = run_it(Command::new("python3").args(["-m", "venv", "--clear", FOLDER]))
        && run_it(Command::new(python()).args(pip));
    if !made {
        return Err(format!(
            "the packages of {list} cannot be installed: they need python3 with venv, and a package index"
        ));
    }
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))
}

fn python() -> std::path::PathBuf {
    Path::new(FOLDER).join("bin/python3")
}

fn run_it(command: &mut Command) -> bool {
    eprintln!("$ {command:?}");
    command.status().is_ok_and(|status| status.success())
}
