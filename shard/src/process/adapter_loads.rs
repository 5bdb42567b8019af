//! The adapters that the router loads and unloads while the shard answers steps.
//!
//! A thread reads the adapter, so that steps go on meanwhile. The loop over steps then copies it
//! into the pools between two steps. The router sends a load after the answer to the one before it,
//! so at most one adapter is in memory beside the pools.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use millrace_model::adapters::{Adapter, AdapterError};
use millrace_model::split::Split;
use millrace_model::{AdapterLimits, WeightSlot};
use millrace_proto::{AdapterLoaded, LoadAdapter, UnloadAdapter};

use crate::Error;
use crate::decoder::RankAdapter;
use crate::step_engine::{ReadAdapter, StepEngine};

/// Opens the adapter in a folder and matches it to the model.
pub type OpenAdapter = Arc<dyn Fn(&Path) -> Result<Adapter, AdapterError> + Send + Sync>;

/// How a rank reads adapters.
#[derive(Clone)]
pub(crate) struct AdapterReader {
    pub(crate) open: OpenAdapter,
    /// The rank.
    pub(crate) split: Split,
    /// The matrices of this rank that adapters can change.
    pub(crate) slots: Vec<WeightSlot>,
    /// The largest rank that the pools have room for.
    pub(crate) max_rank: usize,
}

/// The adapters of a rank, and the one that is being read.
pub(crate) struct AdapterLoads {
    /// `None` if the shard computes nothing, and so reads nothing.
    reader: Option<AdapterReader>,
    /// The folders with which the shard was started.
    listed: Vec<PathBuf>,
    /// The number of the adapter in each place.
    places: Vec<Option<u32>>,
    reading: Option<(LoadAdapter, Receiver<Result<AdapterContents, Error>>)>,
}

/// A rank's share of an adapter, and the files that it was read from.
#[derive(Debug, Default)]
struct AdapterContents {
    weights: RankAdapter,
    identity: String,
}

impl AdapterReader {
    /// Reads this rank's share of the adapter in `folder`.
    fn read(&self, folder: &Path) -> Result<AdapterContents, Error> {
        let adapter = (self.open)(folder)?;
        let rank = adapter.max_rank();
        // The numbers are read only after this check, so the pools bound their size.
        if rank > self.max_rank {
            return Err(Error::Unsupported(format!(
                "the adapter in {} has rank {rank}, but --max-lora-rank is {}",
                folder.display(),
                self.max_rank
            )));
        }
        let mut weights = BTreeMap::new();
        for &slot in &self.slots {
            weights.extend(adapter.weights(slot, self.split)?.map(|found| (slot, found)));
        }
        Ok(AdapterContents { weights, identity: adapter.identity().to_owned() })
    }
}

impl AdapterLoads {
    /// Creates the list of adapters of a rank whose pools have `limits.count` free places. `listed`
    /// are the folders with which the shard was started.
    pub(crate) fn new(reader: Option<AdapterReader>, listed: &[PathBuf], limits: AdapterLimits) -> Self {
        AdapterLoads { reader, listed: listed.to_vec(), places: vec![None; limits.count], reading: None }
    }

    /// Tells whether an adapter is being read.
    pub(super) fn is_reading(&self) -> bool {
        self.reading.is_some()
    }

    /// Starts to read an adapter.
    ///
    /// # Errors
    /// [`Error::OutOfPlace`] if the router breaks the contract.
    pub(super) fn start(&mut self, load: LoadAdapter) -> Result<(), Error> {
        let is_free = self.places.get(load.place as usize).is_some_and(Option::is_none);
        if self.reading.is_some() || !is_free {
            return Err(Error::OutOfPlace);
        }
        let (sender, receiver) = mpsc::channel();
        let work = self.work(&load);
        // A receiver that is gone means that the shard ends.
        let read = move || drop(sender.send(work()));
        if let Err(error) = thread::Builder::new().name("adapter".into()).spawn(read) {
            let (failed, result) = mpsc::channel();
            let reason = format!("cannot start the thread that reads an adapter: {error}");
            let _ = failed.send(Err(Error::Unsupported(reason)));
            self.reading = Some((load, result));
        } else {
            self.reading = Some((load, receiver));
        }
        Ok(())
    }

    /// Returns the work of the thread that reads an adapter.
    fn work(&self, load: &LoadAdapter) -> impl FnOnce() -> Result<AdapterContents, Error> + Send + 'static {
        let reader = self.reader.clone();
        let folder = match load.listed {
            None => Ok(PathBuf::from(&load.folder)),
            Some(index) => self.listed.get(index as usize).cloned().ok_or_else(|| {
                Error::Unsupported("this machine was started with fewer adapters than the leader".to_owned())
            }),
        };
        move || match reader {
            Some(reader) => reader.read(&folder?),
            None => folder.map(|_| AdapterContents::default()),
        }
    }

    /// Copies the adapter that has been read into its place, and returns the answer to the router.
    /// Returns `None` if nothing has been read. No step may be in flight.
    pub(super) fn finish(&mut self, engine: &mut impl StepEngine) -> Option<AdapterLoaded> {
        let (_, receiver) = self.reading.as_ref()?;
        let read = match receiver.try_recv() {
            Ok(read) => read,
            Err(TryRecvError::Empty) => return None,
            Err(TryRecvError::Disconnected) => {
                Err(Error::Unsupported("the thread that reads the adapter has failed".to_owned()))
            }
        };
        let (LoadAdapter { adapter, place, .. }, _) = self.reading.take()?;
        let loaded = read.and_then(|contents| {
            let read = ReadAdapter { number: adapter, weights: &contents.weights };
            engine.set_adapter(place as usize, Some(read))?;
            Ok(contents.identity)
        });
        Some(match loaded {
            Ok(identity) => {
                self.places[place as usize] = Some(adapter);
                AdapterLoaded { adapter, identity, error: String::new() }
            }
            Err(error) => AdapterLoaded { adapter, error: error.to_string(), identity: String::new() },
        })
    }

    /// Frees the place of an adapter, if it has one. No step may be in flight.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn unload(
        &mut self,
        engine: &mut impl StepEngine,
        unload: &UnloadAdapter,
    ) -> Result<(), Error> {
        // A rank that could not load an adapter is told to unload it as well.
        let Some(place) = self.places.iter().position(|held| *held == Some(unload.adapter)) else {
            return Ok(());
        };
        self.places[place] = None;
        engine.set_adapter(place, None)
    }
}
