//! Communicators of NCCL: collectives between the GPUs of a group.
//!
//! A communicator does not block the host: collectives go to the device's stream, and forming a
//! group, which waits for all ranks, has a deadline. [`Aborter::abort`] ends both from another
//! thread when a rank is known to be lost.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use millrace_backend::{Error, Result};

use super::library::{Nccl, NcclCode, NcclConfig, NcclDataType, RawCommunicator, UniqueId};
use crate::{Device, Elem, View};

/// How long a pending call is polled without a break. A call that submits a collective is done
/// within some tens of microseconds, and a step has two of them per layer.
const SPIN_TIME: Duration = Duration::from_millis(1);
/// The interval at which a call is polled afterwards: it waits for other ranks.
const POLL_INTERVAL: Duration = Duration::from_micros(200);

/// One rank's member of a group.
pub struct Communicator {
    shared: Arc<SharedCommunicator>,
    device: Device,
    rank: usize,
    world_size: usize,
}

/// The state that a communicator shares with its aborters.
struct SharedCommunicator {
    nccl: Arc<Nccl>,
    /// Null once the communicator is aborted.
    comm: Mutex<CommunicatorHandle>,
    aborted: AtomicBool,
    /// How long the host waits for other ranks.
    deadline: Duration,
}

struct CommunicatorHandle(RawCommunicator);

// SAFETY: any thread may use a communicator of NCCL, one thread at a time, which the mutex ensures.
unsafe impl Send for CommunicatorHandle {}

/// Aborts a communicator from any thread.
#[derive(Clone)]
pub struct Aborter(Arc<SharedCommunicator>);

impl Aborter {
    /// Aborts pending and future collectives on the device and on the host. A second call does
    /// nothing.
    pub fn abort(&self) {
        self.0.aborted.store(true, Ordering::Release);
        self.0.free();
    }
}

impl SharedCommunicator {
    /// Frees the communicator without waiting for other ranks, because a lost rank would never
    /// answer.
    fn free(&self) {
        let mut comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        if !comm.0.is_null() {
            // SAFETY: the communicator came from the library, and nothing uses it once it is null.
            unsafe { (self.nccl.comm_abort)(comm.0) };
            comm.0 = std::ptr::null_mut();
        }
    }

    fn call(
        &self,
        name: &str,
        start: impl Fn(&Nccl, RawCommunicator, *mut c_void) -> NcclCode,
        stream: u64,
    ) -> Result<()> {
        let code = {
            let comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
            if comm.0.is_null() {
                return Err(aborted());
            }
            start(&self.nccl, comm.0, stream as *mut c_void)
        };
        self.nccl.check(name, code)?;
        if code == NcclCode::IN_PROGRESS { self.wait_until_done(name) } else { Ok(()) }
    }

    /// Waits until the library has finished its pending work on the host.
    fn wait_until_done(&self, what: &str) -> Result<()> {
        let since = Instant::now();
        while self.state(what)? == NcclCode::IN_PROGRESS {
            if since.elapsed() > self.deadline {
                self.free();
                return Err(Error::Device(format!(
                    "{what}: not all ranks took part within {} s",
                    self.deadline.as_secs_f32()
                )));
            }
            match pause(since.elapsed()) {
                Some(interval) => std::thread::sleep(interval),
                None => std::thread::yield_now(),
            }
        }
        Ok(())
    }

    fn state(&self, what: &str) -> Result<NcclCode> {
        let comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        if comm.0.is_null() || self.aborted.load(Ordering::Acquire) {
            return Err(aborted());
        }
        let (nccl, mut state) = (&self.nccl, NcclCode::SUCCESS);
        // SAFETY: the communicator is not freed while the lock is held.
        nccl.check("ncclCommGetAsyncError", unsafe { (nccl.comm_async_error)(comm.0, &mut state) })?;
        nccl.check(what, state)?;
        Ok(state)
    }
}

impl Drop for SharedCommunicator {
    fn drop(&mut self) {
        self.free();
    }
}

impl Communicator {
    /// Forms a group of `world_size` ranks with the name `id` (see [`Nccl::unique_id`]) and waits
    /// at most `deadline` for all of them. The deadline also limits later waits on the host.
    ///
    /// # Errors
    /// [`Error::Device`]: the library's error, or the deadline passed.
    pub fn form(
        nccl: Arc<Nccl>,
        device: &Device,
        id: &[u8],
        rank: usize,
        world_size: usize,
        deadline: Duration,
    ) -> Result<Communicator> {
        let id = id.try_into().map_err(|_| Error::Device("not the name of an NCCL group".to_owned()))?;
        device.make_current()?;
        let (mut comm, mut config) = (std::ptr::null_mut(), NcclConfig::not_blocking());
        // SAFETY: the arguments live through the call; the device's context is current.
        let code =
            unsafe { (nccl.comm_init)(&mut comm, world_size as i32, UniqueId(id), rank as i32, &mut config) };
        nccl.check("ncclCommInitRankConfig", code)?;
        let shared = SharedCommunicator {
            nccl,
            comm: Mutex::new(CommunicatorHandle(comm)),
            aborted: AtomicBool::new(false),
            deadline,
        };
        let formed = Communicator { shared: Arc::new(shared), device: device.clone(), rank, world_size };
        formed.shared.wait_until_done("forming the group")?;
        Ok(formed)
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// The number of ranks in the group.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// A handle that aborts the group from another thread.
    pub fn aborter(&self) -> Aborter {
        Aborter(self.shared.clone())
    }

    /// Replaces `values` by their sum over all ranks, on the device's stream.
    ///
    /// # Errors
    /// [`Error::Device`]: the group was aborted, or the library's error.
    pub fn all_reduce(&self, values: View<'_>) -> Result<()> {
        /// `ncclSum`.
        const SUM: i32 = 0;
        let (at, len, kind) = (values.address(), values.len(), nccl_type(values.elem())?);
        self.call("ncclAllReduce", move |nccl, comm, stream| {
            // SAFETY: the view lies in an allocation of this device; the communicator is not freed
            // while the lock is held.
            unsafe { (nccl.all_reduce)(pointer(at), pointer(at), len, kind, SUM, comm, stream) }
        })
    }

    /// Concatenates every rank's `part` into `whole`, on the device's stream.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`]; [`Error::Shape`] if `whole` is shorter than all parts.
    pub fn all_gather(&self, part: View<'_>, whole: View<'_>) -> Result<()> {
        whole.expect("whole", part.elem(), part.len() * self.world_size)?;
        let kind = nccl_type(part.elem())?;
        let (from, len, to) = (part.address(), part.len(), whole.address());
        self.call("ncclAllGather", move |nccl, comm, stream| {
            // SAFETY: the views lie in allocations, and their lengths were checked.
            unsafe { (nccl.all_gather)(pointer(from), pointer(to), len, kind, comm, stream) }
        })
    }

    /// Replaces `values` by those of rank 0, on the device's stream.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn broadcast(&self, values: View<'_>) -> Result<()> {
        let (at, len, kind) = (values.address(), values.len(), nccl_type(values.elem())?);
        self.call("ncclBroadcast", move |nccl, comm, stream| {
            // SAFETY: the view lies in an allocation of this device.
            unsafe { (nccl.broadcast)(pointer(at), pointer(at), len, kind, 0, comm, stream) }
        })
    }

    /// Checks that nothing has failed so far, on this rank or on the connection to another.
    ///
    /// # Errors
    /// [`Error::Device`] with the failure.
    pub fn check(&self) -> Result<()> {
        self.shared.state("a collective").map(|_| ())
    }

    /// Submits the library call `start` to the device's stream. A graph repeats the call.
    fn call(
        &self,
        name: &'static str,
        start: impl Fn(&Nccl, RawCommunicator, *mut c_void) -> NcclCode + Send + Sync + 'static,
    ) -> Result<()> {
        let shared = self.shared.clone();
        self.device.call_library(Arc::new(move |stream| shared.call(name, &start, stream)))
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({} of {})", self.rank, self.world_size)
    }
}

/// The time for which the host sleeps before it polls a call again that it has waited for so long;
/// `None` if it does not sleep.
fn pause(waited: Duration) -> Option<Duration> {
    (waited >= SPIN_TIME).then_some(POLL_INTERVAL)
}

fn aborted() -> Error {
    Error::Device("the group of ranks was aborted".to_owned())
}

fn pointer(address: u64) -> *mut c_void {
    address as *mut c_void
}

/// The `ncclDataType_t` of an element type.
fn nccl_type(elem: Elem) -> Result<NcclDataType> {
    match elem {
        Elem::I8 => Ok(NcclDataType(0)),
        Elem::U8 => Ok(NcclDataType(1)),
        Elem::I32 => Ok(NcclDataType(2)),
        Elem::U32 => Ok(NcclDataType(3)),
        Elem::U64 => Ok(NcclDataType(5)),
        Elem::F16 => Ok(NcclDataType(6)),
        Elem::F32 => Ok(NcclDataType(7)),
        Elem::BF16 => Ok(NcclDataType(9)),
        other => Err(Error::Unsupported(format!("a collective of {other:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A sleep takes several times as long as the call that it waits for.
    #[test]
    fn a_short_call_is_not_slept_for() {
        assert_eq!(pause(Duration::ZERO), None);
        assert_eq!(pause(Duration::from_micros(300)), None);
        assert_eq!(pause(Duration::from_millis(2)), Some(POLL_INTERVAL));
    }
}
