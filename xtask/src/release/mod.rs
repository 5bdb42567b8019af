//! `cargo xtask release`: archives and Debian packages for x86-64 and 64-bit ARM.

mod build;
mod check;
mod deb;
mod dependencies;
mod elf;
mod pack;
mod sources;
mod steps;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sources::{Files, Release};
use steps::{output, remove, write};

/// The folder of everything that is released.
const FOLDER: &str = "target/release-pack";

/// Builds and packs both architectures, or packs the binaries in `arguments` instead. Packs twice
/// and compares, and installs the package for this machine in a Debian root.
pub(crate) fn run(arguments: &[String]) -> bool {
    release(arguments).inspect_err(|why| eprintln!("{why}")).is_ok()
}

/// Builds everything twice in different folders. Returns whether both builds have the same bytes.
pub(crate) fn builds_are_equal() -> bool {
    let twice = || {
        let first = build::all()?;
        let first: Vec<_> =
            first.iter().map(fs::read).collect::<Result<_, _>>().map_err(|e| e.to_string())?;
        build::clean()?;
        for (path, first) in build::all()?.iter().zip(first) {
            if fs::read(path).map_err(|e| e.to_string())? != first {
                return Err(format!("{}: a second build has other bytes", path.display()));
            }
        }
        Ok(())
    };
    twice().inspect_err(|why: &String| eprintln!("{why}")).is_ok()
}

fn release(arguments: &[String]) -> Result<(), String> {
    let binaries = match arguments {
        [] => build::all()?,
        given => given.iter().map(PathBuf::from).collect(),
    };
    let release = Release::of_commit()?;
    let folder = Path::new(FOLDER);
    remove(folder)?;
    let mut packed = Vec::new();
    let binaries: Vec<_> =
        binaries.into_iter().map(|path| Ok((elf::read(&path)?, path))).collect::<Result<_, String>>()?;
    let native = binaries.iter().find(|(elf, _)| elf.architecture.name() == std::env::consts::ARCH);
    let (_, native) = native.ok_or("completions and manual pages need the binary of this machine, too")?;
    for (elf, binary) in &binaries {
        println!("{}: {}, needs glibc {}", binary.display(), elf.architecture.name(), elf.glibc);
        let files = Files { release: &release, elf, binary, native };
        packed.extend(files.pack(folder)?);
        let again = Path::new("target/release-pack-again");
        remove(again)?;
        for second in files.pack(again)? {
            let name = second.file_name().unwrap_or_default();
            let same = fs::read(folder.join(name)).ok() == fs::read(&second).ok();
            if !same {
                return Err(format!("{}: packing twice gives other bytes", second.display()));
            }
        }
    }
    sums(folder, &packed)?;
    check::install(folder, &release, &packed)?;
    for path in packed {
        let size = fs::metadata(&path).map_or(0, |meta| meta.len());
        println!("{}: {:.1} MB", path.display(), size as f64 / 1e6);
    }
    Ok(())
}

/// Writes `SHA256SUMS` as `sha256sum --check` reads it.
fn sums(folder: &Path, packed: &[PathBuf]) -> Result<(), String> {
    let names = packed.iter().filter_map(|path| path.file_name());
    let sums = output(Command::new("sha256sum").args(names).current_dir(folder))?;
    write(&folder.join("SHA256SUMS"), sums)
}
