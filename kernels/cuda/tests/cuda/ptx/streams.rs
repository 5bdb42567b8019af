//! Pinned memory, events and graphs.

use std::time::Instant;

use millrace_backend::{Error, Result};
use millrace_cuda::{DeviceStream, StreamCall, StreamDriver};

use super::device::PtxDevice;
use super::recording::{Freed, Operation};

impl StreamDriver for PtxDevice {
    fn pin(&self, bytes: usize) -> Result<u64> {
        let mut streams = self.streams();
        streams.forbid("pinning memory")?;
        Ok(streams.pinned.allocate(bytes))
    }

    unsafe fn unpin(&self, at: u64) {
        let freed = self.streams().free(Freed::Pinned(at));
        self.free_all(freed);
    }

    unsafe fn upload_pinned(&self, stream: DeviceStream, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.submit(stream, Operation::Upload { from, to, bytes })
    }

    unsafe fn download_pinned(&self, stream: DeviceStream, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.submit(stream, Operation::Download { from, to, bytes })
    }

    fn create_event(&self, timed: bool) -> Result<u64> {
        let mut streams = self.streams();
        let event = streams.next_number();
        streams.events.insert(event, (timed, None));
        Ok(event)
    }

    unsafe fn destroy_event(&self, event: u64) {
        self.streams().events.remove(&event);
    }

    unsafe fn record_event(&self, event: u64, _stream: DeviceStream) -> Result<()> {
        let mut streams = self.streams();
        streams.forbid("an event")?;
        if let Some((_, reached)) = streams.events.get_mut(&event) {
            *reached = Some(Instant::now());
        }
        Ok(())
    }

    unsafe fn wait_for_event(&self, _event: u64) -> Result<()> {
        self.streams().forbid("a wait for an event")
    }

    unsafe fn is_event_reached(&self, _event: u64) -> Result<bool> {
        self.streams().forbid("a query of an event").map(|()| true)
    }

    unsafe fn make_stream_wait(&self, _stream: DeviceStream, _event: u64) -> Result<()> {
        self.streams().forbid("an event")
    }

    unsafe fn seconds_between(&self, from: u64, to: u64) -> Result<f64> {
        let streams = self.streams();
        let at = |event| match streams.events.get(&event) {
            Some((true, Some(at))) => Some(*at),
            _ => None,
        };
        match (at(from), at(to)) {
            (Some(from), Some(to)) => Ok(to.saturating_duration_since(from).as_secs_f64()),
            _ => Err(Error::Device("the time of an event that is not timed or not reached".to_owned())),
        }
    }

    fn begin_recording(&self) -> Result<()> {
        self.streams().begin()
    }

    fn end_recording(&self) -> Result<u64> {
        let (graph, freed) = {
            let mut streams = self.streams();
            (streams.end(), streams.unused())
        };
        self.free_all(freed);
        graph
    }

    unsafe fn replay(&self, graph: u64) -> Result<()> {
        let operations = {
            let mut streams = self.streams();
            streams.forbid("a graph")?;
            streams.graph(graph)?
        };
        operations.iter().try_for_each(|operation| self.execute(operation))
    }

    unsafe fn destroy_graph(&self, graph: u64) {
        let freed = self.streams().destroy_graph(graph);
        self.free_all(freed);
    }

    fn call_library(&self, work: StreamCall) -> Result<()> {
        self.submit(DeviceStream::Main, Operation::Library(work))
    }
}
