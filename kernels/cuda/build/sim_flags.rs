// The compiler flags for modules of the simulated device. The build script uses them, and `cargo
// xtask` for mutated or sanitized modules.

/// The language options that the kernels need, and debug lines for sanitizers.
pub(crate) const LANGUAGE: [&str; 10] = [
    "-std=c++17",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-fno-strict-aliasing",
    "-march=native",
    "-g1",
    "-pthread",
    "-DMILLRACE_SIM",
    "-O2",
];

/// Warnings are errors, except those that nvcc's pragmas and uninitialized registers cause.
pub(crate) const WARNINGS: [&str; 5] =
    ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized"];

/// Folders below `kernels/cuda/kernels` that hold headers.
pub(crate) const INCLUDES: [&str; 2] = ["include", "sim"];

/// The source file that every module is linked with, below `kernels/cuda/kernels`.
pub(crate) const RUNTIME: &str = "sim/runtime.cpp";
