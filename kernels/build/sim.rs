//! Libraries of the simulated device: each module with a runtime of its own, by the machine's C++ compiler.

#[path = "sim_flags.rs"]
mod sim_flags;

use std::path::{Path, PathBuf};

use crate::in_parallel;
use crate::sources::{Sources, is_fresh};

/// Compiles every module that is not bound to one kind of card.
///
/// `MILLRACE_SIM_FLAGS` adds to the compiler's flags.
///
/// # Panics
/// If a module does not compile.
pub(crate) fn compile(sources: &Sources, out: &Path) -> Vec<(String, PathBuf)> {
    println!("cargo:rerun-if-env-changed=MILLRACE_SIM_FLAGS");
    let flags = std::env::var("MILLRACE_SIM_FLAGS").unwrap_or_default();
    let compiler = cc::Build::new().cpp(true).cargo_metadata(false).opt_level(2).get_compiler();
    let tag: String = flags.chars().filter(|c| c.is_ascii_alphanumeric()).collect();
    let library = |module: &str| out.join(format!("{module}{tag}.sim.so"));
    let modules: Vec<&(String, PathBuf)> = sources.modules.iter().chain(&sources.sim_tests).collect();
    in_parallel(&modules, |(module, file)| {
        let target = library(module);
        if is_fresh(&target, sources.headers.iter().chain(&sources.simulator).chain([file])) {
            return;
        }
        let mut command = compiler.to_command();
        command.args(sim_flags::LANGUAGE).args(sim_flags::WARNINGS);
        command.args(sim_flags::INCLUDES.map(|folder| format!("-Icuda/{folder}")));
        command.args(flags.split_whitespace());
        let partial = target.with_extension("partial");
        command.args(["-x", "c++"]).arg(file).arg(Path::new("cuda").join(sim_flags::RUNTIME));
        let done = command.arg("-o").arg(&partial).output().expect("cc found a compiler");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success(), "the simulated device of {}:\n{said}", file.display());
        std::fs::rename(&partial, &target).expect("OUT_DIR can be written");
    });
    modules.iter().map(|(module, _)| (module.clone(), library(module))).collect()
}

/// The stand-in for NCCL between simulated devices.
///
/// # Panics
/// If it does not compile.
pub(crate) fn nccl(out: &Path) -> PathBuf {
    let (source, target) = (PathBuf::from("cuda/sim/nccl.cpp"), out.join("nccl.sim.so"));
    if !is_fresh(&target, [&source]) {
        let compiler = cc::Build::new().cpp(true).cargo_metadata(false).opt_level(2).get_compiler();
        let mut command = compiler.to_command();
        command.args(["-std=c++17", "-shared", "-fPIC", "-fvisibility=hidden", "-g1", "-pthread"]);
        command.args(["-Wall", "-Wextra", "-Werror"]).arg(&source).arg("-o").arg(&target);
        let done = command.output().expect("cc found a compiler");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    }
    target
}
