//! Builds the images with a private Docker engine and tests them: `cargo xtask container`.
//!
//! Nothing is pulled from a registry of images. The base images are made of Debian's packages and
//! of the Rust toolchain that runs this program, under the names that the Dockerfile uses.

mod engine;
mod images;

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{install, pytest};
use engine::{Engine, Network};
use images::Binary;

/// The tests, and the pinned packages that they need.
const TESTS: &str = "integration-tests/container";

/// Folder of the engine: its socket, images and containers.
const FOLDER: &str = "target/container";

/// Programs, each with the package of Debian that has it.
const PROGRAMS: &[(&str, &str)] = &[
    ("/usr/sbin/dockerd", "docker.io"),
    ("/usr/bin/docker", "docker.io"),
    ("/usr/bin/mmdebstrap", "mmdebstrap"),
    ("/usr/bin/docker-compose", "docker-compose"),
    ("/usr/sbin/haproxy", "haproxy"),
    ("/usr/bin/curl", "curl"),
    ("/usr/bin/nsenter", "util-linux"),
    ("/usr/sbin/ip", "iproute2"),
];

/// The parts of the command line.
#[derive(Debug, Default, PartialEq, Eq)]
struct Options {
    /// `--release-binary`: take the binary of `cargo build --release` instead of compiling in the
    /// builder's container.
    release_binary: bool,
    /// `--cpu-only`: leave out the CUDA image.
    cpu_only: bool,
    /// `--machine-code`: compile a binary with machine code for GPUs for the CUDA image, instead of
    /// taking that of the CPU image.
    machine_code: bool,
    /// The rest is for pytest.
    pytest: Vec<String>,
}

impl Options {
    fn parse(arguments: &[String]) -> Options {
        let mut options = Options::default();
        for argument in arguments {
            match argument.as_str() {
                "--release-binary" => options.release_binary = true,
                "--cpu-only" => options.cpu_only = true,
                "--machine-code" => options.machine_code = true,
                _ => options.pytest.push(argument.clone()),
            }
        }
        options
    }
}

/// Builds an image and runs its tests.
pub(crate) fn run(arguments: &[String]) -> bool {
    let options = Options::parse(arguments);
    match build_and_test(&options) {
        Ok(passed) => passed,
        Err(error) => {
            eprintln!("cargo xtask container: {error}");
            false
        }
    }
}

fn build_and_test(options: &Options) -> Result<bool, String> {
    install_programs()?;
    let root = std::env::current_dir().map_err(|e| e.to_string())?;
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    if !install::python(Path::new(TESTS), &root.join("target/container-tests")) {
        return Err("the packages of the tests cannot be installed".to_owned());
    }
    let binary = if options.release_binary { Binary::OfRelease } else { Binary::OfBuilder };
    {
        // Builds need the network of this machine, for the registries of packages.
        let engine = Engine::start(&folder, Network::OfMachine)?;
        images::build(&engine, binary, !options.cpu_only, options.machine_code)?;
    }
    // Containers publish ports, in a network of their own.
    let engine = Engine::start(&folder, Network::Private)?;
    Ok(test(&engine, &root, options))
}

/// Runs the tests in the engine's network.
fn test(engine: &Engine, root: &Path, options: &Options) -> bool {
    let python = || {
        let mut inside: Command = engine.inside();
        inside.arg(root.join("target/container-tests/bin/python")).env("DOCKER_HOST", engine.address());
        // Whether the binary of the CUDA image must have machine code.
        inside.env("MACHINE_CODE", if options.machine_code { "1" } else { "0" });
        inside
    };
    let mut arguments: Vec<OsString> = vec!["-rA".into()];
    if options.cpu_only {
        arguments.extend(["--ignore".into(), Path::new(TESTS).join("test_cuda.py").into()]);
    }
    arguments.extend(options.pytest.iter().map(Into::into));
    pytest::run(python, TESTS, &arguments)
}

/// Installs the programs that are missing.
///
/// # Errors
/// If this is not root, or there is no apt, or it fails.
fn install_programs() -> Result<(), String> {
    let is_root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
    if !is_root {
        return Err(
            "a private Docker engine needs root; to build an image with your own engine, see docs/deploy.md"
                .to_owned(),
        );
    }
    let missing = missing(PROGRAMS);
    if missing.is_empty() {
        return Ok(());
    }
    if install::apt(&missing) {
        Ok(())
    } else {
        Err(format!("these packages of Debian are needed: {}", missing.join(" ")))
    }
}

/// Returns the packages of the programs that are not there.
fn missing<'a>(programs: &[(&'a str, &'a str)]) -> Vec<&'a str> {
    let absent = programs.iter().filter(|(program, _)| !PathBuf::from(program).exists());
    let mut packages: Vec<&str> = absent.map(|(_, package)| *package).collect();
    packages.dedup();
    packages
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_of_the_task_are_told_from_those_of_pytest() {
        let arguments = ["--release-binary", "-k", "tgi"].map(str::to_owned);
        let options = Options::parse(&arguments);
        assert!(options.release_binary && !options.cpu_only && !options.machine_code);
        assert_eq!(options.pytest, ["-k", "tgi"]);
    }

    #[test]
    fn packages_of_missing_programs_are_named_once() {
        let programs = [("/nowhere/a", "a"), ("/nowhere/b", "a"), ("/", "c"), ("/nowhere/d", "d")];
        assert_eq!(missing(&programs), ["a", "d"]);
    }
}
