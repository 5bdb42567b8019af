//! The adapters that the router loads and unloads while the shard answers steps.
//!
//! A thread reads the adapter, so that steps go on meanwhile. The loop over steps then copies it
//! into its place in the pools between two steps. The router sends a load after the answer to the
//! one before it, so at most one adapter is in memory beside the pools.
//!
//! If more adapters may be loaded than there are places, loads name no place. All adapters are kept
//! in host memory then, and steps copy them into places.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::thread;

use millrace_backend::AdapterSpec;
use millrace_model::adapters::{Adapter, AdapterError};
use millrace_model::split::Split;
use millrace_model::{AdapterLimits, WeightSlot};
use millrace_numbers::DType;
use millrace_proto::{AdapterLoaded, AdapterPlacement, LoadAdapter, UnloadAdapter};

use crate::Error;
use crate::decoder::{PackedAdapter, RankAdapter};
use crate::step_engine::{ReadAdapter, StepEngine};

/// Opens the adapter in a folder and matches it to the model.
pub type OpenAdapter = Arc<dyn Fn(&Path) -> Result<Adapter, AdapterError> + Send + Sync>;

/// How a rank reads adapters.
#[derive(Clone)]
pub(crate) struct AdapterReader {
    pub(crate) open: OpenAdapter,
    /// The rank.
    pub(crate) split: Split,
    /// The matrices of this rank that adapters can change, with the sizes of their pools.
    pub(crate) pools: Vec<(WeightSlot, AdapterSpec)>,
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
    /// The adapters in host memory, by number. There are none if each adapter has a place.
    copies: BTreeMap<u32, PackedAdapter>,
    /// Maximum number of adapters in host memory.
    max_copies: usize,
    reading: Option<(LoadAdapter, Receiver<Result<AdapterContents, Error>>)>,
}

/// A rank's share of an adapter, and the files that it was read from.
#[derive(Debug)]
struct AdapterContents {
    weights: ReadWeights,
    identity: String,
}

/// A rank's share of an adapter.
#[derive(Debug)]
enum ReadWeights {
    /// To be copied into a place at once.
    ForPlace(RankAdapter),
    /// To be kept in host memory.
    ForHost(PackedAdapter),
}

impl AdapterReader {
    /// Reads this rank's share of the adapter in `folder`, and the identity of its files.
    fn read(&self, folder: &Path) -> Result<(RankAdapter, String), Error> {
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
        for (slot, pool) in &self.pools {
            let Some(found) = adapter.weights(*slot, self.split)? else { continue };
            // An adapter that is copied into a place later must fit it then.
            found.check(pool, 0)?;
            weights.insert(*slot, found);
        }
        Ok((weights, adapter.identity().to_owned()))
    }
}

impl AdapterLoads {
    /// Creates the list of adapters of a rank whose pools have `limits.count` free places. `listed`
    /// are the folders with which the shard was started.
    pub(crate) fn new(reader: Option<AdapterReader>, listed: &[PathBuf], limits: AdapterLimits) -> Self {
        AdapterLoads {
            reader,
            listed: listed.to_vec(),
            places: vec![None; limits.count],
            copies: BTreeMap::new(),
            max_copies: if limits.keeps_copies() { limits.max_loaded } else { 0 },
            reading: None,
        }
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
        let is_free = match load.place {
            Some(place) => self.max_copies == 0 && self.places.get(place as usize) == Some(&None),
            None => self.copies.len() < self.max_copies,
        };
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
        let has_place = load.place.is_some();
        move || {
            let folder = folder?;
            let read = reader.as_ref().map(|reader| reader.read(&folder)).transpose()?;
            let (weights, identity) = read.unwrap_or_default();
            let pool = reader.as_ref().and_then(|reader| reader.pools.first());
            let dtype = pool.map_or(DType::F32, |(_, pool)| pool.dtype);
            let weights = match has_place {
                true => ReadWeights::ForPlace(weights),
                false => ReadWeights::ForHost(PackedAdapter::pack(weights, dtype)),
            };
            Ok(AdapterContents { weights, identity })
        }
    }

    /// Copies the adapter that has been read into its place or keeps it in host memory, and returns
    /// the answer to the router. Returns `None` if nothing has been read. No step may be in flight.
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
        let loaded = read.and_then(|AdapterContents { weights, identity }| {
            match (weights, place) {
                (ReadWeights::ForPlace(weights), Some(place)) => {
                    self.set(engine, adapter, place as usize, &weights)?;
                }
                (ReadWeights::ForHost(packed), _) => drop(self.copies.insert(adapter, packed)),
                (ReadWeights::ForPlace(_), None) => return Err(Error::OutOfPlace),
            }
            Ok(identity)
        });
        Some(match loaded {
            Ok(identity) => AdapterLoaded { adapter, identity, error: String::new() },
            Err(error) => AdapterLoaded { adapter, error: error.to_string(), identity: String::new() },
        })
    }

    /// Reads the adapter with this index in the list of the start into the place of the same index,
    /// without a router. The index is also its number.
    ///
    /// # Errors
    /// If the adapter cannot be read or does not fit.
    pub(crate) fn load_now(&mut self, engine: &mut impl StepEngine, index: u32) -> Result<(), Error> {
        let load =
            LoadAdapter { adapter: index, place: Some(index), folder: String::new(), listed: Some(index) };
        let AdapterContents { weights, .. } = self.work(&load)()?;
        match weights {
            ReadWeights::ForPlace(weights) => self.set(engine, index, index as usize, &weights),
            ReadWeights::ForHost(_) => Err(Error::OutOfPlace),
        }
    }

    /// Copies adapters from host memory into places. No step may be in flight.
    ///
    /// # Errors
    /// [`Error::OutOfPlace`] if the router breaks the contract. If the device has failed.
    pub(super) fn place(
        &mut self,
        engine: &mut impl StepEngine,
        placements: &[AdapterPlacement],
    ) -> Result<(), Error> {
        for &AdapterPlacement { adapter, place } in placements {
            let copy = self.copies.get(&adapter).ok_or(Error::OutOfPlace)?;
            let weights = copy.unpack();
            self.set(engine, adapter, place as usize, &weights)?;
        }
        Ok(())
    }

    /// Copies an adapter into a place, whatever is in it.
    fn set(
        &mut self,
        engine: &mut impl StepEngine,
        number: u32,
        place: usize,
        weights: &RankAdapter,
    ) -> Result<(), Error> {
        let held = self.places.get_mut(place).ok_or(Error::OutOfPlace)?;
        *held = None;
        engine.set_adapter(place, Some(ReadAdapter { number, weights }))?;
        *held = Some(number);
        Ok(())
    }

    /// Frees the place of an adapter and its copy in host memory, if it has them. No step may be in
    /// flight.
    ///
    /// # Errors
    /// If the device has failed.
    pub(super) fn unload(
        &mut self,
        engine: &mut impl StepEngine,
        unload: &UnloadAdapter,
    ) -> Result<(), Error> {
        self.copies.remove(&unload.adapter);
        // A rank that could not load an adapter is told to unload it as well.
        let Some(place) = self.places.iter().position(|held| *held == Some(unload.adapter)) else {
            return Ok(());
        };
        self.places[place] = None;
        engine.set_adapter(place, None)
    }
}
