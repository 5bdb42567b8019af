//! The parameters of the kernels in `kernels/sim/sim_tests.cu`, generated from it.

#![allow(dead_code, unreachable_pub, clippy::all, reason = "generated")]

/// The types that the generated modules name.
mod imports {
    pub(super) use millrace_cuda::params::{DevicePtr, KernelParams, ParamsLayout, PointerField};
}

include!(concat!(env!("OUT_DIR"), "/sim_shared.rs"));
