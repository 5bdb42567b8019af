//! A Debian root with a compiler for 64-bit ARM and an emulator.
//!
//! Only Debian sid has a recent Rust together with its standard library for other architectures.
//! The root is made below target/ and entered with `chroot`, so that nothing of it is installed on
//! this machine. Cargo downloads nothing in there: crates are fetched before.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cargo::cargo;
use crate::install;

/// The folder that everything for 64-bit ARM is kept in. `cargo build` does not look into it.
pub(crate) const FOLDER: &str = "target/arm64";

/// The target that is built for.
pub(crate) const TARGET: &str = "aarch64-unknown-linux-gnu";

/// The repository as programs in the root see it. It is the same on every machine, so that no path
/// of this one gets into a binary.
pub(crate) const REPOSITORY: &str = "/millrace";

/// The packages in the root.
const PACKAGES: &str = "rustc,cargo,libstd-rust-dev,libstd-rust-dev:arm64,gcc-aarch64-linux-gnu,\
                        g++-aarch64-linux-gnu,libc6-dev-arm64-cross,qemu-user,gcc,g++";

/// Mounts what programs in the root need and enters it. All mounts end with the process, because it
/// has its own list of them.
const ENTER: &str = r#"
root=$1 repository=$2 cargo=$3 libraries=$4
shift 4
mkdir -p "$root/millrace" "$root/cargo"
mount --bind "$repository" "$root/millrace"
mount --bind "$cargo" "$root/cargo"
if [ -n "$libraries" ]; then
    for part in include lib; do mount --bind "$libraries/$part" "$root/usr/aarch64-linux-gnu/$part"; done
fi
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
exec chroot "$root" /usr/bin/env --chdir=/millrace "$@"
"#;

/// A root that is complete.
pub(crate) struct Root {
    folder: PathBuf,
    repository: PathBuf,
    cargo_home: PathBuf,
    /// The folder of the C library for 64-bit ARM, if it is not that of the root.
    libraries: PathBuf,
}

impl Root {
    /// Makes the root unless it is there, and fetches the crates of `Cargo.lock`.
    ///
    /// # Errors
    /// If this user is not root, or a package or crate cannot be had.
    pub(crate) fn make() -> Result<Root, String> {
        let repository = std::env::current_dir().map_err(|e| e.to_string())?;
        let folder = repository.join(FOLDER).join("root");
        let root = Root { folder, repository, cargo_home: cargo_home()?, libraries: PathBuf::new() };
        if !is_root() {
            return Err("a Debian root is made and entered as root: run this as root, for example in a \
                        container with CAP_SYS_ADMIN"
                .to_owned());
        }
        debian("sid", "minbase", &["amd64", "arm64"], PACKAGES, &root.folder)?;
        if !install::attempt(|| cargo(&["fetch", "--locked", "--quiet"])) {
            return Err("the crates of Cargo.lock cannot be fetched".to_owned());
        }
        Ok(root)
    }

    /// Makes programs that are built in the root use the C library of Debian 12, so that they run
    /// with its glibc and with newer ones.
    ///
    /// # Errors
    /// If the packages of the library cannot be had.
    pub(crate) fn with_older_libraries(mut self) -> Result<Root, String> {
        let folder = self.repository.join(FOLDER).join("bookworm");
        let packages = "libc6-dev-arm64-cross,libgcc-s1-arm64-cross,libstdc++6-arm64-cross";
        debian("bookworm", "extract", &["amd64"], packages, &folder)?;
        self.libraries = folder.join("usr/aarch64-linux-gnu");
        Ok(self)
    }

    /// Returns the command `program`, which runs in the root, in the repository, with only these
    /// environment variables.
    pub(crate) fn command(&self, program: &str, environment: &[(&str, &str)]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "sh", "-ec", ENTER, "enter"]);
        command.arg(&self.folder).arg(&self.repository).arg(&self.cargo_home).arg(&self.libraries).arg("-i");
        let fixed = [("PATH", "/usr/bin:/bin"), ("HOME", "/root"), ("CARGO_HOME", "/cargo")];
        for (name, value) in fixed.iter().chain(environment) {
            command.arg(format!("{name}={value}"));
        }
        command.arg(program);
        command
    }

    /// Returns a Cargo in the root that builds for 64-bit ARM and runs programs on an emulator.
    pub(crate) fn cargo(&self, emulator: &str, environment: &[(&str, &str)]) -> Command {
        let build = format!("{REPOSITORY}/{FOLDER}/build");
        let all = [
            ("CARGO_NET_OFFLINE", "true"),
            ("CARGO_INCREMENTAL", "0"),
            ("CARGO_TARGET_DIR", &*build),
            ("CARGO_BUILD_TARGET", TARGET),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER", "aarch64-linux-gnu-gcc"),
            ("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER", emulator),
            ("CC_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-gcc"),
            ("CXX_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-g++"),
            ("AR_aarch64_unknown_linux_gnu", "aarch64-linux-gnu-ar"),
        ];
        self.command("cargo", &[&all, environment].concat())
    }
}

/// Returns the folder in which Cargo keeps crates.
///
/// # Errors
/// If the environment does not say where it is.
pub(crate) fn cargo_home() -> Result<PathBuf, String> {
    let named = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = named.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    home.ok_or_else(|| "neither CARGO_HOME nor HOME says where crates are".to_owned())
}

/// Makes a Debian root of the suite with these packages in `folder`, unless it is there with the
/// same ones. Installs mmdebstrap if it is missing.
///
/// # Errors
/// If mmdebstrap is not available or fails.
pub(crate) fn debian(
    suite: &str,
    variant: &str,
    architectures: &[&str],
    packages: &str,
    folder: &Path,
) -> Result<(), String> {
    let wanted = format!("{suite} {variant} {architectures:?} {packages}\n");
    let stamp = folder.with_extension("txt");
    if fs::read_to_string(&stamp).is_ok_and(|made| made == wanted) {
        return Ok(());
    }
    let has = Command::new("mmdebstrap").arg("--version").output().is_ok_and(|done| done.status.success());
    if !has && !install::apt(&["mmdebstrap"]) {
        return Err("mmdebstrap is missing and cannot be installed by apt-get".to_owned());
    }
    let parent = folder.parent().unwrap_or(Path::new("."));
    fs::create_dir_all(parent).map_err(|e| format!("{}: {e}", parent.display()))?;
    let mut make = Command::new("mmdebstrap");
    // Mirrors may be older than their lists say.
    make.args(["--mode=root", "--quiet", "--aptopt=Acquire::Check-Valid-Until \"false\""]);
    make.arg(format!("--variant={variant}"));
    make.arg(format!("--architectures={}", architectures.join(",")));
    make.arg(format!("--include={packages}")).arg(suite).arg(folder);
    // A mixture of two lists of packages, or half a root, is not what was asked for. The stamp goes
    // first.
    let mut made = || remove(&stamp, folder).is_ok() && install::command("mmdebstrap", &mut make);
    if !install::attempt(&mut made) {
        return Err(format!("mmdebstrap cannot make a root of Debian {suite} in {}", folder.display()));
    }
    fs::write(&stamp, wanted).map_err(|e| format!("{}: {e}", stamp.display()))
}

/// Removes a file and a folder, if they exist.
fn remove(file: &Path, folder: &Path) -> std::io::Result<()> {
    let gone = |removed: std::io::Result<()>| match removed {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(e),
        _ => Ok(()),
    };
    gone(fs::remove_file(file)).and_then(|()| gone(fs::remove_dir_all(folder)))
}

/// Returns whether this process may make roots.
fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|done| done.stdout.trim_ascii() == b"0")
}
