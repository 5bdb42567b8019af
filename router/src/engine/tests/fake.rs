//! A fake shard in this process, at the other end of a connection in memory. It runs the pretend
//! shard of the scheduler's tests, which checks every step against the contract.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex};

use futures::FutureExt;
use millrace_proto::frame::{read_async, write_async};
use millrace_proto::{
    AdapterLoaded, FromShard, LoadAdapter, Masks, MasksDue, Pong, Ready, Step, StepOutput, ToShard,
    from_shard, to_shard,
};
use millrace_scheduler::SchedulerLimits;
use millrace_scheduler::test_support::{DEATH, PretendShard};
use tokio::io::{DuplexStream, duplex};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::{config, limits, ready};
use crate::engine::group::{ShardGroup, StartError};
use crate::engine::loss::GroupLoss;
use crate::engine::supervisor::GroupFactory;
use crate::engine::{Engine, EngineConfig, start_prepared};

/// The number of bytes that a connection holds in each direction.
const BUFFER_BYTES: usize = 1 << 20;

/// A fake shard under a test's control.
pub(super) struct FakeShard {
    stream: DuplexStream,
    pretend: PretendShard,
    /// Steps that came before the masks of the step before them.
    early: VecDeque<Step>,
    /// Whether the shard asks for masks when they have not come.
    pub(super) asks_for_masks: bool,
    /// Has one permit for each step that may be answered.
    gate: Arc<Semaphore>,
    seen: mpsc::UnboundedSender<Step>,
    /// The adapter in each place.
    adapters: LoadedAdapters,
    /// The adapters in host memory.
    copies: Vec<u32>,
    ready: Ready,
    /// Folders whose adapters cannot be loaded.
    pub(super) broken: Vec<&'static str>,
}

/// The number of the adapter in each place of a fake shard.
pub(super) type LoadedAdapters = Arc<Mutex<BTreeMap<u32, u32>>>;

/// The test's control of a fake shard.
pub(super) struct Control {
    pub(super) gate: Arc<Semaphore>,
    /// Receives every step on its arrival.
    pub(super) steps: mpsc::UnboundedReceiver<Step>,
    pub(super) adapters: LoadedAdapters,
}

pub(super) fn message(message: from_shard::Message) -> FromShard {
    FromShard { message: Some(message) }
}

impl FakeShard {
    pub(super) fn new(gate: usize) -> (Self, Control, DuplexStream) {
        let (stream, router) = duplex(BUFFER_BYTES);
        let gate = Arc::new(Semaphore::new(gate));
        let (seen, steps) = mpsc::unbounded_channel();
        let adapters = LoadedAdapters::default();
        let control = Control { gate: gate.clone(), steps, adapters: adapters.clone() };
        let (pretend, early) = (PretendShard::new(limits()), VecDeque::new());
        let shard = FakeShard {
            stream,
            pretend,
            early,
            asks_for_masks: true,
            gate,
            seen,
            adapters,
            copies: Vec::new(),
            ready: ready(),
            broken: Vec::new(),
        };
        (shard, control, router)
    }

    /// The same shard, which keeps up to this many adapters in host memory.
    pub(super) fn keeping(mut self, most: u32) -> Self {
        self.ready.max_loaded_adapters = most;
        self.pretend = PretendShard::new(SchedulerLimits::new(&self.ready).unwrap());
        self
    }

    pub(super) async fn send(&mut self, what: from_shard::Message) {
        write_async(&mut self.stream, &message(what)).await.unwrap();
    }

    pub(super) async fn send_bytes(&mut self, bytes: &[u8]) {
        tokio::io::AsyncWriteExt::write_all(&mut self.stream, bytes).await.unwrap();
    }

    pub(super) async fn announce(&mut self) {
        self.send(from_shard::Message::Ready(self.ready.clone())).await;
    }

    /// Receives the next step and returns the correct answer to it. Returns `None` after a
    /// shutdown, or if the shard dies of the step.
    pub(super) async fn step(&mut self) -> Option<StepOutput> {
        let step = match self.early.pop_front() {
            Some(step) => step,
            None => match self.receive().await? {
                to_shard::Message::Step(step) => step,
                other => panic!("{other:?} instead of a step"),
            },
        };
        for placement in &step.adapters {
            assert!(self.copies.contains(&placement.adapter), "{placement:?} copies nothing");
            self.adapters.lock().unwrap().insert(placement.place, placement.adapter);
        }
        let numbers = step.admit.iter().filter_map(|admission| admission.adapter);
        numbers.for_each(|number| assert!(self.place_of(number).is_some(), "adapter {number} is not loaded"));
        let masks = match step.rows.iter().any(|row| row.mask_follows) {
            true => self.masks(step.id).await?,
            false => Masks { step: step.id, rows: Vec::new() },
        };
        let output = match self.pretend.run_masked(&step, &masks) {
            Err(reason) if reason == DEATH => return None,
            output => output.expect("the step keeps the contract"),
        };
        let _ = self.seen.send(step);
        self.gate.acquire().await.unwrap().forget();
        Some(output)
    }

    /// Receives the masks of a step. Returns `None` after a shutdown.
    async fn masks(&mut self, step: u64) -> Option<Masks> {
        if self.asks_for_masks {
            self.send(from_shard::Message::MasksDue(MasksDue { step })).await;
        }
        loop {
            match self.receive().await? {
                to_shard::Message::Masks(masks) => return Some(masks),
                to_shard::Message::Step(step) => self.early.push_back(step),
                other => panic!("{other:?} instead of masks"),
            }
        }
    }

    /// Receives the next message, and answers pings. Returns `None` after a shutdown.
    async fn receive(&mut self) -> Option<to_shard::Message> {
        loop {
            match read_async::<ToShard>(&mut self.stream, &mut Vec::new()).await.unwrap().message.unwrap() {
                to_shard::Message::Ping(_) => self.send(from_shard::Message::Pong(Pong {})).await,
                to_shard::Message::Shutdown(_) => return None,
                to_shard::Message::LoadAdapter(load) => self.load_adapter(load).await,
                to_shard::Message::UnloadAdapter(unload) => {
                    self.copies.retain(|number| *number != unload.adapter);
                    self.pretend.unload(unload.adapter);
                    if let Some(place) = self.place_of(unload.adapter) {
                        self.adapters.lock().unwrap().remove(&place);
                    }
                }
                to_shard::Message::Rendezvous(_) => panic!("a single rank needs no rendezvous"),
                message => return Some(message),
            }
        }
    }

    fn place_of(&self, number: u32) -> Option<u32> {
        let adapters = self.adapters.lock().unwrap();
        adapters.iter().find(|(_, held)| **held == number).map(|(place, _)| *place)
    }

    async fn load_adapter(&mut self, load: LoadAdapter) {
        let LoadAdapter { adapter, place, folder, listed } = load;
        let mut answer =
            AdapterLoaded { adapter, identity: format!("{folder} {listed:?}"), error: String::new() };
        if self.broken.contains(&folder.as_str()) {
            answer = AdapterLoaded { adapter, error: format!("{folder} is broken"), identity: String::new() };
        } else if let Some(place) = place {
            let before = self.adapters.lock().unwrap().insert(place, adapter);
            assert_eq!(before, None, "place {place} is taken");
        } else {
            assert!(self.copies.len() < self.ready.max_loaded_adapters as usize, "no memory for {adapter}");
            self.copies.push(adapter);
        }
        self.send(from_shard::Message::AdapterLoaded(answer)).await;
    }

    /// Answers `steps` steps. Returns false after a shutdown.
    pub(super) async fn answer(&mut self, steps: usize) -> bool {
        for _ in 0..steps {
            let Some(output) = self.step().await else { return false };
            self.send(from_shard::Message::Output(output)).await;
        }
        true
    }

    /// Serves until a shutdown.
    pub(super) async fn serve(mut self) {
        self.announce().await;
        while self.answer(1).await {}
    }
}

/// An engine over one rank.
pub(super) fn engine_over(config: EngineConfig, stream: DuplexStream) -> (Engine, JoinHandle<()>) {
    engine_over_all(config, vec![stream])
}

/// An engine over one rank. When the rank is lost, the next of these streams replaces it.
pub(super) fn engine_over_all(config: EngineConfig, streams: Vec<DuplexStream>) -> (Engine, JoinHandle<()>) {
    engine_over_groups(config, vec![streams])
}

/// An engine over several groups of one rank. When the rank of a group is lost, the next of the
/// group's streams replaces it.
pub(super) fn engine_over_groups(
    config: EngineConfig,
    groups: Vec<Vec<DuplexStream>>,
) -> (Engine, JoinHandle<()>) {
    let factories = groups.into_iter().map(streams_in_turn).collect();
    start_prepared(None, config, factories)
}

/// Starts the next group with the next of these streams.
fn streams_in_turn(streams: Vec<DuplexStream>) -> GroupFactory {
    let mut streams = streams.into_iter();
    Box::new(move |_| {
        let group = streams.next().map(|stream| ShardGroup::connected(vec![stream]));
        std::future::ready(group.ok_or(StartError::Lost(GroupLoss::of_shards("no shard is left")))).boxed()
    })
}

/// An engine with a shard that answers `gate` steps and then waits for permits.
pub(super) async fn serving(gate: usize) -> (Engine, JoinHandle<()>, Control, JoinHandle<()>) {
    let (shard, control, stream) = FakeShard::new(gate);
    let shard = tokio::spawn(shard.serve());
    let (engine, task) = engine_over(config(), stream);
    super::until_ready(&engine).await;
    (engine, task, control, shard)
}
