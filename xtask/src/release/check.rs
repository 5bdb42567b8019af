//! Checks of what was packed.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::sources::Release;
use super::steps::output;
use crate::arm64::root::debian;

/// Installs the package for this machine in a root of Debian 12, runs the program there and removes
/// the package again.
const INSTALL: &str = r#"
root=$1 package=$2
mount -t proc proc "$root/proc"
mount -t tmpfs tmpfs "$root/tmp"
cp "$package" "$root/tmp/millrace.deb"
run() { chroot "$root" /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root "$@"; }
run dpkg --install /tmp/millrace.deb
run millrace --version
run millrace doctor
run millrace generate --max-new-tokens 8 'Once upon a time'
run getent passwd millrace
run test -f /etc/millrace/millrace.toml
run gzip --test /usr/share/man/man1/millrace.1.gz /usr/share/man/man1/millrace-serve.1.gz
run bash -c '. /usr/share/bash-completion/completions/millrace && complete -p millrace'
run grep --quiet --line-regexp 'ExecStart=/usr/bin/millrace serve .*' /usr/lib/systemd/system/millrace.service
run dpkg --purge millrace
if run getent passwd millrace; then echo 'the user is still there' >&2; exit 1; fi
if run test -e /etc/millrace; then echo '/etc/millrace is still there' >&2; exit 1; fi
"#;

/// Checks the sums and the packages. Installs the one for this machine.
pub(super) fn install(folder: &Path, release: &Release, packed: &[PathBuf]) -> Result<(), String> {
    output(Command::new("sha256sum").args(["--check", "--quiet", "SHA256SUMS"]).current_dir(folder))?;
    let host = output(Command::new("dpkg").arg("--print-architecture"))?;
    for package in packed.iter().filter(|path| path.extension().is_some_and(|ending| ending == "deb")) {
        let info = output(Command::new("dpkg-deb").arg("--info").arg(package))?;
        println!("{info}");
        if !info.contains(&format!("Version: {}\n", release.version)) {
            return Err(format!("{} has another version", package.display()));
        }
        if !package.to_string_lossy().ends_with(&format!("_{}.deb", host.trim())) {
            continue;
        }
        let root = Path::new("target/release-root");
        debian("bookworm", "minbase", &[host.trim()], "ca-certificates,passwd", root)?;
        let mut install = Command::new("unshare");
        install.args(["--mount", "--propagation", "private", "sh", "-exc", INSTALL, "install"]);
        if !crate::install::command("unshare", install.arg(root).arg(package)) {
            return Err(format!("{} does not install, run and go as it should", package.display()));
        }
    }
    Ok(())
}
