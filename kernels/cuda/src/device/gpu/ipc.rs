//! Memory that the GPUs of several processes share, by CUDA's interprocess communication (IPC).

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::atomic::AtomicU32;

use cudarc::driver::result::{self, device};
use cudarc::driver::sys;
use millrace_backend::{Error, Result};

use super::context::Gpu;
use super::raw::{DriverHandle, driver_error};
use crate::device::driver::SharedName;

/// Shared allocations are multiples of this, as NVIDIA's programming guide advises: the driver cuts
/// small allocations from a larger block, and a handle opens the whole block.
const BLOCK: usize = 2 << 20;

/// Bytes of an IPC handle in a [`SharedName`], and of the GPU's UUID after it.
const HANDLE_BYTES: usize = 64;
const UUID_BYTES: usize = 16;

pub(super) fn share(gpu: &Gpu, bytes: usize) -> Result<(u64, SharedName)> {
    gpu.make_context_current()?;
    // SAFETY: the context is current. The driver's own allocator is used because IPC handles cannot
    // open memory of a pool.
    let at = unsafe { result::malloc_sync(bytes.next_multiple_of(BLOCK)) };
    let at = at.map_err(|e| driver_error("cuMemAlloc", e))?;
    let name = named(gpu, at, bytes);
    if name.is_err() {
        // SAFETY: nothing else has the address.
        let _ = unsafe { result::free_sync(at) };
    }
    Ok((at, name?))
}

/// Zeroes the memory and returns its name.
fn named(gpu: &Gpu, at: u64, bytes: usize) -> Result<SharedName> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    // SAFETY: the memory was just allocated with this length; the second call writes only the
    // handle.
    unsafe {
        result::memset_d8_sync(at, 0, bytes).map_err(|e| driver_error("cuMemsetD8", e))?;
        sys::cuIpcGetMemHandle(&mut handle, at).result().map_err(|e| driver_error("cuIpcGetMemHandle", e))?;
    }
    // The fill may still be running when its call returns, and other processes are not ordered by
    // this GPU's streams.
    result::ctx::synchronize().map_err(|e| driver_error("cuCtxSynchronize", e))?;
    let mut name = [0; size_of::<SharedName>()];
    let words = handle.reserved.iter().copied().chain(uuid(gpu.device)?);
    name.iter_mut().zip(words).for_each(|(byte, word)| *byte = word as u8);
    Ok(name)
}

/// The GPU's UUID. It is the same in every process, whatever order `CUDA_VISIBLE_DEVICES` gives the
/// GPUs there.
fn uuid(device: sys::CUdevice) -> Result<[c_char; UUID_BYTES]> {
    Ok(device::get_uuid(device).map_err(|e| driver_error("cuDeviceGetUuid", e))?.bytes)
}

pub(super) fn open(gpu: &Gpu, name: &SharedName) -> Result<u64> {
    let signed = |byte: &u8| *byte as c_char;
    let theirs: Vec<c_char> = name[HANDLE_BYTES..HANDLE_BYTES + UUID_BYTES].iter().map(signed).collect();
    check_access(gpu, &theirs)?;
    gpu.make_context_current()?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE_BYTES] };
    handle.reserved.iter_mut().zip(name.iter().map(signed)).for_each(|(to, from)| *to = from);
    let mut at = 0;
    let lazy = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    // SAFETY: the context is current; the call writes only the address.
    let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut at, handle, lazy) };
    opened.result().map_err(|e| driver_error("cuIpcOpenMemHandle", e))?;
    Ok(at)
}

/// Checks that this GPU can access the memory of the GPU with the UUID `theirs`.
fn check_access(gpu: &Gpu, theirs: &[c_char]) -> Result<()> {
    let count = device::get_count().map_err(|e| driver_error("cuDeviceGetCount", e))?;
    for ordinal in 0..count {
        let other = device::get(ordinal).map_err(|e| driver_error("cuDeviceGet", e))?;
        if uuid(other)? != theirs {
            continue;
        }
        let mut can: c_int = 0;
        // SAFETY: both devices came from the driver; the call writes only the answer.
        let result = unsafe { sys::cuDeviceCanAccessPeer(&mut can, gpu.device, other) };
        // A GPU can always access its own memory, but the driver does not report that.
        if other == gpu.device || (result.result().is_ok() && can != 0) {
            return Ok(());
        }
        return Err(Error::Device(format!(
            "the driver does not let {} access GPU {ordinal} (cuDeviceCanAccessPeer; `nvidia-smi topo -p2p r` shows all pairs)",
            gpu.name
        )));
    }
    Err(Error::Device("CUDA_VISIBLE_DEVICES does not show its GPU to this process".to_owned()))
}

pub(super) unsafe fn close(gpu: &Gpu, at: u64) {
    // Work that uses the memory must have ended.
    if gpu.is_idle_in_time() {
        // SAFETY: the caller says that the address came from `open` and is not used again. A
        // failure means that the context is lost, and with it the mapping.
        let _ = unsafe { sys::cuIpcCloseMemHandle(at) };
    }
}

/// Allocates a page-locked word of host memory that has the same address on the GPU.
pub(super) fn host_word(gpu: &Gpu) -> Result<DriverHandle<ptr::NonNull<AtomicU32>>> {
    gpu.make_context_current()?;
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: the context is current.
    let at = unsafe { result::malloc_host(size_of::<AtomicU32>(), flags) };
    let at = at.map_err(|e| driver_error("cuMemHostAlloc", e))?.cast::<AtomicU32>();
    let at =
        ptr::NonNull::new(at).ok_or_else(|| Error::Device("cuMemHostAlloc returned no memory".to_owned()))?;
    // SAFETY: the memory is large enough, page-aligned and not used by anything else yet.
    unsafe { at.write(AtomicU32::new(0)) };
    Ok(DriverHandle(at))
}
