//! The Debian package.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::sources::Files;
use super::steps::{modes, output, remove, write};

/// The license of the package.
const COPYRIGHT: &str = "\
Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/

Files: *
Copyright: the Millrace developers
License: Apache-2.0
 /usr/share/common-licenses/Apache-2.0 has the text. The program contains packages of other authors:
 /usr/share/doc/millrace/THIRD-PARTY-LICENSES.txt has their licenses.
";

/// Makes the system user, with which the unit's files may be shared, and lets systemd see the unit.
/// The service is not started: it would serve the demo model.
const AFTER_INSTALLATION: &str = r#"#!/bin/sh
set -e
if [ "$1" = configure ]; then
    if ! getent passwd millrace >/dev/null; then
        useradd --system --user-group --no-create-home --home-dir /var/cache/millrace \
            --shell /usr/sbin/nologin --comment "Millrace inference server" millrace
    fi
    if [ -d /run/systemd/system ]; then
        systemctl daemon-reload
        # A server that runs goes on with the new version.
        systemctl try-restart millrace.service
    fi
fi
"#;

/// Stops the service before its program goes. An upgrade restarts it afterwards.
const BEFORE_REMOVAL: &str = r#"#!/bin/sh
set -e
if [ "$1" = remove ] && [ -d /run/systemd/system ]; then
    systemctl disable --now millrace.service
fi
"#;

/// Removes what the service wrote and the user, if the configuration goes as well.
const AFTER_REMOVAL: &str = r#"#!/bin/sh
set -e
if [ -d /run/systemd/system ]; then
    systemctl daemon-reload
fi
if [ "$1" = purge ]; then
    rm -rf /var/cache/millrace /var/cache/private/millrace
    if getent passwd millrace >/dev/null; then
        userdel millrace
    fi
fi
"#;

/// Packs the files of `tree` as a Debian package in `folder`, and returns its path.
pub(super) fn pack(files: &Files<'_>, tree: &Path, folder: &Path) -> Result<PathBuf, String> {
    let (release, elf) = (files.release, files.elf);
    let root = folder.join("deb");
    remove(&root)?;
    write(&root.join("placeholder"), "")?;
    output(Command::new("cp").arg("--recursive").arg(tree).arg(root.join("usr")))?;
    fs::remove_file(root.join("placeholder")).map_err(|e| e.to_string())?;
    let usr = root.join("usr");
    rename(&usr.join("share/zsh/site-functions"), &usr.join("share/zsh/vendor-completions"))?;
    let doc = usr.join("share/doc/millrace");
    // Every Debian system has the text of this license.
    fs::remove_file(doc.join("LICENSE")).map_err(|e| e.to_string())?;
    write(&doc.join("copyright"), COPYRIGHT)?;
    let changes = doc.join("changelog");
    rename(&doc.join("CHANGELOG.md"), &changes)?;
    output(Command::new("gzip").args(["-9", "--no-name"]).arg(changes))?;
    rename(&doc.join("millrace.toml"), &root.join("etc/millrace/millrace.toml"))?;
    let unit = fs::read_to_string(doc.join("millrace.service")).map_err(|e| e.to_string())?;
    let (local, packaged) = ("/usr/local/bin/millrace", "/usr/bin/millrace");
    if !unit.contains(local) {
        return Err(format!("deploy/systemd/millrace.service does not start {local}"));
    }
    fs::remove_file(doc.join("millrace.service")).map_err(|e| e.to_string())?;
    write(&usr.join("lib/systemd/system/millrace.service"), unit.replace(local, packaged))?;
    for entry in fs::read_dir(usr.join("share/man/man1")).map_err(|e| e.to_string())? {
        let page = entry.map_err(|e| e.to_string())?.path();
        output(Command::new("gzip").args(["-9", "--no-name"]).arg(page))?;
    }
    let size =
        output(Command::new("du").args(["--summarize", "--apparent-size", "--block-size=1024"]).arg(&usr))?;
    let size = size.split_whitespace().next().unwrap_or("0").to_owned();
    let control = format!(
        "Package: millrace\nVersion: {version}\nArchitecture: {architecture}\nSection: net\nPriority: optional\n\
         Maintainer: The Millrace project\nInstalled-Size: {size}\n\
         Depends: libc6 (>= {glibc}), libgcc-s1, passwd\nRecommends: ca-certificates\n\
         Description: LLM inference server\n Millrace serves language models over HTTP, with the \
         interfaces of\n text-generation-inference and OpenAI: continuous batching, a paged KV\n cache, and \
         streamed tokens, on CPUs and on NVIDIA GPUs.\n",
        version = release.version,
        architecture = elf.architecture.debian(),
        glibc = elf.glibc,
    );
    write(&root.join("DEBIAN/control"), control)?;
    write(&root.join("DEBIAN/conffiles"), "/etc/millrace/millrace.toml\n")?;
    write(&root.join("DEBIAN/postinst"), AFTER_INSTALLATION)?;
    write(&root.join("DEBIAN/prerm"), BEFORE_REMOVAL)?;
    write(&root.join("DEBIAN/postrm"), AFTER_REMOVAL)?;
    modes(&root)?;
    let package = folder.join(format!("millrace_{}_{}.deb", release.version, elf.architecture.debian()));
    let mut build = Command::new("dpkg-deb");
    build.args(["--root-owner-group", "-Zxz", "--threads-max=1", "--build"]).arg(&root).arg(&package);
    output(build.env("SOURCE_DATE_EPOCH", &release.time))?;
    remove(&root)?;
    Ok(package)
}

fn rename(from: &Path, to: &Path) -> Result<(), String> {
    let about = |e: std::io::Error| format!("{} to {}: {e}", from.display(), to.display());
    fs::create_dir_all(to.parent().unwrap_or(Path::new("/"))).map_err(about)?;
    fs::rename(from, to).map_err(about)
}
