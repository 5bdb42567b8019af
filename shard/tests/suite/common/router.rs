//! The router's end of a connection to a shard on a thread, and the messages of simple steps.

use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};

use millrace_backend::reference::Reference;
use millrace_model::{Model, ModelWarnings};
use millrace_numbers::DType;
use millrace_proto::{
    Admission, FromShard, Loading, Masks, MasksDue, Ready, Row, RowMask, Sampling, Step, StepOutput, ToShard,
    frame, from_shard, to_shard,
};
use millrace_shard::{
    Error, HostPlatform, OpenDevice, Platform, RankPlacement, RouterAddress, ShardOptions, serve,
};

use super::{Chunk, Harness, MemoryWeights, fixed_spec, limits};

pub const SEED: u64 = 5;

pub fn placement() -> RankPlacement {
    RankPlacement {
        address: RouterAddress::Unix("unused".into()),
        secret: None,
        rank: 0,
        world_size: 1,
        previous_pool: None,
        lifeline: false,
    }
}

pub fn options() -> ShardOptions {
    ShardOptions {
        max_total_tokens: Some(40),
        max_batch_total_tokens: Some(80),
        max_step_tokens: 24,
        max_sequences: 3,
        block_size: 4,
        ..ShardOptions::default()
    }
}

pub fn model() -> Model {
    let spec = fixed_spec();
    let weights = Box::new(MemoryWeights::random(&spec, SEED));
    Model { spec, dtype: DType::F32, quantized: None, weights, warnings: ModelWarnings::default() }
}

/// The router's end of the socket.
pub struct Router {
    pub stream: UnixStream,
    pub shard: JoinHandle<Result<(), Error>>,
}

impl Router {
    /// Starts a shard on a thread.
    pub fn start(
        options: ShardOptions,
        open: impl FnOnce() -> Result<Model, Error> + Send + 'static,
    ) -> Router {
        let platform = HostPlatform(|| Ok(OpenDevice { backend: Reference, free: Some(1 << 30) }));
        Router::start_on(platform, placement(), options, open)
    }

    pub fn start_on(
        platform: impl Platform + Send + 'static,
        placement: RankPlacement,
        options: ShardOptions,
        open: impl FnOnce() -> Result<Model, Error> + Send + 'static,
    ) -> Router {
        let (stream, other) = UnixStream::pair().unwrap();
        stream.set_read_timeout(Some(super::long())).unwrap();
        let shard = thread::spawn(move || {
            serve(&platform, &other, &placement, &options, Box::new(|| open().map(Into::into)))
        });
        Router { stream, shard }
    }

    pub fn ready() -> (Router, Vec<Loading>, Ready) {
        let mut router = Router::start(options(), || Ok(model()));
        let (loading, ready) = router.loaded();
        (router, loading, ready)
    }

    pub fn loaded(&mut self) -> (Vec<Loading>, Ready) {
        let mut loading = vec![];
        loop {
            match self.receive() {
                from_shard::Message::Loading(message) => loading.push(message),
                from_shard::Message::Ready(ready) => return (loading, ready),
                other => panic!("{other:?} before ready"),
            }
        }
    }

    pub fn receive(&mut self) -> from_shard::Message {
        frame::read::<FromShard>(&mut self.stream, &mut vec![]).unwrap().message.unwrap()
    }

    pub fn send(&mut self, message: to_shard::Message) {
        frame::write(&mut self.stream, &ToShard { message: Some(message) }).unwrap();
    }

    pub fn send_step(&mut self, step: Step) {
        self.send(to_shard::Message::Step(step));
    }

    pub fn output(&mut self) -> StepOutput {
        match self.receive() {
            from_shard::Message::Output(output) => output,
            other => panic!("{other:?} instead of an answer"),
        }
    }

    /// Receives the question for the masks of a step.
    pub fn masks_due(&mut self) -> u64 {
        match self.receive() {
            from_shard::Message::MasksDue(MasksDue { step }) => step,
            other => panic!("{other:?} instead of a question for masks"),
        }
    }

    pub fn send_masks(&mut self, step: u64, rows: &[(u32, &[u32])]) {
        let rows = rows.iter().map(|&(slot, allowed)| RowMask { slot, allowed: allowed.to_vec() });
        self.send(to_shard::Message::Masks(Masks { step, rows: rows.collect() }));
    }

    pub fn fault(mut self) -> (String, Error) {
        loop {
            match self.receive() {
                from_shard::Message::Loading(_) => {}
                from_shard::Message::Fault(fault) => {
                    return (fault.message, self.shard.join().unwrap().unwrap_err());
                }
                other => panic!("{other:?} instead of a fault"),
            }
        }
    }
}

pub fn greedy() -> Sampling {
    Sampling { repetition_penalty: 1.0, ..Sampling::default() }
}

pub fn admission(slot: u32, tokens: &[u32]) -> Admission {
    let prompt_len = tokens.len() as u32;
    Admission { slot, tokens: tokens.to_vec(), prompt_len, sampling: Some(greedy()), ..Admission::default() }
}

pub fn row(slot: u32, start: u32, count: u32, new_blocks: &[u32], sample: bool) -> Row {
    Row { slot, start, count, new_blocks: new_blocks.to_vec(), sample, ..Row::default() }
}

/// Computes the greedy continuation by running the whole sequence again for each token.
pub fn expected(prompt: &[u32], count: usize) -> Vec<u32> {
    let weights = MemoryWeights::random(&fixed_spec(), SEED);
    let mut harness = Harness::new(&Reference, &fixed_spec(), &weights, DType::F32, &limits(DType::F32));
    let blocks: Vec<u32> = (0..16).collect();
    let mut tokens = prompt.to_vec();
    for _ in 0..count {
        let logits = harness.step(&[Chunk { tokens: &tokens, start: 0, blocks: &blocks }]);
        let last = logits.last().unwrap();
        let best = (0..last.len()).reduce(|a, b| if last[b] > last[a] { b } else { a }).unwrap();
        tokens.push(best as u32);
    }
    tokens.split_off(prompt.len())
}
