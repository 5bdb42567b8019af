//! Installs third-party packages below target/, in the versions that a folder pins.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The number of times that a download is tried: registries fail for a moment now and then.
const ATTEMPTS: u32 = 3;

/// The time before the second attempt. The third one waits twice as long.
const PAUSE: Duration = Duration::from_secs(10);

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
            && download("pip", Command::new(folder.join("bin/python")).args(pip).arg(&pinned))
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
        copied.is_ok() && has_npm() && download("npm", Command::new("npm").args(npm).current_dir(folder))
    })
}

/// Returns whether npm is available, after an attempt to install Debian's.
fn has_npm() -> bool {
    let found = Command::new("npm").arg("--version").output().is_ok_and(|done| done.status.success());
    found || apt(&["nodejs", "npm"])
}

/// Installs packages of Debian. Returns whether that succeeded.
pub(crate) fn apt(packages: &[&str]) -> bool {
    let apt = |arguments: &[&str]| {
        // Another process may be installing packages at this moment.
        let wait = ["-o", "DPkg::Lock::Timeout=300"];
        let mut apt = Command::new("apt-get");
        apt.args(wait).args(arguments).env("DEBIAN_FRONTEND", "noninteractive");
        download("apt-get", &mut apt)
    };
    let install = ["install", "--yes", "--quiet=2", "--no-install-recommends"];
    apt(&["update", "--quiet=2"]) && apt(&[&install[..], packages].concat())
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

/// Runs a command that downloads, up to [`ATTEMPTS`] times. Returns whether it succeeded.
pub(crate) fn download(name: &str, download: &mut Command) -> bool {
    attempt(|| command(name, download))
}

/// Makes up to [`ATTEMPTS`] attempts at what needs a registry. Returns whether one succeeded.
pub(crate) fn attempt(run: impl FnMut() -> bool) -> bool {
    attempt_with(run, std::thread::sleep)
}

fn attempt_with(mut run: impl FnMut() -> bool, wait: impl Fn(Duration)) -> bool {
    (1..=ATTEMPTS).any(|attempt| {
        if attempt > 1 {
            eprintln!("attempt {attempt} of {ATTEMPTS}");
            wait(PAUSE * (attempt - 1));
        }
        run()
    })
}

/// Runs a command. Returns whether it succeeded, and prints what is missing if it cannot start.
pub(crate) fn command(name: &str, command: &mut Command) -> bool {
    eprintln!("$ {command:?}");
    match command.status() {
        Ok(status) => status.success(),
        Err(error) => {
            eprintln!(
                "{name}: {error}; the tests of clients, images and the page need Python 3.11 with venv, and \
                 Node.js 20 with npm"
            );
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;

    #[test]
    fn downloads_are_tried_three_times() {
        for (good, tries) in [(1, 1), (3, 3), (4, 3)] {
            let (mut calls, waits) = (0, RefCell::new(Vec::new()));
            let run = || {
                calls += 1;
                calls == good
            };
            let succeeded = attempt_with(run, |time| waits.borrow_mut().push(time));
            assert_eq!((succeeded, calls), (good == tries, tries));
            assert_eq!(waits.into_inner(), [PAUSE, 2 * PAUSE][..tries - 1]);
        }
    }
}
