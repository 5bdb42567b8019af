//! Memory that the cards of several processes share: CUDA's interprocess communication.

use std::ffi::{c_char, c_int};
use std::ptr;
use std::sync::atomic::AtomicU32;

use cudarc::driver::result::{self, device};
use cudarc::driver::sys;

use super::{Card, Handle, failed};
use crate::cuda::driver::{Driver as _, SharedName};
use crate::{Error, Result};

/// Small allocations are cut from a larger block, and a handle opens the whole block: NVIDIA's programming guide advises to share multiples of 2 MiB.
const BLOCK: usize = 2 << 20;

/// Bytes of a handle, and of what identifies a card, in a [`SharedName`].
const HANDLE: usize = 64;
const UUID: usize = 16;

pub(super) fn share(card: &Card, bytes: usize) -> Result<(u64, SharedName)> {
    card.make_current()?;
    // SAFETY: the context is current. The driver's own allocation: handles do not open memory of a pool.
    let at = unsafe { result::malloc_sync(bytes.next_multiple_of(BLOCK)) };
    let at = at.map_err(|e| failed("cuMemAlloc", e))?;
    let name = named(card, at, bytes);
    if name.is_err() {
        // SAFETY: nobody knows of the memory.
        let _ = unsafe { result::free_sync(at) };
    }
    Ok((at, name?))
}

/// Zeroes the memory, and names it.
fn named(card: &Card, at: u64, bytes: usize) -> Result<SharedName> {
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE] };
    // SAFETY: the memory was just allocated and is that long; the call writes the handle alone.
    unsafe {
        result::memset_d8_sync(at, 0, bytes).map_err(|e| failed("cuMemsetD8", e))?;
        sys::cuIpcGetMemHandle(&mut handle, at).result().map_err(|e| failed("cuIpcGetMemHandle", e))?;
    }
    // The fill may still be under way when its call returns, and other processes are not in this stream's order.
    result::ctx::synchronize().map_err(|e| failed("cuCtxSynchronize", e))?;
    let mut name = [0; size_of::<SharedName>()];
    let words = handle.reserved.iter().copied().chain(uuid(card.device)?);
    name.iter_mut().zip(words).for_each(|(byte, word)| *byte = word as u8);
    Ok(name)
}

/// What identifies a card in every process, however `CUDA_VISIBLE_DEVICES` has ordered them there.
fn uuid(device: sys::CUdevice) -> Result<[c_char; UUID]> {
    Ok(device::get_uuid(device).map_err(|e| failed("cuDeviceGetUuid", e))?.bytes)
}

pub(super) fn open(card: &Card, name: &SharedName) -> Result<u64> {
    let signed = |byte: &u8| *byte as c_char;
    let theirs: Vec<c_char> = name[HANDLE..HANDLE + UUID].iter().map(signed).collect();
    check_access(card, &theirs)?;
    card.make_current()?;
    let mut handle = sys::CUipcMemHandle { reserved: [0; HANDLE] };
    handle.reserved.iter_mut().zip(name.iter().map(signed)).for_each(|(to, from)| *to = from);
    let mut at = 0;
    let lazy = sys::CUipcMem_flags_enum::CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS as u32;
    // SAFETY: the context is current; the call writes the address alone.
    let opened = unsafe { sys::cuIpcOpenMemHandle_v2(&mut at, handle, lazy) };
    opened.result().map_err(|e| failed("cuIpcOpenMemHandle", e))?;
    Ok(at)
}

/// Whether this card reaches the memory of the one that is identified so.
fn check_access(card: &Card, theirs: &[c_char]) -> Result<()> {
    let count = device::get_count().map_err(|e| failed("cuDeviceGetCount", e))?;
    for ordinal in 0..count {
        let other = device::get(ordinal).map_err(|e| failed("cuDeviceGet", e))?;
        if uuid(other)? != theirs {
            continue;
        }
        let mut can: c_int = 0;
        // SAFETY: both devices are the driver's; the call writes the answer alone.
        let asked = unsafe { sys::cuDeviceCanAccessPeer(&mut can, card.device, other) };
        // A card needs no leave to reach itself, and gets none.
        if other == card.device || (asked.result().is_ok() && can != 0) {
            return Ok(());
        }
        return Err(Error::Device(format!(
            "the driver gives {} no access to card {ordinal} (cuDeviceCanAccessPeer; `nvidia-smi topo -p2p r` shows all pairs)",
            card.name()
        )));
    }
    Err(Error::Device("its card is not among those that CUDA_VISIBLE_DEVICES shows this process".to_owned()))
}

pub(super) unsafe fn close(card: &Card, at: u64) {
    // What used the memory must have ended.
    if card.comes_to_rest() {
        // A failure means that the context is lost, and the mapping with it.
        // SAFETY: the caller says that it was opened and is not used again.
        let _ = unsafe { sys::cuIpcCloseMemHandle(at) };
    }
}

/// Allocates a word of the host's memory, page-locked and at the same address for the card.
pub(super) fn host_word(card: &Card) -> Result<Handle<ptr::NonNull<AtomicU32>>> {
    card.make_current()?;
    let flags = sys::CU_MEMHOSTALLOC_PORTABLE | sys::CU_MEMHOSTALLOC_DEVICEMAP;
    // SAFETY: the context is current.
    let at = unsafe { result::malloc_host(size_of::<AtomicU32>(), flags) };
    let at = at.map_err(|e| failed("cuMemHostAlloc", e))?.cast::<AtomicU32>();
    let at = ptr::NonNull::new(at).ok_or_else(|| Error::Device("cuMemHostAlloc gave nothing".to_owned()))?;
    // SAFETY: it is as long, aligned to a page, and nobody else's yet.
    unsafe { at.write(AtomicU32::new(0)) };
    Ok(Handle(at))
}
