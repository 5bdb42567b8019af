//! The images: those that the Dockerfile starts from, and those that it makes.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use super::engine::Engine;
use crate::{cargo, install};

/// Base of the CUDA image, and of the image with the toolchain.
const DEBIAN: &str = "debian:bookworm-slim";

/// Adds the toolchain to Debian. The context is the toolchain's folder.
const RUST: &str = "\
FROM debian:bookworm-slim
RUN apt-get update && apt-get install --yes --no-install-recommends ca-certificates g++ libc6-dev
COPY bin /usr/local/rust/bin
COPY lib /usr/local/rust/lib
ENV PATH=/usr/local/rust/bin:$PATH CARGO_HOME=/usr/local/cargo
";

/// An image with a binary that was built outside. The context is the folder of the binary.
const BINARY: &str = "FROM scratch\nCOPY millrace /millrace/millrace\n";

/// Folder of certificates that the administrator of this machine has added. Builds that download
/// packages need them.
const CERTIFICATES: &str = "/usr/local/share/ca-certificates";

/// Source of the binary in an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binary {
    /// The Dockerfile's own builder.
    OfBuilder,
    /// `cargo build --release` on this machine.
    OfRelease,
}

/// Builds `millrace:cpu`, and `millrace:cuda` if `with_cuda`, after the images that they need. The
/// CUDA image has the binary of the CPU image, unless one with `machine_code` is to be compiled.
///
/// # Errors
/// If a step fails, which has printed why.
pub(super) fn build(
    engine: &Engine,
    binary: Binary,
    with_cuda: bool,
    machine_code: bool,
) -> Result<(), String> {
    let rust = rust_version()?;
    if !exists(engine, DEBIAN) {
        make_debian(engine)?;
    }
    let toolchain = format!("rust:{rust}-bookworm");
    if !exists(engine, &toolchain) {
        docker_build(engine, RUST, &sysroot()?, &toolchain)?;
    }
    let source = match binary {
        Binary::OfBuilder => "builder",
        Binary::OfRelease => release_binary(engine)?,
    };
    let mut arguments = vec![
        format!("RUST={rust}"),
        format!("BINARY={source}"),
        format!("VERSION={}", env!("CARGO_PKG_VERSION")),
        format!("REVISION={}", output(Command::new("git").args(["rev-parse", "HEAD"]))?),
    ];
    target(engine, "cpu", &arguments)?;
    if with_cuda {
        if !machine_code {
            arguments.push(format!("CUDA_BINARY={source}"));
        }
        target(engine, "cuda", &arguments)?;
    }
    Ok(())
}

/// Builds one target of the Dockerfile.
fn target(engine: &Engine, target: &str, arguments: &[String]) -> Result<(), String> {
    let image = format!("millrace:{target}");
    let mut build = engine.docker();
    build.args(["build", "--network=host", "--progress=plain", "--target", target, "--tag", &image]);
    for argument in arguments {
        build.args(["--build-arg", argument]);
    }
    let begin = Instant::now();
    step("docker build", build.arg("."))?;
    println!("{image}: built in {} s", begin.elapsed().as_secs());
    Ok(())
}

/// Makes an image of the release binary of this machine. Returns the image's name.
fn release_binary(engine: &Engine) -> Result<&'static str, String> {
    const IMAGE: &str = "millrace:binary";
    let built = cargo::build(&["build", "--release", "--package", "millrace"], &[], "millrace")?;
    let program = built.executable.ok_or("cargo has not said where the program is")?;
    docker_build(engine, BINARY, program.parent().ok_or("the program has no folder")?, IMAGE)?;
    Ok(IMAGE)
}

/// Makes the image of Debian from its packages.
fn make_debian(engine: &Engine) -> Result<(), String> {
    let mut make = Command::new("mmdebstrap");
    make.args(["--quiet", "--variant=minbase"]);
    if Path::new(CERTIFICATES).is_dir() {
        make.arg(format!("--customize-hook=sync-in {CERTIFICATES} {CERTIFICATES}"));
        make.arg(format!("--essential-hook=mkdir -p \"$1{CERTIFICATES}\""));
    }
    make.args(["bookworm", "-"]).stdout(Stdio::piped());
    eprintln!("$ {make:?} | docker import");
    let mut making = make.spawn().map_err(|e| format!("mmdebstrap: {e}"))?;
    let tar = making.stdout.take().ok_or("mmdebstrap has no output")?;
    let imported = step("docker import", engine.docker().args(["import", "-", DEBIAN]).stdin(tar));
    let made = making.wait().is_ok_and(|status| status.success());
    if !made {
        // Half a system would look like the whole one to the next run.
        let _ = engine.docker().args(["rmi", DEBIAN]).status();
        return Err("mmdebstrap has failed".to_owned());
    }
    imported
}

/// Builds a small image from the text of its Dockerfile.
fn docker_build(engine: &Engine, dockerfile: &str, context: &Path, tag: &str) -> Result<(), String> {
    let mut build = engine.docker();
    build.args(["build", "--network=host", "--quiet", "--file=-", "--tag", tag]).arg(context);
    eprintln!("$ {build:?}");
    let mut building = build.stdin(Stdio::piped()).spawn().map_err(|e| format!("docker: {e}"))?;
    let mut input = building.stdin.take().ok_or("docker has no input")?;
    input.write_all(dockerfile.as_bytes()).map_err(|e| format!("docker build: {e}"))?;
    drop(input);
    let built = building.wait().is_ok_and(|status| status.success());
    if built { Ok(()) } else { Err(format!("the image {tag} cannot be built")) }
}

fn exists(engine: &Engine, image: &str) -> bool {
    let mut inspect = engine.docker();
    inspect.args(["image", "inspect", image]).stdout(Stdio::null()).stderr(Stdio::null());
    inspect.status().is_ok_and(|status| status.success())
}

/// Returns the major and minor version of the toolchain.
fn rust_version() -> Result<String, String> {
    let text = output(Command::new("rustc").arg("--version"))?;
    let version = text.split_whitespace().nth(1).unwrap_or_default();
    let parts: Vec<&str> = version.split('.').take(2).collect();
    if parts.len() == 2 { Ok(parts.join(".")) } else { Err(format!("rustc --version: {text}")) }
}

/// Returns the folder of the toolchain, without links: the context of a build must not be one.
fn sysroot() -> Result<PathBuf, String> {
    let text = output(Command::new("rustc").args(["--print", "sysroot"]))?;
    Path::new(&text).canonicalize().map_err(|e| format!("{text}: {e}"))
}

fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !done.status.success() {
        return Err(format!("{command:?}: {}", String::from_utf8_lossy(&done.stderr)));
    }
    Ok(String::from_utf8_lossy(&done.stdout).trim().to_owned())
}

fn step(name: &str, command: &mut Command) -> Result<(), String> {
    if install::command(name, command) { Ok(()) } else { Err(format!("{name} has failed")) }
}
