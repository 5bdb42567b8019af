//! Runs PTX, the assembly language of NVIDIA GPUs, on the CPU.
//!
//! The interpreter accepts the instructions that nvcc emits for GPUs from sm_80 on, with those that
//! only Hopper has (`wgmma`, `mbarrier` and tensor copies), and runs a grid of blocks, one block
//! after the other. It is for tests: it is slow, and it is strict where a GPU is silent. An
//! operation that PTX leaves undefined ends the launch with a [`Fault`] that names the kernel, the
//! block, the thread and the line of the PTX text: an access outside of an allocation, a misaligned
//! address, a read of shared memory that nobody has written or that an asynchronous copy may still
//! write, lanes that never meet, a barrier that never completes.
//!
//! Asynchronous copies take effect as late as the rules allow ([`Arrival`]), and warps run in
//! either order ([`WarpOrder`]). A kernel that lacks a barrier gives another result in at least one
//! of them, or a fault. What the copy engine and the tensor cores do by themselves is checked by
//! vector clocks, and so does not depend on the order: an access to their memory that no wait,
//! barrier and proxy fence orders is a fault even if it happens to see the right bytes.
//!
//! [`TensorMapLayout`] encodes tensor maps, in a form of its own. A block is the only one of its
//! cluster.
//!
//! ```
//! use millrace_ptx_interpreter::{DeviceMemory, Launch, Module};
//!
//! let text = "
//!     .version 8.0
//!     .target sm_80
//!     .address_size 64
//!     .visible .entry square(.param .u64 square_param_0) {
//!         .reg .b32 %r<3>;
//!         .reg .b64 %rd<4>;
//!         ld.param.u64 %rd1, [square_param_0];
//!         cvta.to.global.u64 %rd2, %rd1;
//!         mov.u32 %r1, %tid.x;
//!         mul.wide.u32 %rd3, %r1, 4;
//!         add.s64 %rd3, %rd2, %rd3;
//!         mul.lo.s32 %r2, %r1, %r1;
//!         st.global.u32 [%rd3], %r2;
//!         ret;
//!     }";
//! let module = Module::parse(text).unwrap();
//! let mut memory = DeviceMemory::new(1 << 20);
//! let out = memory.allocate(32 * 4).unwrap();
//! let launch = Launch::new([1, 1, 1], [32, 1, 1]).with_params(&out.to_le_bytes());
//! module.launch("square", &launch, &mut memory).unwrap();
//! let mut bytes = [0; 128];
//! memory.read(out, &mut bytes).unwrap();
//! assert_eq!(bytes[4 * 5], 25);
//! ```

#![forbid(unsafe_code)]

mod error;
mod exec;
mod float;
mod hopper;
mod instruction;
mod launch;
mod memory;
mod module;
mod operand;
mod parse;
mod types;

pub use error::{Fault, MemoryError, ParseError};
pub use exec::Grid;
pub use launch::{Arrival, Launch, Stats, WarpOrder};
pub use memory::{DeviceMemory, Fill, MAP_BYTES, Swizzle, TensorElement, TensorMapError, TensorMapLayout};
pub use module::Module;
