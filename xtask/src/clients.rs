//! Other people's clients against the built server: `cargo xtask clients`.

use std::path::Path;
use std::process::Command;

use crate::cargo::cargo_with;

/// What is installed, and where it says so.
const PINNED: &str = "integration-tests/clients";

/// Installs the clients below target/, unless the same ones are there, and runs their tests.
pub(crate) fn run() -> bool {
    let Ok(root) = std::env::current_dir() else { return false };
    let installed = root.join("target/clients");
    if !(python(&installed.join("python")) && node(&installed.join("node"))) {
        return false;
    }
    let environment =
        [("MILLRACE_CLIENTS", installed.to_str().unwrap_or_default()), ("MILLRACE_BINARY_IS_BUILT", "1")];
    // The packages that `cargo xtask test` builds, so that nothing is built twice; `version` is the binary's own test, and
    // has the binary built.
    let tests = [
        "test",
        "--workspace",
        crate::FEATURES,
        "--test",
        "version",
        "--test",
        "clients",
        "--",
        "--nocapture",
    ];
    cargo_with(&tests, &environment)
}

fn python(folder: &Path) -> bool {
    let pinned = Path::new(PINNED).join("requirements.txt");
    install(&pinned, &folder.join("installed.txt"), || {
        // Whatever is there may be of another version.
        let _ = std::fs::remove_dir_all(folder);
        // The list is complete: pip need not work out what else is needed.
        let pip = [
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--disable-pip-version-check",
            "--no-compile",
            "--requirement",
        ];
        command("python3", Command::new("python3").args(["-m", "venv"]).arg(folder))
            && command("pip", Command::new(folder.join("bin/python")).args(pip).arg(&pinned))
    })
}

fn node(folder: &Path) -> bool {
    let pinned = Path::new(PINNED).join("package-lock.json");
    install(&pinned, &folder.join("installed.json"), || {
        let copied = std::fs::create_dir_all(folder).and_then(|()| {
            std::fs::copy(&pinned, folder.join("package-lock.json"))?;
            std::fs::copy(pinned.with_file_name("package.json"), folder.join("package.json"))
        });
        let npm = ["ci", "--no-audit", "--no-fund", "--ignore-scripts"];
        copied.is_ok() && has_npm() && command("npm", Command::new("npm").args(npm).current_dir(folder))
    })
}

/// Whether there is a Node.js, Debian's if need be.
fn has_npm() -> bool {
    let found = Command::new("npm").arg("--version").output().is_ok_and(|done| done.status.success());
    let apt = |arguments: &[&str]| {
        let mut apt = Command::new("apt-get");
        command("apt-get", apt.args(arguments).env("DEBIAN_FRONTEND", "noninteractive"))
    };
    found
        || (apt(&["update", "--quiet=2"])
            && apt(&["install", "--yes", "--quiet=2", "--no-install-recommends", "nodejs", "npm"]))
}

/// Installs what the file `pinned` lists, and then keeps a copy of it, which says what is there.
fn install(pinned: &Path, copy: &Path, install: impl FnOnce() -> bool) -> bool {
    let Ok(wanted) = std::fs::read(pinned) else {
        eprintln!("cannot read {}", pinned.display());
        return false;
    };
    if std::fs::read(copy).is_ok_and(|there| there == wanted) {
        return true;
    }
    install() && std::fs::write(copy, wanted).is_ok()
}

fn command(name: &str, command: &mut Command) -> bool {
    eprintln!("$ {command:?}");
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!(
                "{name}: {error}; the clients' tests need Python 3.11 with venv, and Node.js 20 with npm"
            );
            false
        }
    }
}
