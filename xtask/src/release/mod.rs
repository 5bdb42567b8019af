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

/// Packs both architectures: the binaries in `arguments`, or those that a build makes, or with
/// `twice` those that two builds make alike. Packs twice and compares, and installs the package for
/// this machine in a Debian root. Returns whether all is well.
pub(crate) fn run(arguments: &[String]) -> bool {
    let released = match arguments {
        [] => build::all().and_then(release),
        [twice] if twice == "twice" => equal_builds().and_then(release),
        binaries => release(binaries.iter().map(PathBuf::from).collect()),
    };
    released.inspect_err(|why| eprintln!("{why}")).is_ok()
}

/// Builds everything twice in different folders, and fails if the builds have other bytes.
fn equal_builds() -> Result<Vec<PathBuf>, String> {
    let read = |path: &PathBuf| fs::read(path).map_err(|e| e.to_string());
    let first: Vec<_> = build::all()?.iter().map(read).collect::<Result<_, _>>()?;
    build::clean()?;
    let second = build::all()?;
    for (path, first) in second.iter().zip(first) {
        if read(path)? != first {
            return Err(format!("{}: a second build has other bytes", path.display()));
        }
    }
    Ok(second)
}

fn release(binaries: Vec<PathBuf>) -> Result<(), String> {
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
