//! NVIDIA's cards through the driver's API, which is opened at run time.

mod blas;
mod launch;
mod share;
mod streams;
mod teardown;
mod usable;

use std::collections::HashMap;
use std::ffi::{CString, c_void};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::sync::{Mutex, OnceLock, PoisonError};

use cudarc::driver::result::{self, DriverError, ctx, device, event, module, stream};
use cudarc::driver::sys::{self, CUdevice_attribute as Attribute};

use super::cache::Cache;
use super::choice::Algorithm;
use super::driver::{Arg, Driver, Function, Gemm, Grid, Properties, SharedName, TensorLayout, TensorMap};
use super::memory::Elem;
use super::modules;
use super::nvrtc::Nvrtc;
use super::recorder::{Freed, Recorder};
use crate::backend::Overheads;
use crate::{Error, Result};
use blas::Blas;
pub(super) use blas::version as blas_version;
use launch::MainStream;

/// The oldest cards that the kernels are written for: Ampere.
const OLDEST: (u32, u32) = (8, 0);

/// One card, its primary context and two streams.
#[derive(Debug)]
pub struct Card {
    name: String,
    device: sys::CUdevice,
    context: Handle<sys::CUcontext>,
    /// The main stream.
    stream: MainStream,
    /// The stream of copies.
    copies: Handle<sys::CUstream>,
    recorder: Recorder,
    properties: Properties,
    modules: Mutex<HashMap<&'static str, Handle<sys::CUmodule>>>,
    functions: Mutex<HashMap<Function, Loaded>>,
    /// Opened with the first product.
    blas: Mutex<Option<Products>>,
    /// Allocated when it is asked for.
    host_word: OnceLock<Handle<NonNull<AtomicU32>>>,
    /// Whether the card did not come to an end of its work when something was to be given back.
    stuck: AtomicBool,
}

/// The library for products, and the memory it works in.
#[derive(Debug)]
struct Products {
    blas: Blas,
    workspace: u64,
}

/// A kernel on the card, and how much dynamic shared memory its launches may ask for so far.
#[derive(Debug, Clone, Copy)]
struct Loaded {
    function: Handle<sys::CUfunction>,
    shared: usize,
    /// Whether it waits for the kernel before it by itself.
    waits: bool,
}

/// A pointer that the driver gave out.
#[derive(Debug, Clone, Copy)]
struct Handle<T>(T);

// SAFETY: the driver's handles may be used from any thread, as long as the context is current there, which every call sees to.
unsafe impl<T> Send for Handle<T> {}
// SAFETY: as above; the driver locks what it must.
unsafe impl<T> Sync for Handle<T> {}

impl Card {
    /// How many cards `CUDA_VISIBLE_DEVICES` shows.
    ///
    /// # Errors
    /// [`Error::Device`] with one sentence: no driver, one that cannot be used, or no card.
    pub fn count() -> Result<usize> {
        usable::count()
    }

    /// How many cards there are, up to the first that cannot be computed on. Makes no context.
    ///
    /// # Errors
    /// [`Error::Device`] with one sentence if that is none, such as a card or a driver that is too old.
    pub fn usable() -> Result<usize> {
        usable::usable()
    }

    /// Card number `ordinal` of those that `CUDA_VISIBLE_DEVICES` shows.
    ///
    /// # Errors
    /// [`Error::Device`] with one sentence: no driver, no such card, a card that is too old, or a failing call by its name.
    pub fn new(ordinal: usize) -> Result<Card> {
        let count = Card::count()?;
        if ordinal >= count {
            return Err(Error::Device(format!("there is no card {ordinal}: the driver shows {count}")));
        }
        let device = device::get(ordinal as i32).map_err(|e| failed("cuDeviceGet", e))?;
        let name = device::get_name(device).map_err(|e| failed("cuDeviceGetName", e))?;
        let attribute = |which| {
            // SAFETY: the device came from the driver.
            let value = unsafe { device::get_attribute(device, which) };
            value.map(|v| v as u32).map_err(|e| failed("cuDeviceGetAttribute", e))
        };
        let properties = Properties {
            capability: (
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(Attribute::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            ),
            multiprocessors: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT)?,
            shared_per_block: attribute(Attribute::CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN)?
                as usize,
            l2_bytes: attribute(Attribute::CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE)? as usize,
        };
        usable::check_capability(&name, properties.capability)?;
        // SAFETY: the device came from the driver; the context is released when the card is dropped.
        let context =
            unsafe { primary_context(device) }.map_err(|e| failed("cuDevicePrimaryCtxRetain", e))?;
        let copies =
            stream::create(stream::StreamKind::NonBlocking).map_err(|e| failed("cuStreamCreate", e))?;
        Ok(Card {
            name,
            device,
            context: Handle(context),
            stream: MainStream::new(properties.capability)?,
            copies: Handle(copies),
            recorder: Recorder::default(),
            properties,
            modules: Mutex::default(),
            functions: Mutex::default(),
            blas: Mutex::default(),
            host_word: OnceLock::new(),
            stuck: AtomicBool::new(false),
        })
    }

    /// Lends the library for products, which is opened with the first of them; the context must be current.
    fn with_blas<T>(&self, work: impl FnOnce(&mut Products) -> Result<T>) -> Result<T> {
        let mut opened = self.blas.lock().unwrap_or_else(PoisonError::into_inner);
        match &mut *opened {
            Some(products) => work(products),
            none => {
                self.recorder.forbid("a first product")?;
                let products = Products { blas: Blas::open()?, workspace: self.allocate(blas::WORKSPACE)? };
                work(none.insert(products))
            }
        }
    }

    fn load(&self, function: Function) -> Result<Loaded> {
        let mut functions = self.functions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(loaded) = functions.get(&function) {
            return Ok(*loaded);
        }
        self.recorder.forbid(&format!("a first launch of {}", function.name))?;
        let mut loaded_modules = self.modules.lock().unwrap_or_else(PoisonError::into_inner);
        let module = match loaded_modules.get(function.module) {
            Some(module) => *module,
            None => {
                let module = Handle(self.load_module(function.module)?);
                loaded_modules.insert(function.module, module);
                module
            }
        };
        let name = CString::new(function.name).map_err(|e| Error::Unsupported(e.to_string()))?;
        // SAFETY: the module is loaded and stays so until the card is dropped.
        let found = unsafe { module::get_function(module.0, name) };
        let found = found.map_err(|e| failed(&format!("kernel {}", function.name), e))?;
        let loaded = Loaded { function: Handle(found), shared: 48 << 10, waits: launch::waits(found)? };
        functions.insert(function, loaded);
        Ok(loaded)
    }

    /// The build's machine code, or else what NVRTC makes of the source.
    fn load_module(&self, name: &str) -> Result<sys::CUmodule> {
        let missing = match modules::find(modules::FATBINS, name) {
            // SAFETY: the image is a fat binary that nvcc wrote.
            Some(image) => match unsafe { module::load_data(image.as_ptr().cast()) } {
                Ok(module) => return Ok(module),
                Err(e) if is_for_other_cards(e) => {
                    failed(&format!("cuModuleLoadData({name})"), e).to_string()
                }
                Err(e) => return Err(failed(&format!("cuModuleLoadData({name})"), e)),
            },
            None => "this build has none, as there was no nvcc".to_owned(),
        };
        let made = Nvrtc::open()
            .and_then(|nvrtc| nvrtc.machine_code(name, self.properties.capability, &Cache::of_user()));
        let image = made.map_err(|e| {
            Error::Unsupported(format!(
                "there is no machine code of {name}.cu for {}: {missing}; and it cannot be compiled here: {e}. Install \
                 NVRTC, or build with nvcc",
                self.name
            ))
        })?;
        // SAFETY: the image is a cubin that NVRTC wrote, as the cache's checksum says if it lay there.
        unsafe { module::load_data(image.as_ptr().cast()) }
            .map_err(|e| failed(&format!("cuModuleLoadData({name}, compiled by NVRTC)"), e))
    }

    fn allow_shared(&self, function: Function, loaded: &mut Loaded, bytes: usize) -> Result<()> {
        use sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES as LIMIT;
        // SAFETY: the function is loaded.
        unsafe { result::function::set_function_attribute(loaded.function.0, LIMIT, bytes as i32) }
            .map_err(|e| failed(&format!("{} bytes of shared memory for {}", bytes, function.name), e))?;
        loaded.shared = bytes;
        self.functions.lock().unwrap_or_else(PoisonError::into_inner).insert(function, *loaded);
        Ok(())
    }
}

/// Whether the driver refuses an image because nothing in it fits the card, or the PTX in it is newer than the driver.
fn is_for_other_cards(error: DriverError) -> bool {
    use sys::CUresult::*;
    matches!(
        error.0,
        CUDA_ERROR_NO_BINARY_FOR_GPU
            | CUDA_ERROR_INVALID_PTX
            | CUDA_ERROR_UNSUPPORTED_PTX_VERSION
            | CUDA_ERROR_JIT_COMPILER_NOT_FOUND
    )
}

/// # Safety
/// `device` came from the driver.
unsafe fn primary_context(device: sys::CUdevice) -> std::result::Result<sys::CUcontext, DriverError> {
    // SAFETY: the caller vouches for the device.
    unsafe {
        let context = result::primary_ctx::retain(device)?;
        ctx::set_current(context)?;
        Ok(context)
    }
}

/// The driver's answer with the name of the call that got it.
fn failed(call: &str, error: DriverError) -> Error {
    let text = |found: std::result::Result<&std::ffi::CStr, DriverError>| {
        found.map_or_else(|_| format!("{:?}", error.0), |text| text.to_string_lossy().into_owned())
    };
    Error::Device(format!("{call}: {} ({})", text(error.error_string()), text(error.error_name())))
}

impl Driver for Card {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn properties(&self) -> Properties {
        self.properties
    }

    fn allocate(&self, bytes: usize) -> Result<u64> {
        self.recorder.forbid("an allocation")?;
        self.make_current()?;
        // SAFETY: the context is current; whoever asks gives the memory back with `free`.
        unsafe { result::malloc_sync(bytes) }.map_err(|e| match e.0 {
            sys::CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { what: "device memory", bytes },
            _ => failed("cuMemAlloc", e),
        })
    }

    unsafe fn free(&self, at: u64) {
        if self.recorder.may_free(Freed::Device(at)) {
            self.give_back(Freed::Device(at));
        }
    }

    unsafe fn upload(&self, to: u64, from: &[u8]) -> Result<()> {
        self.recorder.forbid("a copy of memory that is not pinned")?;
        self.make_current()?;
        // SAFETY: the caller vouches for the memory; the source is read before the second call returns.
        unsafe {
            result::memcpy_htod_async(to, from, self.stream.plain())
                .map_err(|e| failed("cuMemcpyHtoD", e))?;
            stream::synchronize(self.stream.plain()).map_err(|e| failed("cuStreamSynchronize", e))
        }
    }

    unsafe fn download(&self, from: u64, to: &mut [u8]) -> Result<()> {
        self.recorder.forbid("a copy that waits")?;
        self.make_current()?;
        // SAFETY: the caller vouches for the memory; it is written before the second call returns.
        unsafe {
            result::memcpy_dtoh_async(to, from, self.stream.plain())
                .map_err(|e| failed("cuMemcpyDtoH", e))?;
            stream::synchronize(self.stream.plain()).map_err(|e| failed("cuStreamSynchronize", e))
        }
    }

    unsafe fn fill(&self, at: u64, value: u8, bytes: usize) -> Result<()> {
        self.make_current()?;
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memset_d8_async(at, value, bytes, self.stream.plain()) }
            .map_err(|e| failed("cuMemsetD8", e))
    }

    unsafe fn copy(&self, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.make_current()?;
        // SAFETY: the caller vouches for the memory.
        unsafe { result::memcpy_dtod_async(to, from, bytes, self.stream.plain()) }
            .map_err(|e| failed("cuMemcpyDtoD", e))
    }

    unsafe fn launch(&self, function: Function, grid: Grid, args: &[Arg]) -> Result<()> {
        // SAFETY: as the caller says.
        unsafe { launch::launch(self, function, grid, args) }
    }

    fn make_current(&self) -> Result<()> {
        // SAFETY: the context lives as long as the card.
        unsafe { ctx::set_current(self.context.0) }.map_err(|e| failed("cuCtxSetCurrent", e))
    }

    unsafe fn gemm(&self, product: &Gemm) -> Result<()> {
        self.make_current()?;
        self.with_blas(|Products { blas, workspace }| {
            if !blas.knows(product) {
                self.recorder.forbid("a product of a new shape")?;
            }
            // SAFETY: the context is current, the workspace is used by products of this stream alone, and the caller vouches for
            // the operands.
            unsafe { blas.multiply(product, *workspace, self.stream.for_kernel().0.cast()) }
        })
    }

    fn product_library(&self) -> Option<String> {
        blas::version().ok().map(|version| format!("cuBLASLt {version}"))
    }

    fn algorithms(&self, product: &Gemm, most: usize) -> Result<Vec<Algorithm>> {
        self.make_current()?;
        self.with_blas(|products| products.blas.algorithms(product, most))
    }

    fn fits(&self, product: &Gemm) -> Result<bool> {
        self.make_current()?;
        self.with_blas(|products| products.blas.fits(product))
    }

    /// Not measured yet. The context itself is not counted, as it is there before the free memory is asked for.
    fn overheads(&self, ranks: usize) -> Overheads {
        /// What a group's channels and their buffers take.
        const NCCL: usize = 512 << 20;
        /// Machine code of kernels and libraries, which is loaded when it is first used, and recorded graphs.
        const RUNTIME: usize = 512 << 20;
        let collectives = if ranks > 1 { NCCL } else { 0 };
        Overheads { products: blas::WORKSPACE, collectives, runtime: RUNTIME }
    }

    fn memory_bytes(&self) -> Option<(usize, usize)> {
        self.make_current().ok()?;
        result::mem_get_info().ok()
    }

    fn share(&self, bytes: usize) -> Result<(u64, SharedName)> {
        share::share(self, bytes)
    }

    fn open_shared(&self, name: &SharedName, _bytes: usize) -> Result<u64> {
        share::open(self, name)
    }

    unsafe fn close_shared(&self, at: u64) {
        // SAFETY: as the caller says.
        unsafe { share::close(self, at) }
    }

    fn host_word(&self) -> Result<&AtomicU32> {
        let word = match self.host_word.get() {
            Some(word) => word,
            None => {
                let word = share::host_word(self)?;
                self.host_word.get_or_init(|| word)
            }
        };
        // SAFETY: it stays allocated until the card is dropped.
        Ok(unsafe { word.0.as_ref() })
    }

    fn tensor_map(&self, layout: &TensorLayout<'_>) -> Result<TensorMap> {
        use sys::CUtensorMapDataType_enum as Type;
        let &TensorLayout { at, elem, sizes, strides, tile } = layout;
        if sizes.len() != tile.len() || sizes.len() != strides.len() + 1 || sizes.len() > 5 {
            return Err(Error::Shape(format!("a tensor map of {sizes:?} in boxes of {tile:?}")));
        }
        let data_type = match elem {
            Elem::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
            Elem::BF16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
            other => return Err(Error::Unsupported(format!("tensor copies of {other:?}"))),
        };
        self.make_current()?;
        let mut map = sys::CUtensorMap { opaque: [0; 16] };
        let steps = [1u32; 5];
        // SAFETY: the arrays are as long as the rank, which was checked; the call only writes `map`.
        let code = unsafe {
            sys::cuTensorMapEncodeTiled(
                &mut map,
                data_type,
                sizes.len() as u32,
                at as *mut c_void,
                sizes.as_ptr(),
                strides.as_ptr(),
                tile.as_ptr(),
                steps.as_ptr(),
                sys::CUtensorMapInterleave_enum::CU_TENSOR_MAP_INTERLEAVE_NONE,
                sys::CUtensorMapSwizzle_enum::CU_TENSOR_MAP_SWIZZLE_128B,
                sys::CUtensorMapL2promotion_enum::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
                sys::CUtensorMapFloatOOBfill_enum::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
            )
        };
        code.result().map_err(|e| failed("cuTensorMapEncodeTiled", e))?;
        Ok(TensorMap(map.opaque))
    }

    fn synchronize(&self) -> Result<()> {
        self.recorder.forbid("a wait")?;
        self.make_current()?;
        // SAFETY: the stream lives as long as the card.
        unsafe { stream::synchronize(self.stream.plain()) }.map_err(|e| failed("cuStreamSynchronize", e))
    }

    fn time(&self, work: &mut dyn FnMut() -> Result<()>) -> Result<f64> {
        self.make_current()?;
        let new =
            || event::create(sys::CUevent_flags::CU_EVENT_DEFAULT).map_err(|e| failed("cuEventCreate", e));
        let (start, end) = (new()?, new()?);
        // SAFETY: events and stream are the driver's; the events are destroyed once and after they have passed.
        unsafe {
            event::record(start, self.stream.plain()).map_err(|e| failed("cuEventRecord", e))?;
            work()?;
            event::record(end, self.stream.plain()).map_err(|e| failed("cuEventRecord", e))?;
            event::synchronize(end).map_err(|e| failed("cuEventSynchronize", e))?;
            let milliseconds = event::elapsed(start, end).map_err(|e| failed("cuEventElapsedTime", e))?;
            let _ = event::destroy(start);
            let _ = event::destroy(end);
            Ok(f64::from(milliseconds) / 1e3)
        }
    }
}
