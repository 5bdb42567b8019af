//! Streams, events and graphs of a card.

use std::ffi::c_void;

use cudarc::driver::result::{self, event, graph, stream};
use cudarc::driver::sys::{self, CUevent_flags, CUresult};

use super::{Card, failed};
use crate::cuda::driver::Driver;
use crate::cuda::recorder::Freed;
use crate::cuda::streams::{Stream, StreamCall, Streams};
use crate::{Error, Result};

impl Card {
    fn of(&self, stream: Stream) -> sys::CUstream {
        match stream {
            Stream::Main => self.stream.plain(),
            Stream::Copies => self.copies.0,
        }
    }

    fn give_all_back(&self, freed: Vec<Freed>) {
        freed.into_iter().for_each(|freed| self.give_back(freed));
    }

    /// Ends the capture; what it has led to can be launched.
    fn end_capture(&self) -> Result<sys::CUgraphExec> {
        // The capture ends whatever was refused on the way.
        // SAFETY: the stream lives as long as the card.
        let ended = unsafe { stream::end_capture(self.stream.plain()) };
        let refused = self.recorder.end();
        let captured = ended.map_err(|e| failed("cuStreamEndCapture", e));
        let made = refused.and_then(|()| match &captured {
            Ok(captured) => {
                // SAFETY: the graph was made by the call above.
                unsafe { graph::instantiate(*captured, sys::CUgraphInstantiate_flags(0)) }
                    .map_err(|e| failed("cuGraphInstantiate", e))
            }
            Err(error) => Err(Error::Device(error.to_string())),
        });
        if let Ok(captured) = captured {
            // SAFETY: what was made of the graph does not need it.
            let _ = unsafe { graph::destroy(captured) };
        }
        let made = made?;
        // So that the first replay is as fast as the others. Where that fails, the replay says why.
        // SAFETY: graph and stream are the driver's.
        let _ = unsafe { graph::upload(made, self.stream.plain()) };
        Ok(made)
    }
}

impl Streams for Card {
    fn pin(&self, bytes: usize) -> Result<u64> {
        self.recorder.forbid("pinning memory")?;
        self.make_current()?;
        // SAFETY: the context is current; the memory is written to before anybody reads it.
        unsafe {
            let at = result::malloc_host(bytes, 0).map_err(|e| match e.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { what: "pinned memory", bytes },
                _ => failed("cuMemHostAlloc", e),
            })?;
            at.cast::<u8>().write_bytes(0, bytes);
            Ok(at as u64)
        }
    }

    unsafe fn unpin(&self, at: u64) {
        if self.recorder.may_free(Freed::Pinned(at)) {
            self.give_back(Freed::Pinned(at));
        }
    }

    unsafe fn write_from(&self, stream: Stream, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.make_current()?;
        // SAFETY: the caller vouches for the memory.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, self.of(stream)) }
            .result()
            .map_err(|e| failed("cuMemcpyHtoDAsync", e))
    }

    unsafe fn read_into(&self, stream: Stream, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.make_current()?;
        // SAFETY: the caller vouches for the memory.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, self.of(stream)) }
            .result()
            .map_err(|e| failed("cuMemcpyDtoHAsync", e))
    }

    fn event(&self, timed: bool) -> Result<u64> {
        self.make_current()?;
        // The host sleeps in a wait: it has better things to do than to poll.
        let mut flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        if !timed {
            flags |= CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        }
        let mut event = std::ptr::null_mut();
        // SAFETY: the argument is where the answer goes.
        unsafe { sys::cuEventCreate(&mut event, flags) }.result().map_err(|e| failed("cuEventCreate", e))?;
        Ok(event as u64)
    }

    unsafe fn drop_event(&self, event: u64) {
        if self.make_current().is_ok() {
            // One that is not reached yet is destroyed when it is.
            // SAFETY: the caller says that the event is this driver's and not used again.
            let _ = unsafe { event::destroy(event as sys::CUevent) };
        }
    }

    unsafe fn record_event(&self, event: u64, stream: Stream) -> Result<()> {
        self.recorder.forbid("an event")?;
        self.make_current()?;
        // SAFETY: the caller vouches for the event.
        unsafe { event::record(event as sys::CUevent, self.of(stream)) }
            .map_err(|e| failed("cuEventRecord", e))
    }

    unsafe fn await_event(&self, event: u64) -> Result<()> {
        self.recorder.forbid("a wait for an event")?;
        self.make_current()?;
        // SAFETY: as above.
        unsafe { event::synchronize(event as sys::CUevent) }.map_err(|e| failed("cuEventSynchronize", e))
    }

    unsafe fn has_reached(&self, event: u64) -> Result<bool> {
        self.recorder.forbid("a question after an event")?;
        self.make_current()?;
        // SAFETY: as above.
        match unsafe { event::query(event as sys::CUevent) } {
            Ok(()) => Ok(true),
            Err(e) if e.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(failed("cuEventQuery", e)),
        }
    }

    unsafe fn hold(&self, stream: Stream, event: u64) -> Result<()> {
        if stream == Stream::Main {
            self.recorder.forbid("an event")?;
        }
        self.make_current()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe { stream::wait_event(self.of(stream), event as sys::CUevent, flags) }
            .map_err(|e| failed("cuStreamWaitEvent", e))
    }

    unsafe fn seconds_between(&self, from: u64, to: u64) -> Result<f64> {
        self.make_current()?;
        // SAFETY: as above.
        let milliseconds = unsafe { event::elapsed(from as sys::CUevent, to as sys::CUevent) };
        Ok(f64::from(milliseconds.map_err(|e| failed("cuEventElapsedTime", e))?) / 1e3)
    }

    fn begin_recording(&self) -> Result<()> {
        self.make_current()?;
        self.recorder.begin()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the card.
        unsafe { stream::begin_capture(self.stream.plain(), mode) }.map_err(|e| {
            let _ = self.recorder.end();
            self.give_all_back(self.recorder.forget_graph());
            failed("cuStreamBeginCapture", e)
        })
    }

    fn end_recording(&self) -> Result<u64> {
        let made = self.make_current().and_then(|()| self.end_capture());
        made.map(|made| made as u64).inspect_err(|_| self.give_all_back(self.recorder.forget_graph()))
    }

    unsafe fn replay(&self, graph: u64) -> Result<()> {
        self.recorder.forbid("a graph")?;
        self.make_current()?;
        // SAFETY: the caller vouches for the graph.
        unsafe { graph::launch(graph as sys::CUgraphExec, self.stream.plain()) }
            .map_err(|e| failed("cuGraphLaunch", e))
    }

    unsafe fn drop_graph(&self, graph: u64) {
        // A wait would spoil the recording of another.
        let may_go =
            if self.recorder.is_recording() { self.make_current().is_ok() } else { self.comes_to_rest() };
        if may_go {
            // SAFETY: the caller says that the graph is this driver's and not used again.
            let _ = unsafe { graph::exec_destroy(graph as sys::CUgraphExec) };
        }
        self.give_all_back(self.recorder.forget_graph());
    }

    fn call(&self, work: StreamCall) -> Result<()> {
        self.make_current()?;
        work(self.stream.plain() as u64)
    }
}
