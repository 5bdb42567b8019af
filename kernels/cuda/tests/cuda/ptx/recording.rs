//! Operations, and graphs as lists of them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Instant;

use millrace_backend::{Error, Result};
use millrace_cuda::{Elem, Gemm, Grid, KernelName, StreamCall};

use super::pinned::PinnedMemory;

/// An operation that a graph can hold.
#[derive(Clone)]
pub(super) enum Operation {
    Launch { name: KernelName, grid: Grid, params: Vec<u8> },
    Product(Gemm),
    Fill { at: u64, value: u8, bytes: usize },
    Copy { from: u64, to: u64, bytes: usize },
    Upload { from: u64, to: u64, bytes: usize },
    Download { from: u64, to: u64, bytes: usize },
    Library(StreamCall),
}

/// Work that must have been done once before a graph may hold it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) enum FirstUse {
    Kernel(KernelName),
    Product([usize; 3], Elem, Elem),
}

impl FirstUse {
    fn of(operation: &Operation) -> Option<FirstUse> {
        match operation {
            Operation::Launch { name, .. } => Some(FirstUse::Kernel(*name)),
            Operation::Product(p) => {
                Some(FirstUse::Product([p.rows, p.inputs, p.outputs], p.elem, p.out_elem))
            }
            _ => None,
        }
    }

    fn describe(&self) -> String {
        match self {
            FirstUse::Kernel(name) => format!("a first launch of {}", name.name),
            FirstUse::Product(..) => "a product of a new shape".to_owned(),
        }
    }
}

/// Memory that somebody has freed while a graph exists.
#[derive(Debug, Clone, Copy)]
pub(super) enum Freed {
    Device(u64),
    Pinned(u64),
}

/// The state of streams: all work that was submitted is done.
#[derive(Default)]
pub(super) struct Streams {
    pub(super) pinned: PinnedMemory,
    pub(super) recording: Option<Vec<Operation>>,
    refused: Option<String>,
    graphs: HashMap<u64, Arc<[Operation]>>,
    used: HashSet<FirstUse>,
    freed: Vec<Freed>,
    /// Events by number: whether an event is timed, and when it was reached.
    pub(super) events: HashMap<u64, (bool, Option<Instant>)>,
    numbers: u64,
    /// The message of the first failure, after which every call fails.
    pub(super) failure: Option<String>,
}

impl Streams {
    pub(super) fn next_number(&mut self) -> u64 {
        self.numbers += 1;
        self.numbers
    }

    /// Refuses a call that a graph cannot hold, and any call after a failure.
    pub(super) fn forbid(&mut self, what: &str) -> Result<()> {
        if let Some(failure) = &self.failure {
            return Err(Error::Device(failure.clone()));
        }
        if self.recording.is_none() {
            return Ok(());
        }
        let refused = format!("{what} is not possible while a graph is recorded");
        self.refused.get_or_insert_with(|| refused.clone());
        Err(Error::Device(refused))
    }

    /// Records the operation and returns true, or notes that it is done at once.
    pub(super) fn record(&mut self, operation: &Operation) -> Result<bool> {
        if let Some(failure) = &self.failure {
            return Err(Error::Device(failure.clone()));
        }
        let first = FirstUse::of(operation);
        let Some(recording) = &mut self.recording else {
            self.used.extend(first);
            return Ok(false);
        };
        match first.filter(|first| !self.used.contains(first)) {
            Some(first) => self.forbid(&first.describe()).map(|()| true),
            None => {
                recording.push(operation.clone());
                Ok(true)
            }
        }
    }

    pub(super) fn begin(&mut self) -> Result<()> {
        if self.recording.is_some() {
            return Err(Error::Device("a graph is already being recorded".to_owned()));
        }
        (self.recording, self.refused) = (Some(Vec::new()), None);
        Ok(())
    }

    pub(super) fn end(&mut self) -> Result<u64> {
        let operations = self.recording.take().unwrap_or_default();
        if let Some(refused) = self.refused.take() {
            return Err(Error::Device(refused));
        }
        let graph = self.next_number();
        self.graphs.insert(graph, operations.into());
        Ok(graph)
    }

    pub(super) fn graph(&self, graph: u64) -> Result<Arc<[Operation]>> {
        let found = self.graphs.get(&graph).cloned();
        found.ok_or_else(|| Error::Device(format!("no graph {graph}")))
    }

    /// Notes that memory is free, and returns what may be freed now.
    pub(super) fn free(&mut self, freed: Freed) -> Vec<Freed> {
        self.freed.push(freed);
        self.unused()
    }

    pub(super) fn destroy_graph(&mut self, graph: u64) -> Vec<Freed> {
        self.graphs.remove(&graph);
        self.unused()
    }

    /// A graph, also one that is being recorded, may use any memory that existed.
    pub(super) fn unused(&mut self) -> Vec<Freed> {
        let is_free = self.graphs.is_empty() && self.recording.is_none();
        if is_free { std::mem::take(&mut self.freed) } else { Vec::new() }
    }
}
