//! Streams, events and graphs of the simulated device.

use std::sync::{Arc, MutexGuard};
use std::time::Instant;

use super::allocation::{Allocation, GARBAGE};
use super::queue::{MOST, Marks, Op, PER_QUESTION, State};
use super::{Simulated, fault, locked, product};
use crate::cuda::recorder::Freed;
use crate::cuda::streams::{Stream, StreamCall, Streams};
use crate::{Error, Result};

impl Simulated {
    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.queue.state)
    }

    /// Whether the device still works: a fault is for good, as on a card whose context is lost.
    pub(super) fn alive(&self) -> Result<()> {
        let mut state = self.state();
        if state.lost.is_none() && self.fault.strikes() {
            state.lose(fault::WORDS.to_owned());
        }
        state.lost.as_ref().map_or(Ok(()), |lost| Err(Error::Device(lost.clone())))
    }

    /// Records `op`, does it, or lets it wait for what is before it.
    pub(super) fn submit(&self, stream: Stream, op: Op) -> Result<()> {
        self.alive()?;
        let mut state = self.state();
        if stream == Stream::Main && state.recording.is_some() {
            return self.write_down(&mut state, op);
        }
        if let Some(known) = op.known() {
            state.known.insert(known);
        }
        if state.of(stream).is_empty() && !op.is_late(&state) {
            drop(state);
            // SAFETY: whoever asked vouched for the memory.
            return unsafe { self.perform(&op) };
        }
        for (at, bytes) in op.targets() {
            if !op.reads_pinned(at, bytes) && !state.will_read(at, bytes) {
                // SAFETY: whoever asked vouched for the memory, which the host does not use until the copy is done.
                unsafe { std::ptr::write_bytes(at as *mut u8, GARBAGE, bytes) };
            }
        }
        state.of(stream).push_back(Arc::new(op));
        let full = state.of(stream).len() > MOST;
        drop(state);
        if full { self.advance(stream, &locked(&self.queue.turn)).map(|_| ()) } else { Ok(()) }
    }

    fn write_down(&self, state: &mut State, op: Op) -> Result<()> {
        if let Some(first) = op.known().filter(|known| !state.known.contains(known)) {
            return self.recorder.forbid(&first.to_string());
        }
        match op {
            Op::Reach { .. } | Op::Hold { .. } => self.recorder.forbid("an event"),
            Op::Replay(_) => self.recorder.forbid("a graph"),
            op => {
                state.recording.get_or_insert_default().push(op);
                Ok(())
            }
        }
    }

    /// Does everything in the stream.
    pub(super) fn drain(&self, stream: Stream) -> Result<()> {
        let turn = locked(&self.queue.turn);
        while self.advance(stream, &turn)? {}
        Ok(())
    }

    pub(super) fn drain_all(&self) -> Result<()> {
        self.drain(Stream::Main)?;
        self.drain(Stream::Copies)
    }

    /// Does the oldest thing in the stream, if there is one. `_turn` shows that nobody else does.
    fn advance(&self, stream: Stream, turn: &MutexGuard<'_, ()>) -> Result<bool> {
        let next = {
            let mut state = self.state();
            if let Some(lost) = &state.lost {
                return Err(Error::Device(lost.clone()));
            }
            state.of(stream).front().cloned()
        };
        let Some(op) = next else { return Ok(false) };
        let done = match *op {
            Op::Hold { event, record } => self.reach(event, record, turn),
            // SAFETY: whoever asked vouched for the memory, which stays until the stream has been drained.
            ref op => unsafe { self.perform(op) },
        };
        let mut state = self.state();
        match done {
            // Only now, so that what is asked for meanwhile waits for it.
            Ok(()) => drop(state.of(stream).pop_front()),
            Err(ref error) => {
                state.lose(error.to_string());
            }
        }
        done.map(|()| true)
    }

    /// Does what is before this record of the event.
    fn reach(&self, event: u64, record: u64, turn: &MutexGuard<'_, ()>) -> Result<()> {
        loop {
            let stream = {
                let state = self.state();
                match state.events.get(&event).and_then(|marks| marks.stream) {
                    Some(stream) if !state.has_reached(event, record) => stream,
                    _ => return Ok(()),
                }
            };
            if !self.advance(stream, turn)? {
                return Ok(());
            }
        }
    }

    /// # Safety
    /// The memory that `op` names is there.
    unsafe fn perform(&self, op: &Op) -> Result<()> {
        match *op {
            // SAFETY: the caller vouches for the memory, here and below; all of it is the host's.
            Op::Launch(ref launch) => unsafe { self.kernels.run(launch) },
            // SAFETY: as above.
            Op::Product(ref product) => unsafe { product::multiply(product) },
            Op::Fill { at, value, bytes } => {
                // SAFETY: as above.
                unsafe { std::ptr::write_bytes(at as *mut u8, value, bytes) };
                Ok(())
            }
            Op::Copy { from, to, bytes } | Op::Write { from, to, bytes } | Op::Read { from, to, bytes } => {
                // SAFETY: as above; the two do not overlap.
                unsafe { std::ptr::copy_nonoverlapping(from as *const u8, to as *mut u8, bytes) };
                Ok(())
            }
            Op::Call(ref work) => work(0),
            // SAFETY: as above.
            Op::Replay(ref ops) => ops.iter().try_for_each(|op| unsafe { self.perform(op) }),
            Op::Reach { event, record } => {
                if let Some(marks) = self.state().events.get_mut(&event) {
                    marks.reached = marks.reached.max(record);
                    marks.at = marks.timed.then(Instant::now);
                }
                Ok(())
            }
            Op::Hold { .. } => Ok(()),
        }
    }

    /// The last record of the event.
    fn last_record(&self, event: u64) -> u64 {
        self.state().events.get(&event).map_or(0, |marks| marks.record)
    }

    fn free_all(&self, freed: Vec<Freed>) {
        if !freed.is_empty() {
            let _ = self.drain_all();
            freed.into_iter().for_each(|freed| self.give_back(freed));
        }
    }
}

impl Streams for Simulated {
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

    unsafe fn write_from(&self, stream: Stream, to: u64, from: u64, bytes: usize) -> Result<()> {
        self.submit(stream, Op::Write { from, to, bytes })
    }

    unsafe fn read_into(&self, stream: Stream, from: u64, to: u64, bytes: usize) -> Result<()> {
        self.submit(stream, Op::Read { from, to, bytes })
    }

    fn event(&self, timed: bool) -> Result<u64> {
        let mut state = self.state();
        let event = state.number();
        state.events.insert(event, Marks { timed, ..Marks::default() });
        Ok(event)
    }

    unsafe fn drop_event(&self, event: u64) {
        self.state().events.remove(&event);
    }

    unsafe fn record_event(&self, event: u64, stream: Stream) -> Result<()> {
        self.recorder.forbid("an event")?;
        let mut state = self.state();
        let record = state.number();
        if let Some(marks) = state.events.get_mut(&event) {
            (marks.stream, marks.record) = (Some(stream), record);
        }
        drop(state);
        self.submit(stream, Op::Reach { event, record })
    }

    unsafe fn await_event(&self, event: u64) -> Result<()> {
        self.recorder.forbid("a wait for an event")?;
        self.alive()?;
        self.reach(event, self.last_record(event), &locked(&self.queue.turn))?;
        self.check_guards()
    }

    /// Each question lets the device do some things more: a card would be through with them while the host goes around its loop.
    unsafe fn has_reached(&self, event: u64) -> Result<bool> {
        self.recorder.forbid("a question after an event")?;
        self.alive()?;
        let (record, stream) =
            (self.last_record(event), self.state().events.get(&event).and_then(|e| e.stream));
        let Some(stream) = stream else { return Ok(self.state().has_reached(event, record)) };
        for _ in 0..PER_QUESTION {
            if self.state().has_reached(event, record) {
                return Ok(true);
            }
            self.advance(stream, &locked(&self.queue.turn))?;
        }
        Ok(self.state().has_reached(event, record))
    }

    unsafe fn hold(&self, stream: Stream, event: u64) -> Result<()> {
        self.submit(stream, Op::Hold { event, record: self.last_record(event) })
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
        let graph = state.number();
        state.graphs.insert(graph, ops.into());
        Ok(graph)
    }

    unsafe fn replay(&self, graph: u64) -> Result<()> {
        let ops = self.state().graphs.get(&graph).cloned();
        let ops = ops.ok_or_else(|| Error::Device(format!("there is no graph {graph}")))?;
        self.submit(Stream::Main, Op::Replay(ops))
    }

    unsafe fn drop_graph(&self, graph: u64) {
        self.state().graphs.remove(&graph);
        self.free_all(self.recorder.forget_graph());
    }

    fn call(&self, work: StreamCall) -> Result<()> {
        self.submit(Stream::Main, Op::Call(work))
    }
}
