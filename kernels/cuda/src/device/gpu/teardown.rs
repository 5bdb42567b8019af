//! Frees what a GPU holds, when it is dropped or earlier.
//!
//! Many of the driver's calls that free something wait for the device, some without documenting it.
//! A kernel that waits for a lost rank may never end (for example one of NCCL's, before its group
//! is aborted), and then nothing would restart the shard. So this module waits for the end of the
//! work for a limited time. If the GPU does not get there, it keeps everything until the process
//! ends, and the driver cleans up then.

use std::ffi::c_void;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::result::{self, stream};
use cudarc::driver::sys::{self, CUresult};

use super::context::Gpu;
use crate::device::driver::Freed;

/// How long work in flight may take when something is freed. No step takes as long.
const IDLE_TIMEOUT: Duration = Duration::from_secs(10);
/// The interval at which a busy GPU is polled.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

impl Gpu {
    /// Waits until the GPU is idle, for a limited time, and returns whether it is. The context is
    /// current afterwards.
    ///
    /// A lost context counts as idle: all calls fail in it, and none waits.
    pub(super) fn is_idle_in_time(&self) -> bool {
        if self.is_stuck.load(Ordering::Acquire) || self.make_context_current().is_err() {
            return false;
        }
        let since = Instant::now();
        for stream in [self.stream.plain(), self.copies.0] {
            // SAFETY: the streams live as long as the GPU.
            while unsafe { sys::cuStreamQuery(stream) } == CUresult::CUDA_ERROR_NOT_READY {
                if since.elapsed() > IDLE_TIMEOUT {
                    self.is_stuck.store(true, Ordering::Release);
                    return false;
                }
                std::thread::sleep(POLL_INTERVAL);
            }
        }
        true
    }

    /// Frees memory that nothing uses any more. A failure means that the context is lost, and with
    /// it the memory.
    pub(super) fn free_now(&self, freed: Freed) {
        if !self.is_idle_in_time() {
            return;
        }
        // SAFETY: the owner does not use the memory again, and no copy is in flight.
        let _ = unsafe {
            match freed {
                Freed::Device(at) => result::free_sync(at),
                Freed::Pinned(at) => result::free_host(at as *mut c_void),
            }
        };
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        let products = self.blas.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.is_idle_in_time() {
            // Destroying the library would wait for the device as well.
            std::mem::forget(products);
            return;
        }
        // Failures are ignored: a GPU that has failed answers every call with an error. SAFETY:
        // everything that is freed came from the driver and is not used again.
        unsafe {
            if let Some(products) = products {
                let _ = result::free_sync(products.workspace);
            }
            if let Some(word) = self.host_word.take() {
                let _ = result::free_host(word.0.as_ptr().cast());
            }
            self.kernels.unload();
            let _ = stream::destroy(self.stream.plain());
            let _ = stream::destroy(self.copies.0);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
