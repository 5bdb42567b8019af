//! Compiles the libraries of the simulated device with the machine's C++ compiler: each module
//! together with a copy of the runtime.

#[path = "sim_flags.rs"]
mod sim_flags;

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use crate::in_parallel;
use crate::sources::{FOLDER, Sources};

/// Compiles every module that is not specific to one GPU architecture.
///
/// `MILLRACE_SIM_FLAGS` adds flags for the compiler.
///
/// # Panics
/// If a module does not compile.
pub(crate) fn compile(sources: &Sources, out: &Path) -> Vec<(String, PathBuf)> {
    println!("cargo:rerun-if-env-changed=MILLRACE_SIM_FLAGS");
    let extra = std::env::var("MILLRACE_SIM_FLAGS").unwrap_or_default();
    let includes = sim_flags::INCLUDES.map(|folder| format!("-I{FOLDER}/{folder}"));
    let flags: Vec<&str> = sim_flags::LANGUAGE
        .into_iter()
        .chain(sim_flags::WARNINGS)
        .chain(includes.iter().map(String::as_str))
        .chain(extra.split_whitespace())
        .collect();
    let shared: Vec<&PathBuf> = sources.headers.iter().chain(&sources.simulator).collect();
    let library = |file: &PathBuf| library_path(out, &flags, shared.iter().copied().chain([file]));
    let modules: Vec<&(String, PathBuf)> = sources.modules.iter().chain(&sources.sim_tests).collect();
    let runtime = Path::new(FOLDER).join(sim_flags::RUNTIME);
    in_parallel(&modules, |(_, file)| build(&flags, &[file, &runtime], &library(file)));
    modules.iter().map(|(module, file)| (module.clone(), library(file))).collect()
}

/// Compiles the stand-in for NCCL between simulated devices.
///
/// # Panics
/// If it does not compile.
pub(crate) fn nccl(out: &Path) -> PathBuf {
    let source = Path::new(FOLDER).join("sim/nccl.cpp");
    let flags: Vec<&str> = sim_flags::LANGUAGE.into_iter().chain(sim_flags::WARNINGS).collect();
    let library = library_path(out, &flags, [&source]);
    build(&flags, &[&source], &library);
    library
}

/// The path of the library made of `files` with `flags`. It lies in the target folder, shared by
/// all profiles and sets of features, and its name contains a hash of its inputs.
fn library_path<'a>(out: &Path, flags: &[&str], files: impl IntoIterator<Item = &'a PathBuf>) -> PathBuf {
    let mut hasher = DefaultHasher::new();
    flags.hash(&mut hasher);
    let mut last = None;
    for file in files {
        std::fs::read(file).expect("the file was listed").hash(&mut hasher);
        last = file.file_stem();
    }
    // OUT_DIR is TARGET/PROFILE/build/PACKAGE/out.
    let target = out.ancestors().nth(4).expect("cargo's layout");
    let name = last.expect("at least one file").to_string_lossy();
    target.join("cuda-sim").join(format!("{name}-{:016x}.so", hasher.finish()))
}

/// Compiles `files` into `library`, unless it exists.
fn build(flags: &[&str], files: &[&PathBuf], library: &Path) {
    if library.exists() {
        return;
    }
    std::fs::create_dir_all(library.parent().expect("a folder")).expect("the target folder can be written");
    let compiler = cc::Build::new().cpp(true).cargo_metadata(false).opt_level(2).get_compiler();
    // The name is unique to this process: several builds may run at the same time.
    let partial = library.with_extension(format!("{}.partial", std::process::id()));
    let mut command = compiler.to_command();
    command.args(flags).args(["-x", "c++"]).args(files).arg("-o").arg(&partial);
    let done = command.output().expect("cc found a compiler");
    let output = String::from_utf8_lossy(&done.stderr);
    assert!(
        done.status.success(),
        "compiling {} for the simulated device failed:\n{output}",
        files[0].display()
    );
    std::fs::rename(&partial, library).expect("the target folder can be written");
}
