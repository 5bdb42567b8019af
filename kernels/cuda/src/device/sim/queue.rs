//! The work that was submitted to a simulated device and is not done yet.
//!
//! A real GPU executes work at a time of its own. The simulation executes it as late as allowed: a
//! copy from or to pinned memory, and everything after it in its stream, runs when somebody waits
//! for it. So a host that changes a source too early, or reads a target too early (it holds garbage
//! until then), sees the same errors that can happen on a GPU. Work with no such copy before it
//! runs at once.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use super::kernels::Launch;
use crate::device::driver::{DeviceStream, Gemm, KernelName, StreamCall};
use crate::device::elem::Elem;

/// The most operations that a stream holds. Beyond it the oldest runs, as on a GPU.
pub(super) const MAX_QUEUED: usize = 1024;

/// Operations that run when somebody asks whether an event is reached.
pub(super) const OPS_PER_QUERY: usize = 30;

/// One operation. Its addresses and numbers are those at the time of the call.
pub(super) enum QueuedOp {
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
    Upload {
        from: u64,
        to: u64,
        bytes: usize,
    },
    /// From the device to pinned memory.
    Download {
        from: u64,
        to: u64,
        bytes: usize,
    },
    LibraryCall(StreamCall),
    Replay(Arc<[QueuedOp]>),
    /// A record of an event; `record` is its number among all records.
    RecordEvent {
        event: u64,
        record: u64,
    },
    WaitEvent {
        event: u64,
        record: u64,
    },
}

/// Work that must have run before a graph may hold it, because the first time loads or chooses
/// something.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum FirstUse {
    Kernel(KernelName),
    Product([usize; 3], Elem, Elem),
}

impl std::fmt::Display for FirstUse {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            FirstUse::Kernel(function) => write!(f, "a first launch of {}", function.name),
            FirstUse::Product(..) => f.write_str("a product of a new shape"),
        }
    }
}

#[derive(Default)]
pub(super) struct StreamQueues {
    pub(super) state: Mutex<QueueState>,
    /// Held by the thread that executes queued work.
    pub(super) execution: Mutex<()>,
}

#[derive(Default)]
pub(super) struct QueueState {
    main: VecDeque<Arc<QueuedOp>>,
    copies: VecDeque<Arc<QueuedOp>>,
    /// The operations of the recording in progress.
    pub(super) recording: Option<Vec<QueuedOp>>,
    pub(super) graphs: HashMap<u64, Arc<[QueuedOp]>>,
    pub(super) events: HashMap<u64, EventState>,
    pub(super) used: HashSet<FirstUse>,
    /// The error of the first failure, after which every call fails.
    pub(super) failure: Option<String>,
    numbers: u64,
}

/// The stream and number of an event's last record, and how far the event has come.
#[derive(Debug, Default)]
pub(super) struct EventState {
    pub(super) stream: Option<DeviceStream>,
    pub(super) record: u64,
    pub(super) reached: u64,
    /// The time when it was last reached, if it is timed.
    pub(super) at: Option<Instant>,
    pub(super) timed: bool,
}

impl QueueState {
    pub(super) fn stream(&mut self, stream: DeviceStream) -> &mut VecDeque<Arc<QueuedOp>> {
        match stream {
            DeviceStream::Main => &mut self.main,
            DeviceStream::Copies => &mut self.copies,
        }
    }

    /// Makes every later call fail, and drops queued work.
    pub(super) fn fail(&mut self, why: String) {
        self.failure = Some(why);
        self.main.clear();
        self.copies.clear();
    }

    /// A new number, unique on this device.
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Whether the event has reached this record, or no longer exists.
    pub(super) fn has_reached(&self, event: u64, record: u64) -> bool {
        self.events.get(&event).is_none_or(|marks| marks.reached >= record)
    }

    /// Whether queued work reads pinned memory in this range.
    pub(super) fn will_read(&self, at: u64, bytes: usize) -> bool {
        self.main.iter().chain(&self.copies).any(|op| op.reads_pinned(at, bytes))
    }
}

impl QueuedOp {
    /// Whether the operation runs as late as possible.
    pub(super) fn is_deferred(&self, state: &QueueState) -> bool {
        match self {
            QueuedOp::Upload { .. } | QueuedOp::Download { .. } | QueuedOp::Replay(_) => true,
            QueuedOp::WaitEvent { event, record } => !state.has_reached(*event, *record),
            _ => false,
        }
    }

    /// The first use that a graph requires to have happened before, if there is one.
    pub(super) fn first_use(&self) -> Option<FirstUse> {
        match self {
            QueuedOp::Launch(launch) => Some(FirstUse::Kernel(launch.function)),
            QueuedOp::Product(p) => {
                Some(FirstUse::Product([p.rows, p.inputs, p.outputs], p.elem, p.out_elem))
            }
            _ => None,
        }
    }

    /// Whether the operation reads pinned memory in this range.
    pub(super) fn reads_pinned(&self, at: u64, len: usize) -> bool {
        match self {
            QueuedOp::Upload { from, bytes, .. } => *from < at + len as u64 && at < *from + *bytes as u64,
            QueuedOp::Replay(ops) => ops.iter().any(|op| op.reads_pinned(at, len)),
            _ => false,
        }
    }

    /// The ranges of pinned memory that the operation writes to.
    pub(super) fn pinned_targets(&self) -> Vec<(u64, usize)> {
        match self {
            QueuedOp::Download { to, bytes, .. } => vec![(*to, *bytes)],
            QueuedOp::Replay(ops) => ops.iter().flat_map(QueuedOp::pinned_targets).collect(),
            _ => Vec::new(),
        }
    }
}

impl std::fmt::Debug for StreamQueues {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("StreamQueues")
    }
}
