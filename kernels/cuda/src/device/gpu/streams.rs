//! Streams, events and graphs of a GPU.

use std::ffi::c_void;

use cudarc::driver::result::{self, event, graph, stream};
use cudarc::driver::sys::{self, CUevent_flags, CUresult};
use millrace_backend::{Error, Result};

use super::context::Gpu;
use super::raw::{driver_error, elapsed_milliseconds};
use crate::device::driver::{DeviceStream, Freed, StreamCall, StreamDriver};

impl Gpu {
    fn raw_stream(&self, stream: DeviceStream) -> sys::CUstream {
        match stream {
            DeviceStream::Main => self.stream.plain(),
            DeviceStream::Copies => self.copies.0,
        }
    }

    fn free_all(&self, freed: Vec<Freed>) {
        freed.into_iter().for_each(|freed| self.free_now(freed));
    }

    /// Ends the capture and returns a graph that can be launched.
    fn end_capture(&self) -> Result<sys::CUgraphExec> {
        // SAFETY: the stream lives as long as the GPU. The capture must end even if a call was
        // refused in the meantime.
        let ended = unsafe { stream::end_capture(self.stream.plain()) };
        let refused = self.recorder.end();
        let captured = ended.map_err(|e| driver_error("cuStreamEndCapture", e));
        let executable = refused.and_then(|()| match &captured {
            Ok(captured) => {
                // SAFETY: the call above made the graph.
                unsafe { graph::instantiate(*captured, sys::CUgraphInstantiate_flags(0)) }
                    .map_err(|e| driver_error("cuGraphInstantiate", e))
            }
            Err(error) => Err(Error::Device(error.to_string())),
        });
        if let Ok(captured) = captured {
            // SAFETY: the executable graph does not need the captured one.
            let _ = unsafe { graph::destroy(captured) };
        }
        let executable = executable?;
        // SAFETY: graph and stream came from the driver. With an upload now, the first replay is as
        // fast as later ones. If the upload fails, the replay reports the error.
        let _ = unsafe { graph::upload(executable, self.stream.plain()) };
        Ok(executable)
    }
}

impl StreamDriver for Gpu {
    fn pin(&self, bytes: usize) -> Result<u64> {
        self.recorder.forbid("pinning memory")?;
        self.make_context_current()?;
        // SAFETY: the context is current; the memory is written before it is read.
        unsafe {
            let at = result::malloc_host(bytes, 0).map_err(|e| match e.0 {
                CUresult::CUDA_ERROR_OUT_OF_MEMORY => Error::OutOfMemory { what: "pinned memory", bytes },
                _ => driver_error("cuMemHostAlloc", e),
            })?;
            at.cast::<u8>().write_bytes(0, bytes);
            Ok(at as u64)
        }
    }

    unsafe fn unpin(&self, at: u64) {
        if self.recorder.may_free(Freed::Pinned(at)) {
            self.free_now(Freed::Pinned(at));
        }
    }

    unsafe fn upload_pinned(&self, stream: DeviceStream, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.make_context_current()?;
        // SAFETY: the caller guarantees the ranges.
        unsafe { sys::cuMemcpyHtoDAsync_v2(to, from as *const c_void, bytes, self.raw_stream(stream)) }
            .result()
            .map_err(|e| driver_error("cuMemcpyHtoDAsync", e))
    }

    unsafe fn download_pinned(&self, stream: DeviceStream, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.make_context_current()?;
        // SAFETY: the caller guarantees the ranges.
        unsafe { sys::cuMemcpyDtoHAsync_v2(to as *mut c_void, from, bytes, self.raw_stream(stream)) }
            .result()
            .map_err(|e| driver_error("cuMemcpyDtoHAsync", e))
    }

    fn create_event(&self, timed: bool) -> Result<u64> {
        self.make_context_current()?;
        // With this flag a waiting thread sleeps instead of polling.
        let mut flags = CUevent_flags::CU_EVENT_BLOCKING_SYNC as u32;
        if !timed {
            flags |= CUevent_flags::CU_EVENT_DISABLE_TIMING as u32;
        }
        let mut event = std::ptr::null_mut();
        // SAFETY: the argument points to an event.
        unsafe { sys::cuEventCreate(&mut event, flags) }
            .result()
            .map_err(|e| driver_error("cuEventCreate", e))?;
        Ok(event as u64)
    }

    unsafe fn destroy_event(&self, event: u64) {
        if self.make_context_current().is_ok() {
            // SAFETY: the caller says that the event came from this driver and is not used again.
            // An event that is not reached yet is destroyed when it is.
            let _ = unsafe { event::destroy(event as sys::CUevent) };
        }
    }

    unsafe fn record_event(&self, event: u64, stream: DeviceStream) -> Result<()> {
        self.recorder.forbid("an event")?;
        self.make_context_current()?;
        // SAFETY: the caller guarantees the event.
        unsafe { event::record(event as sys::CUevent, self.raw_stream(stream)) }
            .map_err(|e| driver_error("cuEventRecord", e))
    }

    unsafe fn wait_for_event(&self, event: u64) -> Result<()> {
        self.recorder.forbid("a wait for an event")?;
        self.make_context_current()?;
        // SAFETY: as above.
        unsafe { event::synchronize(event as sys::CUevent) }
            .map_err(|e| driver_error("cuEventSynchronize", e))
    }

    unsafe fn is_event_reached(&self, event: u64) -> Result<bool> {
        self.recorder.forbid("a query of an event")?;
        self.make_context_current()?;
        // SAFETY: as above.
        match unsafe { event::query(event as sys::CUevent) } {
            Ok(()) => Ok(true),
            Err(e) if e.0 == CUresult::CUDA_ERROR_NOT_READY => Ok(false),
            Err(e) => Err(driver_error("cuEventQuery", e)),
        }
    }

    unsafe fn make_stream_wait(&self, stream: DeviceStream, event: u64) -> Result<()> {
        if stream == DeviceStream::Main {
            self.recorder.forbid("an event")?;
        }
        self.make_context_current()?;
        let flags = sys::CUevent_wait_flags::CU_EVENT_WAIT_DEFAULT;
        // SAFETY: as above.
        unsafe { stream::wait_event(self.raw_stream(stream), event as sys::CUevent, flags) }
            .map_err(|e| driver_error("cuStreamWaitEvent", e))
    }

    unsafe fn seconds_between(&self, from: u64, to: u64) -> Result<f64> {
        self.make_context_current()?;
        // SAFETY: as above.
        let milliseconds = unsafe { elapsed_milliseconds(from as sys::CUevent, to as sys::CUevent)? };
        Ok(f64::from(milliseconds) / 1e3)
    }

    fn begin_recording(&self) -> Result<()> {
        self.make_context_current()?;
        self.recorder.begin()?;
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream lives as long as the GPU.
        unsafe { stream::begin_capture(self.stream.plain(), mode) }.map_err(|e| {
            let _ = self.recorder.end();
            self.free_all(self.recorder.forget_graph());
            driver_error("cuStreamBeginCapture", e)
        })
    }

    fn end_recording(&self) -> Result<u64> {
        let executable = self.make_context_current().and_then(|()| self.end_capture());
        executable.map(|graph| graph as u64).inspect_err(|_| self.free_all(self.recorder.forget_graph()))
    }

    unsafe fn replay(&self, graph: u64) -> Result<()> {
        self.recorder.forbid("a graph")?;
        self.make_context_current()?;
        // SAFETY: the caller guarantees the graph.
        unsafe { graph::launch(graph as sys::CUgraphExec, self.stream.plain()) }
            .map_err(|e| driver_error("cuGraphLaunch", e))
    }

    unsafe fn destroy_graph(&self, graph: u64) {
        // Waiting would break the recording of another graph.
        let may_go = if self.recorder.is_recording() {
            self.make_context_current().is_ok()
        } else {
            self.is_idle_in_time()
        };
        if may_go {
            // SAFETY: the caller says that the graph came from this driver and is not used again.
            let _ = unsafe { graph::exec_destroy(graph as sys::CUgraphExec) };
        }
        self.free_all(self.recorder.forget_graph());
    }

    fn call_library(&self, work: StreamCall) -> Result<()> {
        self.make_context_current()?;
        work(self.stream.plain() as u64)
    }
}
