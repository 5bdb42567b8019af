//! Streams, events and graphs of the simulated device.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use millrace_backend::{Error, Result};

use super::allocation::{Allocation, GARBAGE};
use super::queue::{EventState, MAX_QUEUED, OPS_PER_QUERY, QueueState, QueuedOp};
use super::simulated::{Simulated, locked};
use super::{fault, product};
use crate::device::driver::{DeviceStream, Freed, StreamCall, StreamDriver};

impl Simulated {
    fn state(&self) -> MutexGuard<'_, QueueState> {
        locked(&self.queue.state)
    }

    /// Checks that the device still works. A fault is permanent, as on a GPU whose context is lost.
    pub(super) fn check_alive(&self) -> Result<()> {
        let mut state = self.state();
        if state.failure.is_none() && self.fault.occurs() {
            state.fail(fault::MESSAGE.to_owned());
        }
        state.failure.as_ref().map_or(Ok(()), |failure| Err(Error::Device(failure.clone())))
    }

    /// Records `op`, runs it, or queues it behind the work before it.
    pub(super) fn submit(&self, stream: DeviceStream, op: QueuedOp) -> Result<()> {
        self.check_alive()?;
        let mut state = self.state();
        if stream == DeviceStream::Main && state.recording.is_some() {
            return self.record_op(&mut state, op);
        }
        if let Some(known) = op.first_use() {
            state.used.insert(known);
        }
        if state.stream(stream).is_empty() && !op.is_deferred(&state) {
            drop(state);
            // SAFETY: the caller of the driver guarantees the memory.
            return unsafe { self.run(&op) };
        }
        for (at, bytes) in op.pinned_targets() {
            if !op.reads_pinned(at, bytes) && !state.will_read(at, bytes) {
                // SAFETY: the caller of the driver guarantees the memory, which the host does not
                // use until the copy is done.
                unsafe { std::ptr::write_bytes(at as *mut u8, GARBAGE, bytes) };
            }
        }
        state.stream(stream).push_back(Arc::new(op));
        let full = state.stream(stream).len() > MAX_QUEUED;
        drop(state);
        if full { self.advance(stream, &locked(&self.queue.execution)).map(|_| ()) } else { Ok(()) }
    }

    fn record_op(&self, state: &mut QueueState, op: QueuedOp) -> Result<()> {
        if let Some(first) = op.first_use().filter(|known| !state.used.contains(known)) {
            return self.recorder.forbid(&first.to_string());
        }
        match op {
            QueuedOp::RecordEvent { .. } | QueuedOp::WaitEvent { .. } => self.recorder.forbid("an event"),
            QueuedOp::Replay(_) => self.recorder.forbid("a graph"),
            op => {
                state.recording.get_or_insert_default().push(op);
                Ok(())
            }
        }
    }

    /// Runs all work of the stream.
    pub(super) fn drain(&self, stream: DeviceStream) -> Result<()> {
        let execution = locked(&self.queue.execution);
        while self.advance(stream, &execution)? {}
        Ok(())
    }

    pub(super) fn drain_all(&self) -> Result<()> {
        self.drain(DeviceStream::Main)?;
        self.drain(DeviceStream::Copies)
    }

    /// Runs the oldest operation of the stream, if there is one. `execution` shows that no other
    /// thread does.
    fn advance(&self, stream: DeviceStream, execution: &MutexGuard<'_, ()>) -> Result<bool> {
        let next = {
            let mut state = self.state();
            if let Some(failure) = &state.failure {
                return Err(Error::Device(failure.clone()));
            }
            state.stream(stream).front().cloned()
        };
        let Some(op) = next else { return Ok(false) };
        let done = match *op {
            QueuedOp::WaitEvent { event, record } => self.run_until_reached(event, record, execution),
            // SAFETY: the caller of the driver guarantees the memory, which stays until the stream
            // has been drained.
            ref op => unsafe { self.run(op) },
        };
        let mut state = self.state();
        match done {
            // Removed only now, so that work submitted meanwhile queues behind it.
            Ok(()) => drop(state.stream(stream).pop_front()),
            Err(ref error) => {
                state.fail(error.to_string());
            }
        }
        done.map(|()| true)
    }

    /// Runs everything before this record of the event.
    fn run_until_reached(&self, event: u64, record: u64, execution: &MutexGuard<'_, ()>) -> Result<()> {
        loop {
            let stream = {
                let state = self.state();
                match state.events.get(&event).and_then(|marks| marks.stream) {
                    Some(stream) if !state.has_reached(event, record) => stream,
                    _ => return Ok(()),
                }
            };
            if !self.advance(stream, execution)? {
                return Ok(());
            }
        }
    }

    /// # Safety
    /// The memory that `op` names is valid.
    unsafe fn run(&self, op: &QueuedOp) -> Result<()> {
        match *op {
            // SAFETY: the caller guarantees the memory, here and below; all of it is host memory.
            QueuedOp::Launch(ref launch) => unsafe { self.kernels.run(launch) },
            // SAFETY: as above.
            QueuedOp::Product(ref product) => unsafe { product::multiply(product) },
            QueuedOp::Fill { at, value, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(at as *mut u8, value, bytes) };
                Ok(())
            }
            QueuedOp::Copy { from, to, bytes }
            | QueuedOp::Upload { from, to, bytes }
            | QueuedOp::Download { from, to, bytes } => {
                // SAFETY: as above; the ranges do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
                Ok(())
            }
            QueuedOp::LibraryCall(ref work) => work(0),
            // SAFETY: as above.
            QueuedOp::Replay(ref ops) => ops.iter().try_for_each(|op| unsafe { self.run(op) }),
            QueuedOp::RecordEvent { event, record } => {
                if let Some(marks) = self.state().events.get_mut(&event) {
                    marks.reached = marks.reached.max(record);
                    marks.at = marks.timed.then(Instant::now);
                }
                Ok(())
            }
            QueuedOp::WaitEvent { .. } => Ok(()),
        }
    }

    /// The number of the event's last record.
    fn last_record(&self, event: u64) -> u64 {
        self.state().events.get(&event).map_or(0, |marks| marks.record)
    }

    fn free_all(&self, freed: Vec<Freed>) {
        if !freed.is_empty() {
            let _ = self.drain_all();
            freed.into_iter().for_each(|freed| self.free_now(freed));
        }
    }
}

impl StreamDriver for Simulated {
    fn pin(&self, bytes: usize) -> Result<u64> {
        self.recorder.forbid("pinning memory")?;
        self.refuse_if_sealed(bytes)?;
        let allocation = Allocation::new(bytes, self.exact)?;
        let at = allocation.address();
        // SAFETY: the memory has just been allocated.
        unsafe { std::ptr::write_bytes(at as *mut u8, 0, bytes) };
        locked(&self.pinned).insert(at, allocation);
        Ok(at)
    }

    unsafe fn unpin(&self, at: u64) {
        if self.recorder.may_free(Freed::Pinned(at)) {
            self.free_all(vec![Freed::Pinned(at)]);
        }
    }

    unsafe fn upload_pinned(&self, stream: DeviceStream, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.submit(stream, QueuedOp::Upload { from, to, bytes })
    }

    unsafe fn download_pinned(&self, stream: DeviceStream, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.submit(stream, QueuedOp::Download { from, to, bytes })
    }

    fn create_event(&self, timed: bool) -> Result<u64> {
        let mut state = self.state();
        let event = state.next_number();
        state.events.insert(event, EventState { timed, ..EventState::default() });
        Ok(event)
    }

    unsafe fn destroy_event(&self, event: u64) {
        self.state().events.remove(&event);
    }

    unsafe fn record_event(&self, event: u64, stream: DeviceStream) -> Result<()> {
        self.recorder.forbid("an event")?;
        let mut state = self.state();
        let record = state.next_number();
        if let Some(marks) = state.events.get_mut(&event) {
            (marks.stream, marks.record) = (Some(stream), record);
        }
        drop(state);
        self.submit(stream, QueuedOp::RecordEvent { event, record })
    }

    unsafe fn wait_for_event(&self, event: u64) -> Result<()> {
        self.recorder.forbid("a wait for an event")?;
        self.check_alive()?;
        self.run_until_reached(event, self.last_record(event), &locked(&self.queue.execution))?;
        self.check_guards()
    }

    /// Each query runs some queued work: a GPU would execute it while the host loops.
    unsafe fn is_event_reached(&self, event: u64) -> Result<bool> {
        self.recorder.forbid("a query of an event")?;
        self.check_alive()?;
        let (record, stream) =
            (self.last_record(event), self.state().events.get(&event).and_then(|e| e.stream));
        let Some(stream) = stream else { return Ok(self.state().has_reached(event, record)) };
        for _ in 0..OPS_PER_QUERY {
            if self.state().has_reached(event, record) {
                return Ok(true);
            }
            self.advance(stream, &locked(&self.queue.execution))?;
        }
        Ok(self.state().has_reached(event, record))
    }

    unsafe fn make_stream_wait(&self, stream: DeviceStream, event: u64) -> Result<()> {
        self.submit(stream, QueuedOp::WaitEvent { event, record: self.last_record(event) })
    }

    unsafe fn seconds_between(&self, from: u64, to: u64) -> Result<f64> {
        let state = self.state();
        let at = |event| state.events.get(&event).filter(|e| e.record > 0 && e.reached == e.record)?.at;
        match (at(from), at(to)) {
            (Some(from), Some(to)) => Ok(to.saturating_duration_since(from).as_secs_f64()),
            _ => Err(Error::Device("the time of an event that is not timed or not reached".to_owned())),
        }
    }

    fn begin_recording(&self) -> Result<()> {
        self.recorder.begin()?;
        self.state().recording = Some(Vec::new());
        Ok(())
    }

    fn end_recording(&self) -> Result<u64> {
        let mut state = self.state();
        let ops = state.recording.take().unwrap_or_default();
        if let Err(refused) = self.recorder.end() {
            drop(state);
            self.free_all(self.recorder.forget_graph());
            return Err(refused);
        }
        let graph = state.next_number();
        state.graphs.insert(graph, ops.into());
        Ok(graph)
    }

    unsafe fn replay(&self, graph: u64) -> Result<()> {
        let ops = self.state().graphs.get(&graph).cloned();
        let ops = ops.ok_or_else(|| Error::Device(format!("no graph {graph}")))?;
        self.submit(DeviceStream::Main, QueuedOp::Replay(ops))
    }

    unsafe fn destroy_graph(&self, graph: u64) {
        self.state().graphs.remove(&graph);
        self.free_all(self.recorder.forget_graph());
    }

    fn call_library(&self, work: StreamCall) -> Result<()> {
        self.submit(DeviceStream::Main, QueuedOp::LibraryCall(work))
    }
}
