//! One run: some clients read streams for some seconds, with or without long prompts beside them.

use std::cell::RefCell;
use std::rc::Rc;
use std::time::{Duration, Instant};

use millrace_integration_tests::{Server, cpu_seconds};
use tokio::task::LocalSet;

use crate::long_prompts::{self, PromptTimes};
use crate::streams::{StreamRequest, StreamTimes, read_stream};

/// The time in which every client must have its first token.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// The load of a run.
#[derive(Debug, Clone)]
pub(crate) struct BenchLoad {
    /// The number of clients, each of which reads one stream after the other.
    pub(crate) clients: usize,
    /// The number of tokens of a stream.
    pub(crate) stream_tokens: usize,
    pub(crate) has_long_prompts: bool,
    pub(crate) duration: Duration,
    /// A name that no other run of the same server has. Prompts begin with it, so that no prompt is
    /// in the prefix cache.
    pub(crate) name: String,
}

/// The times of a run.
#[derive(Debug, Default, Clone)]
pub(crate) struct RunTimes {
    pub(crate) streams: StreamTimes,
    pub(crate) prompts: PromptTimes,
    /// The duration of the measurement in seconds.
    pub(crate) seconds: f64,
    /// The CPU time of the clients in seconds.
    pub(crate) client_cpu: f64,
}

impl RunTimes {
    /// Adds the times of another run under the same load.
    pub(crate) fn merge(&mut self, other: RunTimes) {
        self.streams.merge(other.streams);
        self.prompts.merge(other.prompts);
        self.seconds += other.seconds;
        self.client_cpu += other.client_cpu;
    }
}

/// Runs a load. Gaps and tokens count from the time at which every client has its first token; the
/// times to the first tokens of the clients count from the start. All streams are dropped at the
/// end.
pub(crate) fn run(server: &Server, load: &BenchLoad) -> RunTimes {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let tasks = LocalSet::new();
    tasks.block_on(&runtime, async {
        let clients: Vec<Rc<RefCell<StreamTimes>>> = (0..load.clients).map(|_| Rc::default()).collect();
        for (number, times) in clients.iter().enumerate() {
            tasks.spawn_local(client(server.address().to_owned(), load.clone(), number, times.clone()));
        }
        let since = Instant::now();
        while clients.iter().any(|times| times.borrow().firsts.is_empty()) {
            assert!(since.elapsed() < START_TIMEOUT, "the streams did not start:\n{}", server.log());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        for times in &clients {
            let firsts = std::mem::take(&mut times.borrow_mut().firsts);
            *times.borrow_mut() = StreamTimes { firsts, ..StreamTimes::default() };
        }
        let (since, cpu) = (Instant::now(), cpu_seconds(std::process::id()));
        let until = since + load.duration;
        let prompts = match load.has_long_prompts {
            true => long_prompts::send(&tasks, server.address(), &load.name, until).await,
            false => {
                tokio::time::sleep_until(until.into()).await;
                PromptTimes::default()
            }
        };
        let seconds = since.elapsed().as_secs_f64();
        let client_cpu = cpu_seconds(std::process::id()) - cpu;
        let mut streams = StreamTimes::default();
        clients.iter().for_each(|times| streams.merge(times.take()));
        RunTimes { streams, prompts, seconds, client_cpu }
    })
}

/// Reads one stream after the other and adds their times to `times`.
async fn client(address: String, load: BenchLoad, number: usize, times: Rc<RefCell<StreamTimes>>) {
    for round in 0_u64.. {
        let prompt =
            format!("{} {round} times upon a time there was a fox with {number} lanterns", load.name);
        let request = StreamRequest { address: address.clone(), prompt, tokens: load.stream_tokens };
        let sent = Instant::now();
        let mut last = None;
        read_stream(&request, |arrival| {
            let mut times = times.borrow_mut();
            match last.replace(arrival.at) {
                None => times.firsts.push(arrival.at - sent),
                Some(last) => times.gaps.push(arrival.at - last),
            }
            times.tokens += arrival.tokens;
            times.arrivals += 1;
        })
        .await;
        assert!(last.is_some(), "a stream without tokens");
    }
}
