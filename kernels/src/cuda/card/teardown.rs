//! Giving back what a card holds, at the end or on the way.
//!
//! The driver's own calls for that wait for the device, some of them without saying so. A kernel that waits for a rank that is gone may never end
//! (one of NCCL's, before its group is aborted), and then nobody would restart the shard. So the end of the work is awaited here, for a while;
//! a card that does not come to it keeps everything until the process ends, which the driver cleans up after.

use std::ffi::c_void;
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use cudarc::driver::result::{self, module, stream};
use cudarc::driver::sys::{self, CUresult};

use super::Card;
use crate::cuda::driver::Driver as _;
use crate::cuda::recorder::Freed;

/// How long work may take that is under way when something is given back. No step takes as long.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often a card at work is asked.
const POLL: Duration = Duration::from_micros(200);

impl Card {
    /// Waits for the device, and says whether it has come to an end of its work and nothing is in use. The context is current afterwards.
    ///
    /// A lost context counts as at rest: all calls fail in it, and none waits.
    pub(super) fn comes_to_rest(&self) -> bool {
        if self.stuck.load(Ordering::Acquire) || self.make_current().is_err() {
            return false;
        }
        let since = Instant::now();
        for stream in [self.stream.plain(), self.copies.0] {
            // SAFETY: the streams live as long as the card.
            while unsafe { sys::cuStreamQuery(stream) } == CUresult::CUDA_ERROR_NOT_READY {
                if since.elapsed() > PATIENCE {
                    self.stuck.store(true, Ordering::Release);
                    return false;
                }
                std::thread::sleep(POLL);
            }
        }
        true
    }

    /// Frees memory that nothing uses any more. A failure means that the context is lost, and its memory with it.
    pub(super) fn give_back(&self, freed: Freed) {
        if !self.comes_to_rest() {
            return;
        }
        // SAFETY: whoever gave it back does not use it again, and no copy is under way.
        let _ = unsafe {
            match freed {
                Freed::Device(at) => result::free_sync(at),
                Freed::Pinned(at) => result::free_host(at as *mut c_void),
            }
        };
    }
}

impl Drop for Card {
    fn drop(&mut self) {
        let products = self.blas.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if !self.comes_to_rest() {
            // The library waits for the device as well.
            std::mem::forget(products);
            return;
        }
        // Nothing can be done about a failure here, and a card that has failed answers every call with one.
        // SAFETY: what is given back came from the driver and is not used again.
        unsafe {
            if let Some(products) = products {
                let _ = result::free_sync(products.workspace);
            }
            if let Some(word) = self.host_word.take() {
                let _ = result::free_host(word.0.as_ptr().cast());
            }
            for module in self.modules.get_mut().unwrap_or_else(PoisonError::into_inner).values() {
                let _ = module::unload(module.0);
            }
            let _ = stream::destroy(self.stream.plain());
            let _ = stream::destroy(self.copies.0);
            let _ = result::primary_ctx::release(self.device);
        }
    }
}
