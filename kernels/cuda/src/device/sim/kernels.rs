//! The libraries of kernels that were compiled for this machine's CPU.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::mem::MaybeUninit;
use std::path::Path;

use libloading::Library;
use millrace_backend::{Error, Result};

use super::gpu_model::GpuModel;
use super::schedule::FiberSchedule;
use crate::device::code::embedded;
use crate::device::driver::params::{LaunchParams, ParamsLayout};
use crate::device::driver::{Grid, KernelName};

type Entry = unsafe extern "C" fn(*const LaunchRequest, *mut c_char, usize) -> c_int;

/// A launch in the form that a library of kernels takes. `LaunchRequest` in `kernels/sim/machine.h`
/// has the same fields.
#[repr(C)]
struct LaunchRequest {
    kernel: *const c_char,
    grid: [c_uint; 3],
    block: [c_uint; 3],
    dynamic_shared: usize,
    most_shared: usize,
    params: *const c_void,
    params_type: *const c_char,
    params_bytes: usize,
    pointer_offsets: *const usize,
    pointer_names: *const *const c_char,
    pointer_count: usize,
    schedule: c_uint,
    os_threads: c_uint,
}

/// A launch with its parameters by value.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) function: KernelName,
    grid: Grid,
    layout: &'static ParamsLayout,
    /// The parameters, aligned to 16 bytes.
    params: Box<[MaybeUninit<u128>]>,
}

impl Launch {
    /// A launch with a copy of the parameters.
    ///
    /// # Safety
    /// The parameters are valid for as many bytes as their layout says.
    pub(super) unsafe fn new(function: KernelName, grid: Grid, params: LaunchParams<'_>) -> Launch {
        let layout = params.layout();
        let mut copy = Box::new_uninit_slice(layout.bytes.div_ceil(size_of::<u128>()));
        // SAFETY: the caller guarantees the source, and the copy is at least as long. Padding stays
        // uninitialized.
        unsafe {
            std::ptr::copy_nonoverlapping(
                params.as_ptr().cast::<MaybeUninit<u8>>(),
                copy.as_mut_ptr().cast::<MaybeUninit<u8>>(),
                layout.bytes,
            );
        }
        Launch { function, grid, layout, params: copy }
    }
}

/// All modules, and how their kernels run.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) schedule: FiberSchedule,
    pub(super) threads: u32,
    model: GpuModel,
    libraries: HashMap<&'static str, Library>,
}

impl Kernels {
    pub(super) fn open(schedule: FiberSchedule, model: GpuModel) -> Result<Kernels> {
        let replacements = std::env::var_os("MILLRACE_SIM_LIBRARIES");
        let mut libraries = HashMap::new();
        for (module, file) in embedded::SIMULATED {
            let replacement =
                replacements.as_ref().map(|folder| Path::new(folder).join(format!("{module}.so")));
            let file = replacement.filter(|file| file.exists()).unwrap_or_else(|| file.into());
            // SAFETY: the library is built from this crate's sources; loading it runs constructors
            // that fill a table.
            let library = unsafe { Library::new(&file) }
                .map_err(|e| Error::Unsupported(format!("simulated kernels: {}: {e}", file.display())))?;
            libraries.insert(*module, library);
        }
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Ok(Kernels { schedule, threads, model, libraries })
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// As for [`crate::Driver::launch`].
    pub(super) unsafe fn run(&self, launch: &Launch) -> Result<()> {
        let Launch { function, grid, layout, params } = launch;
        let library = self
            .libraries
            .get(function.module)
            .ok_or_else(|| Error::Unsupported(format!("no simulated module {}", function.module)))?;
        // SAFETY: every library of kernels exports this function with this signature.
        let entry = unsafe { library.get::<Entry>(b"millrace_sim_launch\0") }
            .map_err(|e| Error::Unsupported(format!("{}: {e}", function.module)))?;
        let name = CString::new(function.name).map_err(|e| Error::Unsupported(e.to_string()))?;
        let offsets: Vec<usize> = layout.pointers.iter().map(|pointer| pointer.offset).collect();
        let names: Vec<*const c_char> = layout.pointers.iter().map(|pointer| pointer.name.as_ptr()).collect();
        let request = LaunchRequest {
            kernel: name.as_ptr(),
            grid: grid.blocks,
            block: grid.threads,
            dynamic_shared: grid.shared,
            most_shared: self.model.shared_per_block,
            params: params.as_ptr().cast(),
            params_type: layout.name.as_ptr(),
            params_bytes: layout.bytes,
            pointer_offsets: offsets.as_ptr(),
            pointer_names: names.as_ptr(),
            pointer_count: names.len(),
            schedule: self.schedule.bits(),
            os_threads: self.threads,
        };
        let mut message = [0u8; 512];
        // SAFETY: the arrays are as long as the request says and outlive the call. The library
        // compares the parameters' type and size with those of the kernel; the caller guarantees
        // the memory behind them.
        let code = unsafe { entry(&request, message.as_mut_ptr().cast(), message.len()) };
        if code == 0 {
            return Ok(());
        }
        let end = message.iter().position(|&b| b == 0).unwrap_or(message.len());
        Err(Error::Device(String::from_utf8_lossy(&message[..end]).into_owned()))
    }
}
