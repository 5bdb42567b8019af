//! What a driver does beside one order of things: copies that do not wait, events, and recordings that are replayed.

use std::fmt::Debug;
use std::sync::Arc;

use crate::Result;

/// One of a device's two orders of things. What happens in one is not ordered with the other but by events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stream {
    /// Where everything happens that does not say otherwise.
    Main,
    /// Copies beside the computation.
    Copies,
}

/// A call of a library that works on a raw stream: it is given the stream, and may be called again when a recording of it is replayed.
pub type StreamCall = Arc<dyn Fn(u64) -> Result<()> + Send + Sync>;

/// The part of a [`super::Driver`] that has to do with time: who waits for whom, and what is done again.
///
/// Pinned memory, events and graphs go by numbers that the driver gives out. Whoever uses this trait directly gives each back once; the
/// safe way to it are [`super::Pinned`], [`super::Event`] and [`super::Graph`].
pub trait Streams: Send + Sync + Debug {
    /// Zeroed host memory of `bytes` bytes that copies reach by themselves; its address.
    ///
    /// # Errors
    /// [`crate::Error::OutOfMemory`] if there is not as much.
    fn pin(&self, bytes: usize) -> Result<u64>;
    /// Gives pinned memory back once nothing uses it: no copy under way, and no graph.
    ///
    /// # Safety
    /// `at` came from [`Streams::pin`] and is not used again.
    unsafe fn unpin(&self, at: u64);
    /// Starts a copy of `bytes` bytes of pinned memory to the device.
    ///
    /// # Safety
    /// `[from, from + bytes)` lies in pinned memory, `[to, to + bytes)` in one allocation.
    unsafe fn write_from(&self, stream: Stream, to: u64, from: u64, bytes: usize) -> Result<()>;
    /// Starts a copy of `bytes` bytes of the device's memory to pinned memory.
    ///
    /// # Safety
    /// `[from, from + bytes)` lies in one allocation, `[to, to + bytes)` in pinned memory.
    unsafe fn read_into(&self, stream: Stream, from: u64, to: u64, bytes: usize) -> Result<()>;

    /// An event that has not been recorded. Only a `timed` one knows when it was reached.
    fn event(&self, timed: bool) -> Result<u64>;
    /// Gives an event back.
    ///
    /// # Safety
    /// It came from [`Streams::event`] and is not used again.
    unsafe fn drop_event(&self, event: u64);
    /// The event is reached when everything asked of `stream` so far is done; an earlier record of it is forgotten.
    ///
    /// # Safety
    /// As for all that takes an event: it came from [`Streams::event`] of this driver and was not given back.
    unsafe fn record_event(&self, event: u64, stream: Stream) -> Result<()>;
    /// Lets the calling thread sleep until the event is reached. One that was never recorded is.
    ///
    /// # Safety
    /// As for [`Streams::record_event`].
    unsafe fn await_event(&self, event: u64) -> Result<()>;
    /// Whether the event is reached, without waiting.
    ///
    /// # Safety
    /// As for [`Streams::record_event`].
    unsafe fn has_reached(&self, event: u64) -> Result<bool>;
    /// Lets what is asked of `stream` from now on wait for the event as it was last recorded.
    ///
    /// # Safety
    /// As for [`Streams::record_event`].
    unsafe fn hold(&self, stream: Stream, event: u64) -> Result<()>;
    /// Seconds from one timed event to another; both are reached.
    ///
    /// # Safety
    /// As for [`Streams::record_event`].
    unsafe fn seconds_between(&self, from: u64, to: u64) -> Result<f64>;

    /// From now on what is asked of the main stream is written down instead of done, until [`Streams::end_recording`].
    fn begin_recording(&self) -> Result<()>;
    /// What was written down, ready to be done; an error if something was asked for that a graph cannot hold.
    fn end_recording(&self) -> Result<u64>;
    /// Does everything that was written down once more, on the main stream.
    ///
    /// # Safety
    /// The graph came from [`Streams::end_recording`] and was not given back.
    unsafe fn replay(&self, graph: u64) -> Result<()>;
    /// Gives a graph back once it is not under way.
    ///
    /// # Safety
    /// It came from [`Streams::end_recording`] and is not used again.
    unsafe fn drop_graph(&self, graph: u64);

    /// Has a library do its part on the main stream.
    fn call(&self, work: StreamCall) -> Result<()>;
}
