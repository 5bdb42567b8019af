//! Compiles the CUDA sources as far as this machine can, and writes a table of the results.
//!
//! For each `.cu` file the table has up to three entries: the source (always; NVRTC compiles it at
//! run time where there is nothing better), a fat binary (if nvcc is found), and a library for the
//! simulated device (feature `cpu-sim`).

#[path = "build/nvcc.rs"]
mod nvcc;
#[path = "build/shared.rs"]
mod shared;
#[path = "build/sim.rs"]
mod sim;
#[path = "build/sources.rs"]
mod sources;

use std::env;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

use sources::Sources;

fn main() {
    let out = PathBuf::from(env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let sources = Sources::find(Path::new(sources::FOLDER));
    println!("cargo:rerun-if-changed={}", sources::FOLDER);
    println!("cargo:rerun-if-changed=build");

    let mut table = String::new();
    let fatbins = nvcc::compile(&sources, &out, feature("EMBED_CUBIN"));
    table += "/// Fat binaries by module.\npub(crate) static FATBINS: &[(&str, &[u8])] = &[\n";
    for (module, file) in &fatbins {
        writeln!(table, "    ({module:?}, include_bytes!({file:?})),").expect("writing to a string succeeds");
    }
    writeln!(
        table,
        "];\n/// The major version of the CUDA toolkit that compiled them.\npub(crate) const TOOLKIT: i32 = {};",
        nvcc::toolkit()
    )
    .expect("writing to a string succeeds");
    table += "/// Sources by module.\npub(crate) static SOURCES: &[(&str, &str)] = &[\n";
    for (module, file) in sources.modules.iter().chain(&sources.sm90) {
        let file = file.canonicalize().expect("the file was listed");
        writeln!(table, "    ({module:?}, include_str!({file:?})),").expect("writing to a string succeeds");
    }
    table += "];\n/// Headers by the name by which the sources include them.\npub(crate) static HEADERS: &[(&str, &str)] = &[\n";
    for file in &sources.headers {
        let name = file.file_name().expect("a file").to_string_lossy();
        let file = file.canonicalize().expect("the file was listed");
        writeln!(table, "    ({name:?}, include_str!({file:?})),").expect("writing to a string succeeds");
    }
    table += "];\n";
    if feature("CPU_SIM") {
        table += "/// Libraries of the simulated device by module.\npub(crate) static SIMULATED: &[(&str, &str)] = &[\n";
        for (module, file) in sim::compile(&sources, &out) {
            writeln!(table, "    ({module:?}, {file:?}),").expect("writing to a string succeeds");
        }
        table += "];\n";
        writeln!(table, "/// The stand-in for NCCL.\npub(crate) static NCCL: &str = {:?};", sim::nccl(&out))
            .expect("writing to a string succeeds");
    }
    std::fs::write(out.join("modules.rs"), table).expect("OUT_DIR can be written");
    write_shared(&sources, &out);
}

/// Writes the declarations that the kernels share with the host code, and those of the simulated
/// device's tests.
fn write_shared(sources: &Sources, out: &Path) {
    let stem = |file: &PathBuf| file.file_stem().expect("a file").to_string_lossy().into_owned();
    let headers = sources.headers.iter().map(|file| (format!("{}_h", stem(file)), file));
    let modules = sources.modules.iter().chain(&sources.sm90).map(|(name, file)| (name.clone(), file));
    let tests = sources.sim_tests.iter().map(|(name, file)| (name.clone(), file));
    for (name, text) in [
        ("shared.rs", shared::translate(headers.chain(modules))),
        ("sim_shared.rs", shared::translate(tests)),
    ] {
        std::fs::write(out.join(name), text).expect("OUT_DIR can be written");
    }
}

fn feature(name: &str) -> bool {
    env::var_os(format!("CARGO_FEATURE_{name}")).is_some()
}

/// Calls `work` for all items on as many threads as cargo allows.
fn in_parallel<T: Sync>(items: &[T], work: impl Fn(&T) + Sync) {
    let threads: usize = env::var("NUM_JOBS").ok().and_then(|n| n.parse().ok()).unwrap_or(1);
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for _ in 0..threads.clamp(1, items.len().max(1)) {
            scope.spawn(|| {
                while let Some(item) = items.get(next.fetch_add(1, Ordering::Relaxed)) {
                    work(item);
                }
            });
        }
    });
}
