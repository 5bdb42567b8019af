//! Collectives between cards by NVIDIA's library (NCCL).
//!
//! A communicator does not block: calls go to the device's stream, and forming a group, which waits for all ranks, has a
//! deadline. [`Aborter::abort`] ends both from another thread when a rank is known to be lost.

mod library;

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

pub use library::Nccl;
use library::{Code, Comm, Config, DataType, UniqueId};

use super::{Device, Elem, View};
use crate::{Error, Result};

/// How often a call under way is asked whether it is done.
const POLL: Duration = Duration::from_micros(200);

/// One rank's end of a group.
pub struct Communicator {
    shared: Arc<Shared>,
    device: Device,
    rank: usize,
    world_size: usize,
}

/// What the communicator and its aborters have in common.
struct Shared {
    nccl: Arc<Nccl>,
    /// Null once it is aborted.
    comm: Mutex<Handle>,
    aborted: AtomicBool,
    /// How long the host waits for other ranks.
    deadline: Duration,
}

struct Handle(Comm);

// SAFETY: NCCL allows a communicator to be used from any thread, one at a time, which the mutex sees to.
unsafe impl Send for Handle {}

/// Ends a communicator from any thread.
#[derive(Clone)]
pub struct Aborter(Arc<Shared>);

impl Aborter {
    /// Ends what is under way on the device and on the host, now and from now on. A second call does nothing.
    pub fn abort(&self) {
        self.0.aborted.store(true, Ordering::Release);
        self.0.end();
    }
}

impl Shared {
    /// Frees the communicator without waiting for other ranks: one that is gone would be waited for.
    fn end(&self) {
        let mut comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        if !comm.0.is_null() {
            // SAFETY: the communicator is the library's, and nothing uses it after it is null.
            unsafe { (self.nccl.comm_abort)(comm.0) };
            comm.0 = std::ptr::null_mut();
        }
    }

    fn call(&self, name: &str, start: impl Fn(&Nccl, Comm, *mut c_void) -> Code, stream: u64) -> Result<()> {
        let code = {
            let comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
            if comm.0.is_null() {
                return Err(aborted());
            }
            start(&self.nccl, comm.0, stream as *mut c_void)
        };
        self.nccl.check(name, code)?;
        if code == Code::IN_PROGRESS { self.settle(name) } else { Ok(()) }
    }

    /// Waits until the library has finished what was begun on the host.
    fn settle(&self, what: &str) -> Result<()> {
        let since = Instant::now();
        while self.state(what)? == Code::IN_PROGRESS {
            if since.elapsed() > self.deadline {
                self.end();
                return Err(Error::Device(format!(
                    "{what}: not all ranks took part within {} s",
                    self.deadline.as_secs_f32()
                )));
            }
            std::thread::sleep(POLL);
        }
        Ok(())
    }

    fn state(&self, what: &str) -> Result<Code> {
        let comm = self.comm.lock().unwrap_or_else(PoisonError::into_inner);
        if comm.0.is_null() || self.aborted.load(Ordering::Acquire) {
            return Err(aborted());
        }
        let (nccl, mut state) = (&self.nccl, Code::SUCCESS);
        // SAFETY: the communicator is not freed under the lock.
        nccl.check("ncclCommGetAsyncError", unsafe { (nccl.comm_async_error)(comm.0, &mut state) })?;
        nccl.check(what, state)?;
        Ok(state)
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.end();
    }
}

impl Communicator {
    /// Forms a group of `world_size` ranks under the name `id` (see [`Nccl::unique_id`]) and waits for all of them, at most `deadline`;
    /// later waits of the host are bounded by it too.
    ///
    /// # Errors
    /// [`Error::Device`]: what the library fails with, or the deadline.
    pub fn form(
        nccl: Arc<Nccl>,
        device: &Device,
        id: &[u8],
        rank: usize,
        world_size: usize,
        deadline: Duration,
    ) -> Result<Communicator> {
        let id =
            id.try_into().map_err(|_| Error::Device("this is not the name of an NCCL group".to_owned()))?;
        device.make_current()?;
        let (mut comm, mut config) = (std::ptr::null_mut(), Config::not_blocking());
        // SAFETY: the arguments live through the call; the device's context is current.
        let code =
            unsafe { (nccl.comm_init)(&mut comm, world_size as i32, UniqueId(id), rank as i32, &mut config) };
        nccl.check("ncclCommInitRankConfig", code)?;
        let shared =
            Shared { nccl, comm: Mutex::new(Handle(comm)), aborted: AtomicBool::new(false), deadline };
        let formed = Communicator { shared: Arc::new(shared), device: device.clone(), rank, world_size };
        formed.shared.settle("forming the group")?;
        Ok(formed)
    }

    /// This rank's number, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many ranks the group has.
    pub fn world_size(&self) -> usize {
        self.world_size
    }

    /// What ends the group from another thread.
    pub fn aborter(&self) -> Aborter {
        Aborter(self.shared.clone())
    }

    /// Replaces `values` by their sum over all ranks, on the device's stream.
    ///
    /// # Errors
    /// [`Error::Device`]: an aborted group, or what the library fails with.
    pub fn all_reduce(&self, values: View<'_>) -> Result<()> {
        /// `ncclSum`.
        const SUM: i32 = 0;
        let (at, len, kind) = (values.address(), values.len(), wire_type(values.elem())?);
        self.call("ncclAllReduce", move |nccl, comm, stream| {
            // SAFETY: the view lies in an allocation of this device; the communicator is not freed under the lock.
            unsafe { (nccl.all_reduce)(pointer(at), pointer(at), len, kind, SUM, comm, stream) }
        })
    }

    /// Puts every rank's `part` one after the other into `whole`, on the device's stream.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`]; [`Error::Shape`] if `whole` is not as long as all parts.
    pub fn all_gather(&self, part: View<'_>, whole: View<'_>) -> Result<()> {
        whole.expect("whole", part.elem(), part.len() * self.world_size)?;
        let kind = wire_type(part.elem())?;
        let (from, len, to) = (part.address(), part.len(), whole.address());
        self.call("ncclAllGather", move |nccl, comm, stream| {
            // SAFETY: the views lie in allocations and are as long as checked.
            unsafe { (nccl.all_gather)(pointer(from), pointer(to), len, kind, comm, stream) }
        })
    }

    /// Replaces `values` by those of rank 0, on the device's stream.
    ///
    /// # Errors
    /// As for [`Communicator::all_reduce`].
    pub fn broadcast(&self, values: View<'_>) -> Result<()> {
        let (at, len, kind) = (values.address(), values.len(), wire_type(values.elem())?);
        self.call("ncclBroadcast", move |nccl, comm, stream| {
            // SAFETY: the view lies in an allocation of this device.
            unsafe { (nccl.broadcast)(pointer(at), pointer(at), len, kind, 0, comm, stream) }
        })
    }

    /// Whether anything has gone wrong since, on this rank or on the way to another.
    ///
    /// # Errors
    /// [`Error::Device`] with what it was.
    pub fn check(&self) -> Result<()> {
        self.shared.state("a collective").map(|_| ())
    }

    /// Has every rank's device do what `start` asks of the library; a graph does it again.
    fn call(
        &self,
        name: &'static str,
        start: impl Fn(&Nccl, Comm, *mut c_void) -> Code + Send + Sync + 'static,
    ) -> Result<()> {
        let shared = self.shared.clone();
        self.device.call(Arc::new(move |stream| shared.call(name, &start, stream)))
    }
}

impl std::fmt::Debug for Communicator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Communicator({} of {})", self.rank, self.world_size)
    }
}

fn aborted() -> Error {
    Error::Device("the group of ranks was aborted".to_owned())
}

fn pointer(address: u64) -> *mut c_void {
    address as *mut c_void
}

/// `ncclDataType_t` of what travels.
fn wire_type(elem: Elem) -> Result<DataType> {
    match elem {
        Elem::I8 => Ok(DataType(0)),
        Elem::U8 => Ok(DataType(1)),
        Elem::I32 => Ok(DataType(2)),
        Elem::U32 => Ok(DataType(3)),
        Elem::U64 => Ok(DataType(5)),
        Elem::F16 => Ok(DataType(6)),
        Elem::F32 => Ok(DataType(7)),
        Elem::BF16 => Ok(DataType(9)),
        other => Err(Error::Unsupported(format!("a collective of {other:?}"))),
    }
}
