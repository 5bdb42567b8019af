//! A shard in this process, at the other end of a socket pair. It keeps the scheduler's pretend shard, so every step
//! is held to the contract.

use std::sync::Arc;

use futures::FutureExt;
use millrace_proto::frame::{read_async, write_async};
use millrace_proto::{FromShard, Pong, Step, StepOutput, ToShard, from_shard, to_shard};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::{config, limits, ready};
use crate::engine::group::{Group, StartError};
use crate::engine::losses::Loss;
use crate::engine::{Engine, EngineConfig, start_with};
use crate::scheduler::tests::pretend::{DEATH, PretendShard};

/// A fake shard under a test's control.
pub(super) struct FakeShard {
    stream: UnixStream,
    pretend: PretendShard,
    /// One permit for each step that may be answered.
    gate: Arc<Semaphore>,
    seen: mpsc::UnboundedSender<Step>,
}

/// What a test holds of it.
pub(super) struct Control {
    pub(super) gate: Arc<Semaphore>,
    /// Every step, on arrival.
    pub(super) steps: mpsc::UnboundedReceiver<Step>,
}

pub(super) fn message(message: from_shard::Message) -> FromShard {
    FromShard { message: Some(message) }
}

impl FakeShard {
    pub(super) fn new(gate: usize) -> (Self, Control, UnixStream) {
        let (stream, router) = UnixStream::pair().unwrap();
        let gate = Arc::new(Semaphore::new(gate));
        let (seen, steps) = mpsc::unbounded_channel();
        let control = Control { gate: gate.clone(), steps };
        (FakeShard { stream, pretend: PretendShard::new(limits()), gate, seen }, control, router)
    }

    pub(super) async fn send(&mut self, what: from_shard::Message) {
        write_async(&mut self.stream, &message(what)).await.unwrap();
    }

    pub(super) async fn send_bytes(&mut self, bytes: &[u8]) {
        tokio::io::AsyncWriteExt::write_all(&mut self.stream, bytes).await.unwrap();
    }

    pub(super) async fn announce(&mut self) {
        self.send(from_shard::Message::Ready(ready())).await;
    }

    /// The next step and the right answer to it; nothing after a shutdown, or if it dies of the step.
    pub(super) async fn step(&mut self) -> Option<StepOutput> {
        loop {
            match read_async::<ToShard>(&mut self.stream, &mut Vec::new()).await.unwrap().message.unwrap() {
                to_shard::Message::Step(step) => {
                    let output = match self.pretend.run(&step) {
                        Err(why) if why == DEATH => return None,
                        output => output.expect("the step keeps the contract"),
                    };
                    let _ = self.seen.send(step);
                    self.gate.acquire().await.unwrap().forget();
                    return Some(output);
                }
                to_shard::Message::Ping(_) => self.send(from_shard::Message::Pong(Pong {})).await,
                to_shard::Message::Shutdown(_) => return None,
                to_shard::Message::Rendezvous(_) => panic!("a rank alone has nobody to meet"),
            }
        }
    }

    /// Answers `steps` steps; false after a shutdown.
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
pub(super) fn engine_over(config: EngineConfig, stream: UnixStream) -> (Engine, JoinHandle<()>) {
    engine_over_all(config, vec![stream])
}

/// An engine over one rank, which is replaced by the next of these when it is lost.
pub(super) fn engine_over_all(config: EngineConfig, streams: Vec<UnixStream>) -> (Engine, JoinHandle<()>) {
    let mut streams = streams.into_iter();
    let connect = move |_| {
        let group = streams.next().map(|stream| Group::connected(vec![stream]));
        std::future::ready(group.ok_or(StartError::Lost(Loss::of_shards("no shard is left")))).boxed()
    };
    start_with(config, Box::new(connect))
}

/// An engine with a shard that serves; it answers `gate` steps before it waits for permits.
pub(super) async fn serving(gate: usize) -> (Engine, JoinHandle<()>, Control, JoinHandle<()>) {
    let (shard, control, stream) = FakeShard::new(gate);
    let shard = tokio::spawn(shard.serve());
    let (engine, task) = engine_over(config(), stream);
    super::until_ready(&engine).await;
    (engine, task, control, shard)
}
