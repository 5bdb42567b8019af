// How a module of the simulated device is compiled: by the build script, and by `cargo xtask` for mutated or sanitised ones.

/// The language, as the kernels need it, and a place for every warning.
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

/// Warnings are errors, but for what nvcc's pragmas and uninitialised registers cause.
pub(crate) const WARNINGS: [&str; 5] =
    ["-Wall", "-Wextra", "-Werror", "-Wno-unknown-pragmas", "-Wno-maybe-uninitialized"];

/// Folders below `kernels/cuda` that hold headers.
pub(crate) const INCLUDES: [&str; 2] = ["include", "sim"];

/// What every module is linked with, below `kernels/cuda`.
pub(crate) const RUNTIME: &str = "sim/runtime.cpp";
