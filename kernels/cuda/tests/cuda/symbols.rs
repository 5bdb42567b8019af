//! The functions of NVIDIA's libraries that the program binds: each exists in the oldest version of
//! the library that the project promises to work with, because a function that is missing ends the
//! process when it is first called.

use std::collections::{BTreeMap, BTreeSet};

use millrace_cuda::nccl::Nccl;

/// CUDA 12.0 is the oldest version of the driver, cuBLASLt and NVRTC; see `availability.rs`.
const OLDEST_CUDA: (u32, u32) = (12, 0);
/// The oldest version of NCCL; see `nccl/library.rs`.
const OLDEST_NCCL: (u32, u32) = (2, 18);

/// The version that introduced each function.
fn versions() -> BTreeMap<&'static str, (u32, u32)> {
    let lines = include_str!("../../symbols.txt").lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let (symbol, version) = line.split_once(' ').unwrap();
            let (major, minor) = version.trim().split_once('.').unwrap();
            (symbol, (major.parse().unwrap(), minor.parse().unwrap()))
        })
        .collect()
}

/// The functions of cudarc's bindings that this program contains. The linker drops functions that
/// nothing calls. The others have a name in the symbol table that ends in the module `sys`, the
/// length of the function's name, and the name.
fn bound_by_cudarc() -> BTreeSet<String> {
    const MODULE: &[u8] = b"3sys";
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let starts = program.windows(MODULE.len()).enumerate().filter(|(_, bytes)| *bytes == MODULE);
    starts.filter_map(|(at, _)| function_name(&program[at + MODULE.len()..])).collect()
}

/// The name at the start of `mangled`, which is its length followed by its bytes, if it is that of
/// a function of NVIDIA's libraries.
fn function_name(mangled: &[u8]) -> Option<String> {
    let digits = mangled.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let length: usize = std::str::from_utf8(&mangled[..digits]).ok()?.parse().ok()?;
    let name = std::str::from_utf8(mangled.get(digits..digits.checked_add(length)?)?).ok()?;
    let is_function = ["cu", "nvrtc"].iter().any(|library| {
        name.strip_prefix(library).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_uppercase()))
    });
    (is_function || name.starts_with("cublasLt")).then(|| name.to_owned())
}

#[test]
fn every_function_exists_in_the_oldest_versions() {
    let versions = versions();
    let bound = bound_by_cudarc();
    assert!(bound.contains("cuLaunchKernelEx") && bound.contains("cublasLtMatmul"), "{bound:?}");
    let cuda = bound.iter().map(|name| (name.as_str(), OLDEST_CUDA));
    let nccl = Nccl::FUNCTIONS.iter().map(|name| (*name, OLDEST_NCCL));
    for (name, oldest) in cuda.chain(nccl) {
        let version = versions.get(name).unwrap_or_else(|| panic!("cuda/symbols.txt does not list {name}"));
        let (major, minor) = version;
        assert!(*version <= oldest, "{name} came with {major}.{minor}, after the oldest version {oldest:?}");
    }
}
