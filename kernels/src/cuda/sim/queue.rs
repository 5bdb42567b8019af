//! What a simulated device has been asked for and has not done yet.
//!
//! A card does things at a time of its own. The simulation does them as late as it may: a copy from or to pinned memory, and everything after it in
//! its stream, happens when somebody waits for it. So a host that changes a source too early, or reads a target too early (it holds garbage until
//! then), sees what on a card it would see on a bad day. Work that no such copy is before happens at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::kernels::Launch;
use crate::cuda::driver::{Function, Gemm};
use crate::cuda::memory::Elem;
use crate::cuda::streams::{Stream, StreamCall};

/// The most that a stream holds before the oldest of it is done, as on a card.
pub(super) const MOST: usize = 1024;

/// Things that a stream does when somebody asks how far it is.
pub(super) const PER_QUESTION: usize = 30;

/// Something to do. Addresses and numbers are those of the moment it was asked for.
pub(super) enum Op {
    Launch(Launch),
    Product(Gemm),
    Fill {
        at: u64,
        value: u8,
        bytes: usize,
    },
    Copy {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// From pinned memory to the device.
    Write {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// From the device to pinned memory.
    Read {
        from: u64,
        to: u64,
        bytes: usize,
    },
    Call(StreamCall),
    Replay(Arc<[Op]>),
    /// The record of an event by its number among all records.
    Reach {
        event: u64,
        record: u64,
    },
    Hold {
        event: u64,
        record: u64,
    },
}

/// What must have been done before a graph may hold it, because the first time loads or chooses something.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum Known {
    Kernel(Function),
    Product([usize; 3], Elem, Elem),
}

impl std::fmt::Display for Known {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Known::Kernel(function) => write!(f, "a first launch of {}", function.name),
            Known::Product(..) => f.write_str("a product of a new shape"),
        }
    }
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) state: Mutex<State>,
    /// Held by whoever does what is queued.
    pub(super) turn: Mutex<()>,
}

#[derive(Default)]
pub(super) struct State {
    main: VecDeque<Arc<Op>>,
    copies: VecDeque<Arc<Op>>,
    /// What the recording under way holds.
    pub(super) recording: Option<Vec<Op>>,
    pub(super) graphs: HashMap<u64, Arc<[Op]>>,
    pub(super) events: HashMap<u64, Marks>,
    pub(super) known: HashSet<Known>,
    /// What has failed, after which nothing works.
    pub(super) lost: Option<String>,
    numbers: u64,
}

/// Where an event was last recorded, and how far it has come.
#[derive(Debug, Default)]
pub(super) struct Marks {
    pub(super) stream: Option<Stream>,
    pub(super) record: u64,
    pub(super) reached: u64,
    /// When it was last reached, if it is timed.
    pub(super) at: Option<Instant>,
    pub(super) timed: bool,
}

impl State {
    pub(super) fn of(&mut self, stream: Stream) -> &mut VecDeque<Arc<Op>> {
        match stream {
            Stream::Main => &mut self.main,
            Stream::Copies => &mut self.copies,
        }
    }

    /// From now on nothing works, and what was queued never happens.
    pub(super) fn lose(&mut self, why: String) {
        self.lost = Some(why);
        self.main.clear();
        self.copies.clear();
    }

    /// A number that nothing else has.
    pub(super) fn number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Whether the event has come as far as this record of it, or is no more.
    pub(super) fn has_reached(&self, event: u64, record: u64) -> bool {
        self.events.get(&event).is_none_or(|marks| marks.reached >= record)
    }

    /// Whether anything that is to be done reads pinned memory in this range.
    pub(super) fn will_read(&self, at: u64, bytes: usize) -> bool {
        self.main.iter().chain(&self.copies).any(|op| op.reads_pinned(at, bytes))
    }
}

impl Op {
    /// Whether it is done as late as possible.
    pub(super) fn is_late(&self, state: &State) -> bool {
        match self {
            Op::Write { .. } | Op::Read { .. } | Op::Replay(_) => true,
            Op::Hold { event, record } => !state.has_reached(*event, *record),
            _ => false,
        }
    }

    /// What a graph needs to know of it.
    pub(super) fn known(&self) -> Option<Known> {
        match self {
            Op::Launch(launch) => Some(Known::Kernel(launch.function)),
            Op::Product(p) => Some(Known::Product([p.rows, p.inputs, p.outputs], p.elem, p.out_elem)),
            _ => None,
        }
    }

    /// Whether it reads pinned memory in this range.
    pub(super) fn reads_pinned(&self, at: u64, len: usize) -> bool {
        match self {
            Op::Write { from, bytes, .. } => *from < at + len as u64 && at < *from + *bytes as u64,
            Op::Replay(ops) => ops.iter().any(|op| op.reads_pinned(at, len)),
            _ => false,
        }
    }

    /// The pinned memory that it writes to.
    pub(super) fn targets(&self) -> Vec<(u64, usize)> {
        match self {
            Op::Read { to, bytes, .. } => vec![(*to, *bytes)],
            Op::Replay(ops) => ops.iter().flat_map(Op::targets).collect(),
            _ => Vec::new(),
        }
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Queue")
    }
}
