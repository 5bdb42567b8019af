//! Measures what a normal client experiences while other clients attack the server.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::{Server, client, private_bytes, shards_of};

/// The pause between two rounds of requests.
const PAUSE: Duration = Duration::from_millis(20);

/// The number of tokens of each generation.
const TOKENS: u32 = 4;

/// A client that repeatedly requests `/health` and a short text on its own thread until it is
/// stopped.
pub struct ObserverClient {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Latencies>,
}

/// The latencies of the client's requests, and the server's memory in the meantime.
#[derive(Debug, Default)]
pub struct Latencies {
    /// The latencies of `GET /health`, sorted.
    pub health: Vec<Duration>,
    /// The latencies of the generations, sorted.
    pub texts: Vec<Duration>,
    /// The status codes other than 200, in order; 0 for a request without a response.
    pub failures: Vec<(String, u16)>,
    /// The peak memory in bytes of the server and its child processes together.
    pub peak_resident: u64,
}

impl ObserverClient {
    /// Starts the client.
    pub fn start(server: &Server) -> ObserverClient {
        let stop = Arc::new(AtomicBool::new(false));
        let (told, pid) = (stop.clone(), server.pid());
        let (health, generate) = (server.url("/health"), server.url("/generate"));
        let thread = std::thread::spawn(move || {
            let mut seen = Latencies::default();
            while !told.load(Ordering::Relaxed) {
                seen.round(&health, &generate, pid);
                std::thread::sleep(PAUSE);
            }
            // At least one round runs after the attack.
            seen.round(&health, &generate, pid);
            seen.health.sort();
            seen.texts.sort();
            seen
        });
        ObserverClient { stop, thread }
    }

    /// Stops the client.
    pub fn stop(self) -> Latencies {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap()
    }
}

impl Latencies {
    fn round(&mut self, health: &str, generate: &str, pid: u32) {
        let since = Instant::now();
        let (status, _) = client::get(health);
        self.health.push(since.elapsed());
        self.note("/health", status);
        let body = json!({"inputs": "Once upon a time", "parameters": {"max_new_tokens": TOKENS}});
        let since = Instant::now();
        let status = client::status_of_post(generate, &body);
        self.texts.push(since.elapsed());
        self.note("/generate", status);
        self.peak_resident = self.peak_resident.max(resident_with_children(pid));
    }

    fn note(&mut self, path: &str, status: u16) {
        if status != 200 {
            self.failures.push((path.to_owned(), status));
        }
    }

    /// Prints one line, and panics unless every request succeeded, the slowest one took no longer
    /// than `longest`, and the server never had more than `memory` bytes.
    pub fn check(&self, attack: &str, longest: Duration, memory: u64) {
        let of = |times: &[Duration]| match times {
            [] => "none".to_owned(),
            times => {
                let (median, last) = (times[times.len() / 2], times[times.len() - 1]);
                format!("{} of {:.1} ms, longest {:.1} ms", times.len(), millis(median), millis(last))
            }
        };
        let mib = self.peak_resident >> 20;
        println!("{attack}: /health {}; texts {}; {mib} MiB", of(&self.health), of(&self.texts));
        assert!(self.failures.is_empty(), "{attack}: {:?}", self.failures);
        let slowest = self.health.last().max(self.texts.last()).copied().unwrap_or_default();
        assert!(slowest <= longest, "{attack}: a concurrent request took {slowest:?}");
        assert!(self.peak_resident <= memory, "{attack}: the server held {mib} MiB");
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

/// Returns the memory of a process and its children in bytes.
fn resident_with_children(pid: u32) -> u64 {
    private_bytes(pid) + shards_of(pid).into_iter().map(private_bytes).sum::<u64>()
}
