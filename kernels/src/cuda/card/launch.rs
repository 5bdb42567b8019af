//! Launches on the main stream. On Hopper and later a kernel that stands right behind another one comes in while that one ends: programmatic
//! dependent launch (CUDA programming guide). It hides the time between kernels, of which a decode step has hundreds.
//!
//! A kernel may come in early if it waits by itself, before it touches memory that others write. All kernels do: `sass.txt` demands it of the machine
//! code, the simulated device of every launch. As no kernel ends before it has waited, whoever waits for the last one has waited for all, and
//! whatever is no launch (copies, events, graphs) follows the kernels before it in the plain order of the stream.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};

use cudarc::driver::result::{function, stream};
use cudarc::driver::sys::{self, CUfunction_attribute, CUlaunchAttributeID};

use super::{Card, Handle, failed, usable};
use crate::Result;
use crate::cuda::driver::{Arg, Driver as _, Function, Grid};

/// The first compute capability whose kernels can wait; of the PTX that they are compiled from, as `ptx.cuh` asks for it.
const FIRST: (u32, u32) = (9, 0);
const FIRST_PTX: i32 = 90;
/// The first driver, as the version of CUDA that it is for, whose graphs keep such launches apart from plain ones.
const FIRST_DRIVER: c_int = 12_030;

/// The stream that everything is in the order of, and what was last asked of it.
#[derive(Debug)]
pub(super) struct MainStream {
    stream: Handle<sys::CUstream>,
    /// Whether this card, its driver and the user allow dependent launches.
    may_depend: bool,
    /// Whether the last thing in the stream is a kernel. Behind anything else a launch depends in the plain way: what a kernel waits for by itself
    /// is promised of kernels alone.
    behind_kernel: AtomicBool,
}

impl MainStream {
    /// A stream of the current context. `MILLRACE_PLAIN_LAUNCHES` in the environment keeps its launches apart.
    pub(super) fn new(capability: (u32, u32)) -> Result<MainStream> {
        let made =
            stream::create(stream::StreamKind::NonBlocking).map_err(|e| failed("cuStreamCreate", e))?;
        let is_wanted = std::env::var_os("MILLRACE_PLAIN_LAUNCHES").is_none();
        let may_depend = is_wanted && can_depend(capability, usable::driver_version()?);
        Ok(MainStream { stream: Handle(made), may_depend, behind_kernel: AtomicBool::new(false) })
    }

    /// The stream, for anything but a kernel.
    pub(super) fn plain(&self) -> sys::CUstream {
        self.behind_kernel.store(false, Ordering::Relaxed);
        self.stream.0
    }

    /// The stream, for a kernel; and whether that may come in while the one before it ends.
    pub(super) fn for_kernel(&self) -> (sys::CUstream, bool) {
        (self.stream.0, self.behind_kernel.swap(true, Ordering::Relaxed) && self.may_depend)
    }
}

fn can_depend(capability: (u32, u32), driver: c_int) -> bool {
    capability >= FIRST && driver >= FIRST_DRIVER
}

/// Whether the function was compiled so that it waits: not if the driver has made it from the PTX of an older card.
pub(super) fn waits(function: sys::CUfunction) -> Result<bool> {
    // SAFETY: the function is loaded.
    let ptx = unsafe {
        function::get_function_attribute(function, CUfunction_attribute::CU_FUNC_ATTRIBUTE_PTX_VERSION)
    };
    ptx.map(|version| version >= FIRST_PTX).map_err(|e| failed("cuFuncGetAttribute", e))
}

/// # Safety
/// As for [`crate::cuda::Driver::launch`].
pub(super) unsafe fn launch(card: &Card, function: Function, grid: Grid, args: &[Arg]) -> Result<()> {
    card.make_current()?;
    let mut loaded = card.load(function)?;
    if grid.shared > loaded.shared {
        card.allow_shared(function, &mut loaded, grid.shared)?;
    }
    let mut bits: Vec<u64> = args.iter().map(Arg::bits).collect();
    let parameter = |(bits, arg): (&mut u64, &Arg)| match arg {
        Arg::Map(map) => map.cast_mut().cast(),
        _ => std::ptr::from_mut(bits).cast(),
    };
    let mut params: Vec<*mut c_void> = bits.iter_mut().zip(args).map(parameter).collect();
    let (stream, may_depend) = card.stream.for_kernel();
    let mut dependent = sys::CUlaunchAttribute {
        id: CUlaunchAttributeID::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
        pad: [0; 4],
        value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
    };
    let [bx, by, bz] = grid.blocks;
    let [tx, ty, tz] = grid.threads;
    let config = sys::CUlaunchConfig {
        gridDimX: bx,
        gridDimY: by,
        gridDimZ: bz,
        blockDimX: tx,
        blockDimY: ty,
        blockDimZ: tz,
        sharedMemBytes: grid.shared as u32,
        hStream: stream,
        attrs: &mut dependent,
        numAttrs: u32::from(may_depend && loaded.waits),
    };
    // SAFETY: the function is loaded, and the caller vouches for the arguments, which the driver copies with the attribute.
    unsafe { sys::cuLaunchKernelEx(&config, loaded.function.0, params.as_mut_ptr(), std::ptr::null_mut()) }
        .result()
        .map_err(|e| failed(&format!("launch of {}", function.name), e))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_depend_on_hopper_and_drivers_whose_graphs_know_it() {
        assert!(can_depend((9, 0), 12_030) && can_depend((12, 0), 13_000));
        assert!(!can_depend((8, 9), 13_000) && !can_depend((9, 0), 12_020));
    }
}
