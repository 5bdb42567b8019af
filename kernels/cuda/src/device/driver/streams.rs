//! The driver's calls for streams, events and graphs.

use std::fmt::Debug;
use std::sync::Arc;

use millrace_backend::Result;

/// One of a device's two streams. Work on one stream is ordered with work on the other only by
/// events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceStream {
    /// The default stream: launches, products and copies that do not say otherwise.
    Main,
    /// The stream for copies that overlap with computation.
    Copies,
}

/// A library call that submits work to a raw stream. It receives the stream, and is called again
/// when a recording that contains it is replayed.
pub type StreamCall = Arc<dyn Fn(u64) -> Result<()> + Send + Sync>;

/// The part of [`super::interface::Driver`] for asynchronous copies, events and graphs.
///
/// Pinned memory, events and graphs are identified by numbers from the driver. Direct users of this
/// trait must free each exactly once; the safe wrappers are [`crate::Pinned`],
/// [`crate::DeviceEvent`] and [`crate::Graph`].
pub trait StreamDriver: Send + Sync + Debug {
    /// Allocates `bytes` bytes of zeroed, pinned host memory and returns their address.
    ///
    /// # Errors
    /// [`millrace_backend::Error::OutOfMemory`] if the host has less memory to pin.
    fn pin(&self, bytes: usize) -> Result<u64>;
    /// Frees pinned memory once no copy in flight and no graph uses it.
    ///
    /// # Safety
    /// `at` came from [`StreamDriver::pin`] and is not used again.
    unsafe fn unpin(&self, at: u64);
    /// Starts a copy of `bytes` bytes from pinned memory to the device.
    ///
    /// # Safety
    /// `[from, from + bytes)` lies in pinned memory, `[to, to + bytes)` in one allocation.
    unsafe fn upload_pinned(&self, stream: DeviceStream, to: u64, from: u64, bytes: usize) -> Result<()>;
    /// Starts a copy of `bytes` bytes from the device to pinned memory.
    ///
    /// # Safety
    /// `[from, from + bytes)` lies in one allocation, `[to, to + bytes)` in pinned memory.
    unsafe fn download_pinned(&self, stream: DeviceStream, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// Creates an event that has not been recorded. Only a `timed` event knows when it was reached.
    fn create_event(&self, timed: bool) -> Result<u64>;
    /// Destroys an event.
    ///
    /// # Safety
    /// The event came from [`StreamDriver::create_event`] and is not used again.
    unsafe fn destroy_event(&self, event: u64);
    /// Records the event: it is reached when all work submitted to `stream` so far is done. An
    /// earlier record is forgotten.
    ///
    /// # Safety
    /// As for all methods that take an event: the event came from [`StreamDriver::create_event`] of
    /// this driver and has not been destroyed.
    unsafe fn record_event(&self, event: u64, stream: DeviceStream) -> Result<()>;
    /// Blocks the calling thread until the event is reached. An event that was never recorded
    /// counts as reached.
    ///
    /// # Safety
    /// As for [`StreamDriver::record_event`].
    unsafe fn wait_for_event(&self, event: u64) -> Result<()>;
    /// Whether the event is reached; does not wait.
    ///
    /// # Safety
    /// As for [`StreamDriver::record_event`].
    unsafe fn is_event_reached(&self, event: u64) -> Result<bool>;
    /// Makes later work on `stream` wait for the event as it was last recorded.
    ///
    /// # Safety
    /// As for [`StreamDriver::record_event`].
    unsafe fn make_stream_wait(&self, stream: DeviceStream, event: u64) -> Result<()>;
    /// Seconds between two timed events; both must be reached.
    ///
    /// # Safety
    /// As for [`StreamDriver::record_event`].
    unsafe fn seconds_between(&self, from: u64, to: u64) -> Result<f64>;

    /// Starts a recording: work submitted to the main stream is recorded instead of executed, until
    /// [`StreamDriver::end_recording`].
    fn begin_recording(&self) -> Result<()>;
    /// Ends the recording and returns a graph that is ready to be replayed. Fails if a call was
    /// made that a graph cannot hold.
    fn end_recording(&self) -> Result<u64>;
    /// Submits everything that was recorded once more, to the main stream.
    ///
    /// # Safety
    /// The graph came from [`StreamDriver::end_recording`] and has not been destroyed.
    unsafe fn replay(&self, graph: u64) -> Result<()>;
    /// Destroys a graph once it is no longer executing.
    ///
    /// # Safety
    /// The graph came from [`StreamDriver::end_recording`] and is not used again.
    unsafe fn destroy_graph(&self, graph: u64);

    /// Lets a library submit its work to the main stream.
    fn call_library(&self, work: StreamCall) -> Result<()>;
}
