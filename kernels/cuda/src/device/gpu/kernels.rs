//! Kernels that are loaded on a GPU.

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::{Mutex, PoisonError};

use cudarc::driver::result::{DriverError, function, module};
use cudarc::driver::sys::{self, CUfunction_attribute};
use millrace_backend::{Error, Result};

use super::main_stream;
use super::raw::{DriverHandle, driver_error};
use crate::device::code::nvrtc::Nvrtc;
use crate::device::code::{Cache, embedded};
use crate::device::driver::{KernelName, Recorder, SharedAllowance, SharedAttributes};

/// A kernel on the GPU.
#[derive(Debug, Clone, Copy)]
pub(super) struct LoadedKernel {
    pub(super) function: DriverHandle<sys::CUfunction>,
    /// The dynamic shared memory that launches may ask for so far.
    shared: SharedAllowance,
    /// Whether the kernel itself waits for the kernel before it in the stream.
    pub(super) waits: bool,
}

/// The kernels of one GPU and the modules that they come from. Each is loaded by its first launch.
#[derive(Debug)]
pub(super) struct LoadedKernels {
    gpu_name: String,
    capability: (u32, u32),
    modules: Mutex<HashMap<&'static str, DriverHandle<sys::CUmodule>>>,
    kernels: Mutex<HashMap<KernelName, LoadedKernel>>,
}

impl LoadedKernels {
    /// No kernels yet, for a GPU of this name and compute capability.
    pub(super) fn new(gpu_name: String, capability: (u32, u32)) -> LoadedKernels {
        LoadedKernels { gpu_name, capability, modules: Mutex::default(), kernels: Mutex::default() }
    }

    /// The kernel `name`, allowed to have `shared` bytes of dynamic shared memory. The GPU's
    /// context must be current.
    ///
    /// # Errors
    /// [`Error::Device`] if the kernel is not loaded and a graph is being recorded, or the driver's
    /// error; [`Error::Unsupported`] if there is no machine code for this GPU.
    pub(super) fn load(&self, name: KernelName, shared: usize, recorder: &Recorder) -> Result<LoadedKernel> {
        let mut kernels = self.kernels.lock().unwrap_or_else(PoisonError::into_inner);
        let mut kernel = match kernels.get(&name) {
            Some(kernel) if kernel.shared.covers(shared) => return Ok(*kernel),
            Some(kernel) => *kernel,
            None => {
                recorder.forbid(&format!("a first launch of {}", name.name))?;
                self.find(name)?
            }
        };
        kernel.shared.raise_to(shared, &LoadedFunction { function: kernel.function.0, name })?;
        kernels.insert(name, kernel);
        Ok(kernel)
    }

    /// Unloads all modules.
    ///
    /// # Safety
    /// The GPU's context is current, and no kernel runs or is used again.
    pub(super) unsafe fn unload(&mut self) {
        for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
            // SAFETY: the module came from the driver, and the caller says that it is not used
            // again.
            let _ = unsafe { module::unload(module.0) };
        }
    }

    fn find(&self, name: KernelName) -> Result<LoadedKernel> {
        let mut modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match modules.get(name.module) {
            Some(module) => *module,
            None => {
                let module = DriverHandle(self.load_module(name.module)?);
                modules.insert(name.module, module);
                module
            }
        };
        let exported = CString::new(name.name).map_err(|e| Error::Unsupported(e.to_string()))?;
        // SAFETY: the module is loaded and stays so until the GPU is dropped.
        let found = unsafe { module::get_function(module.0, exported) };
        let found = found.map_err(|e| driver_error(&format!("kernel {}", name.name), e))?;
        let waits = main_stream::waits(found)?;
        let shared = SharedAllowance::of(&LoadedFunction { function: found, name })?;
        Ok(LoadedKernel { function: DriverHandle(found), shared, waits })
    }

    /// Loads the machine code that the build embedded, or else compiles the source with NVRTC.
    fn load_module(&self, name: &str) -> Result<sys::CUmodule> {
        let missing = match embedded::find(embedded::FATBINS, name) {
            // SAFETY: the image is a fat binary that nvcc wrote.
            Some(image) => match unsafe { module::load_data(image.as_ptr().cast()) } {
                Ok(module) => return Ok(module),
                Err(e) if is_for_other_gpus(e) => {
                    driver_error(&format!("cuModuleLoadData({name})"), e).to_string()
                }
                Err(e) => return Err(driver_error(&format!("cuModuleLoadData({name})"), e)),
            },
            None => "this build embeds none, because nvcc was not found".to_owned(),
        };
        let compiled =
            Nvrtc::open().and_then(|nvrtc| nvrtc.machine_code(name, self.capability, &Cache::of_user()));
        let image = compiled.map_err(|e| {
            Error::Unsupported(format!(
                "no machine code of {name}.cu for {}: {missing}; compiling it here failed: {e}. Install NVRTC, or build \
                 with nvcc",
                self.gpu_name
            ))
        })?;
        // SAFETY: the image is a cubin that NVRTC wrote; one from the cache has the right checksum.
        unsafe { module::load_data(image.as_ptr().cast()) }
            .map_err(|e| driver_error(&format!("cuModuleLoadData({name}, compiled by NVRTC)"), e))
    }
}

/// A function of a loaded module.
struct LoadedFunction {
    function: sys::CUfunction,
    name: KernelName,
}

impl SharedAttributes for LoadedFunction {
    fn static_shared(&self) -> Result<usize> {
        use CUfunction_attribute::CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES as STATIC;
        // SAFETY: the function is loaded.
        let bytes = unsafe { function::get_function_attribute(self.function, STATIC) };
        let bytes = bytes.map_err(|e| driver_error(&format!("attributes of {}", self.name.name), e))?;
        Ok(usize::try_from(bytes).unwrap_or(0))
    }

    fn allow_dynamic_shared(&self, bytes: usize) -> Result<()> {
        use CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as LIMIT;
        // SAFETY: the function is loaded.
        unsafe { function::set_function_attribute(self.function, LIMIT, bytes as i32) }
            .map_err(|e| driver_error(&format!("{bytes} bytes of shared memory for {}", self.name.name), e))
    }
}

/// Whether the driver refuses an image because nothing in it fits the GPU, or because it is newer
/// than the driver. A driver that is older than the toolkit may not know the format of a compressed
/// fat binary, and then calls it an invalid image or source. What NVRTC compiles may still work.
fn is_for_other_gpus(error: DriverError) -> bool {
    use sys::CUresult::*;
    matches!(
        error.0,
        CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_INVALID_IMAGE
            | CUDA_ERROR_INVALID_SOURCE
            | CUDA_ERROR_INVALID_PTX
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUDA_ERROR_JIT_COMPILER_NOT_FOUND
            | CUDA_ERROR_JIT_COMPILATION_DISABLED
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The codes with which drivers of CUDA 12 answer to fat binaries of CUDA 13.
    #[test]
    fn old_drivers_that_refuse_a_fat_binary_get_code_from_nvrtc() {
        use sys::CUresult::*;
        for code in [
            CUDA_ERROR_INVALID_IMAGE,
            CUDA_ERROR_INVALID_SOURCE,
            CUDA_ERROR_NO_BINARY_FOR_GPU,
            CUDA_ERROR_UNSUPPORTED_PTX_VERSION,
        ] {
            assert!(is_for_other_gpus(DriverError(code)), "{code:?}");
        }
        for code in [CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_SYSTEM_DRIVER_MISMATCH]
        {
            assert!(!is_for_other_gpus(DriverError(code)), "{code:?}");
        }
    }
}
