//! The files of a release, and the archive of them.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::sources::Files;
use super::steps::{modes, output, remove, write};
use super::{deb, dependencies};

impl Files<'_> {
    /// Writes the archive, the Debian package and the bill of materials into `folder`, and returns
    /// their paths.
    pub(super) fn pack(&self, folder: &Path) -> Result<Vec<PathBuf>, String> {
        let name = self.release.name(self.elf.architecture);
        let tree = folder.join("trees").join(&name);
        self.tree(&tree)?;
        let bill = folder.join(format!("{name}.cdx.json"));
        fs::copy(tree.join("share/doc/millrace/millrace.cdx.json"), &bill).map_err(|e| e.to_string())?;
        let archive = folder.join(format!("{name}.tar.xz"));
        self.archive(&tree, &archive)?;
        let package = deb::pack(self, &tree, folder)?;
        remove(&folder.join("trees"))?;
        Ok(vec![archive, package, bill])
    }

    /// Writes the files as they lie below `/usr/local` or `/usr`.
    fn tree(&self, tree: &Path) -> Result<(), String> {
        let (share, doc) = (tree.join("share"), tree.join("share/doc/millrace"));
        let program = tree.join("bin/millrace");
        write(&program, fs::read(self.binary).map_err(|e| format!("{}: {e}", self.binary.display()))?)?;
        self.strip(&program)?;
        for (shell, path) in [
            ("bash", "bash-completion/completions/millrace"),
            ("zsh", "zsh/site-functions/_millrace"),
            ("fish", "fish/vendor_completions.d/millrace.fish"),
        ] {
            let completions = output(Command::new(self.native).args(["completions", shell]))?;
            write(&share.join(path), completions)?;
        }
        output(Command::new(self.native).arg("man").arg(share.join("man/man1")))?;
        for (from, to) in [
            ("LICENSE", doc.join("LICENSE")),
            ("README.md", doc.join("README.md")),
            ("CHANGELOG.md", doc.join("CHANGELOG.md")),
            ("deploy/systemd/millrace.toml", doc.join("millrace.toml")),
            ("deploy/systemd/millrace.service", doc.join("millrace.service")),
        ] {
            write(&to, fs::read(from).map_err(|e| format!("{from}: {e}"))?)?;
        }
        let target = self.elf.architecture.target();
        let (own, all) = dependencies::of_target(Path::new("."), target)?;
        let bill = dependencies::bill(&self.release.version, target, &own, &all);
        write(&doc.join("millrace.cdx.json"), bill)?;
        let apache = fs::read_to_string("LICENSE").map_err(|e| format!("LICENSE: {e}"))?;
        write(&doc.join("THIRD-PARTY-LICENSES.txt"), dependencies::licenses(&all, &apache)?)?;
        modes(tree)
    }

    /// Removes symbols from the program, with the tool of its architecture.
    fn strip(&self, program: &Path) -> Result<(), String> {
        let is_native = self.elf.architecture.name() == std::env::consts::ARCH;
        if is_native {
            return output(Command::new("strip").arg("--strip-all").arg(program)).map(|_| ());
        }
        let root = crate::arm64::root::Root::make()?;
        let inside = Path::new(crate::arm64::root::REPOSITORY).join(program);
        let mut strip = root.command("aarch64-linux-gnu-strip", &[]);
        output(strip.arg("--strip-all").arg(inside)).map(|_| ())
    }

    /// Packs a tree so that the same files give the same bytes.
    fn archive(&self, tree: &Path, archive: &Path) -> Result<(), String> {
        let parent = tree.parent().unwrap_or(Path::new("."));
        let mut tar = Command::new("tar");
        tar.args(["--sort=name", "--owner=0", "--group=0", "--numeric-owner", "--format=gnu"]);
        tar.arg(format!("--mtime=@{}", self.release.time)).arg("--use-compress-program=xz -6 -T1");
        tar.arg("--create").arg("--file").arg(archive).arg("--directory").arg(parent);
        output(tar.arg(tree.file_name().unwrap_or_default())).map(|_| ())
    }
}
