//! Installs third-party packages below target/, in the versions that a folder pins.

use std::path::Path;
use std::process::Command;

/// Installs the packages of `pinned/requirements.txt` into a virtual environment.
pub(crate) fn python(pinned: &Path, folder: &Path) -> bool {
    let pinned = pinned.join("requirements.txt");
    install(&pinned, &folder.join("installed.txt"), || {
        // An existing environment may hold other versions.
        let _ = std::fs::remove_dir_all(folder);
        // The list is complete, so pip need not resolve dependencies.
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

/// Installs the packages of `pinned/package-lock.json`, for this platform.
pub(crate) fn node(pinned: &Path, folder: &Path) -> bool {
    let pinned = pinned.join("package-lock.json");
    install(&pinned, &folder.join("installed.json"), || {
        let copied = std::fs::create_dir_all(folder).and_then(|()| {
            std::fs::copy(&pinned, folder.join("package-lock.json"))?;
            std::fs::copy(pinned.with_file_name("package.json"), folder.join("package.json"))
        });
        // `npm ci` fails if a registry lacks the packages for other platforms; `npm install` does
        // not.
        let npm = ["install", "--no-audit", "--no-fund", "--ignore-scripts"];
        copied.is_ok() && has_npm() && command("npm", Command::new("npm").args(npm).current_dir(folder))
    })
}

/// Returns whether npm is available, after an attempt to install Debian's.
fn has_npm() -> bool {
    let found = Command::new("npm").arg("--version").output().is_ok_and(|done| done.status.success());
    found || apt("nodejs npm")
}

/// Installs packages of Debian, whose names have spaces between them. Returns whether that
/// succeeded.
pub(crate) fn apt(packages: &str) -> bool {
    let apt = |arguments: &[&str]| {
        // Another process may be installing packages at this moment.
        let wait = ["-o", "DPkg::Lock::Timeout=120"];
        let mut apt = Command::new("apt-get");
        apt.args(wait).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        command("apt-get", &mut apt)
    };
    let install = ["install", "--yes", "--quiet=2", "--no-install-recommends"];
    apt(&["update", "--quiet=2"]) && apt(&[&install[..], &packages.split(' ').collect::<Vec<_>>()].concat())
}

/// Installs the packages of the file `pinned`, unless `copy`, which records the installed ones, is
/// equal to it.
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

/// Runs a command. Returns whether it succeeded, and prints what is missing if it cannot start.
pub(crate) fn command(name: &str, command: &mut Command) -> bool {
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
