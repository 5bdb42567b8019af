//! The kernels' libraries, made for this machine's processor.

use std::collections::HashMap;
use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::path::Path;

use libloading::Library;

use super::Order;
use crate::cuda::driver::{Arg, Function, Grid};
use crate::cuda::modules;
use crate::{Error, Result};

type Entry = unsafe extern "C" fn(
    *const c_char,
    *const c_uint,
    *const c_uint,
    usize,
    *mut *mut c_void,
    *const c_uint,
    c_uint,
    c_uint,
    c_uint,
    *mut c_char,
    usize,
) -> c_int;

/// A launch with its arguments by value.
#[derive(Debug)]
pub(super) struct Launch {
    pub(super) function: Function,
    grid: Grid,
    bits: Vec<u64>,
    sizes: Vec<c_uint>,
}

impl Launch {
    /// # Errors
    /// [`Error::Unsupported`] for a tensor map, which this device never makes.
    pub(super) fn new(function: Function, grid: Grid, args: &[Arg]) -> Result<Launch> {
        if args.iter().any(|arg| matches!(arg, Arg::Map(_))) {
            return Err(Error::Unsupported(format!("a tensor map for the simulated {}", function.name)));
        }
        let bits = args.iter().map(Arg::bits).collect();
        let sizes = args.iter().map(|arg| arg.size() as c_uint).collect();
        Ok(Launch { function, grid, bits, sizes })
    }
}

/// All modules, and how they are run.
#[derive(Debug)]
pub(super) struct Kernels {
    pub(super) order: Order,
    pub(super) threads: u32,
    libraries: HashMap<&'static str, Library>,
}

impl Kernels {
    pub(super) fn open(order: Order) -> Result<Kernels> {
        let instead = std::env::var_os("MILLRACE_SIM_LIBRARIES");
        let mut libraries = HashMap::new();
        for (module, file) in modules::SIMULATED {
            let other = instead.as_ref().map(|folder| Path::new(folder).join(format!("{module}.so")));
            let file = other.filter(|file| file.exists()).unwrap_or_else(|| file.into());
            // SAFETY: the library is made of this crate's sources; loading it runs constructors that fill a table.
            let library = unsafe { Library::new(&file) }
                .map_err(|e| Error::Unsupported(format!("simulated kernels: {}: {e}", file.display())))?;
            libraries.insert(*module, library);
        }
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        Ok(Kernels { order, threads, libraries })
    }

    /// Runs a kernel to its end.
    ///
    /// # Safety
    /// As for [`crate::cuda::Driver::launch`].
    pub(super) unsafe fn run(&self, launch: &Launch) -> Result<()> {
        let Launch { function, grid, bits, sizes } = launch;
        let library = self
            .libraries
            .get(function.module)
            .ok_or_else(|| Error::Unsupported(format!("no simulated module {}", function.module)))?;
        // SAFETY: every library of kernels exports this function with this signature.
        let entry = unsafe { library.get::<Entry>(b"millrace_sim_launch\0") }
            .map_err(|e| Error::Unsupported(format!("{}: {e}", function.module)))?;
        let name = CString::new(function.name).map_err(|e| Error::Unsupported(e.to_string()))?;
        let mut bits = bits.clone();
        let mut params: Vec<*mut c_void> =
            bits.iter_mut().map(|bits| std::ptr::from_mut(bits).cast()).collect();
        let mut message = [0u8; 512];
        // SAFETY: the arrays are as long as the call says, parameters are little-endian and at least as long as their
        // sizes, which the library compares with the kernel's own; the caller vouches for the memory behind them.
        let code = unsafe {
            entry(
                name.as_ptr(),
                grid.blocks.as_ptr(),
                grid.threads.as_ptr(),
                grid.shared,
                params.as_mut_ptr(),
                sizes.as_ptr(),
                sizes.len() as c_uint,
                self.order.bits(),
                self.threads,
                message.as_mut_ptr().cast(),
                message.len(),
            )
        };
        if code == 0 {
            return Ok(());
        }
        let end = message.iter().position(|&b| b == 0).unwrap_or(message.len());
        Err(Error::Device(String::from_utf8_lossy(&message[..end]).into_owned()))
    }
}
