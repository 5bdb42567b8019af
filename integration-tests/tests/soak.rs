//! Tests random traffic with random kills: `cargo xtask soak [MINUTES]`, or a few seconds by
//! default.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{
    Server, post, private_bytes, seconds as seconds_of, shards_of, stream, try_signal,
};
use millrace_test_patience::patience;
use serde_json::{Value, json};

const CLIENTS: u64 = 24;

/// SplitMix64 (Steele et al., "Fast splittable pseudorandom number generators").
struct Random(u64);

impl Random {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed >> 33) % limit as u64) as usize
    }
}

/// A request whose answer is known.
struct Known {
    body: Value,
    text: String,
}

fn known(server: &Server, random: &mut Random) -> Known {
    let words = ["fox ", "Lily ", "was ", "happy ", "ball ", "the ", "park ", "and "];
    let prompt: String = (0..1 + random.below(60)).map(|_| words[random.below(words.len())]).collect();
    let mut parameters = json!({"max_new_tokens": 1 + random.below(120), "stop": ["\u{1}"]});
    if random.below(2) == 0 {
        parameters["do_sample"] = json!(true);
        parameters["seed"] = json!(random.below(1000));
    }
    let body = json!({"inputs": prompt, "parameters": parameters});
    let answer = post(&server.url("/generate"), &body);
    Known { text: answer.body["generated_text"].as_str().unwrap().to_owned(), body }
}

#[derive(Default)]
struct Counts {
    whole: AtomicUsize,
    left: AtomicUsize,
    refused: AtomicUsize,
    kills: AtomicUsize,
    /// The number of kills while a request was in quarantine. It is blamed if it ran.
    kills_in_quarantine: AtomicUsize,
    /// The number of requests that were hit by a third kill while they ran alone.
    blamed: AtomicUsize,
}

impl Counts {
    fn add(counter: &AtomicUsize) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

/// Counts a refusal and waits before the next request.
fn refused(counts: &Counts) {
    Counts::add(&counts.refused);
    std::thread::sleep(Duration::from_millis(100));
}

/// Whether a request was blamed for ending the shards: it ran alone after two losses, and a kill
/// hit it again.
fn is_blamed(answer: &Value) -> bool {
    answer["error"].as_str().is_some_and(|error| error.contains("ended the shards three times"))
}

/// Sends one request through a randomly chosen API.
fn ask(server: &Server, known: &Known, random: &mut Random, counts: &Counts) {
    if random.below(3) == 0 {
        let answer = post(&server.url("/generate"), &known.body);
        match answer.status {
            200 => {
                assert_eq!(answer.body["generated_text"], known.text, "{}", known.body);
                Counts::add(&counts.whole);
            }
            429 | 503 => refused(counts),
            424 if is_blamed(&answer.body) => Counts::add(&counts.blamed),
            status => panic!("status {status}: {}", answer.body),
        }
        return;
    }
    let leaves_after = if random.below(4) == 0 { random.below(40) } else { usize::MAX };
    let mut events = stream(&server.url("/generate_stream"), &known.body);
    if events.status != 200 {
        assert!([429, 503].contains(&events.status), "status {}", events.status);
        return refused(counts);
    }
    let mut text = String::new();
    for _ in 0..leaves_after {
        let Some(event) = events.next() else {
            assert_eq!(text, known.text, "{}", known.body);
            return Counts::add(&counts.whole);
        };
        if is_blamed(&event) {
            return Counts::add(&counts.blamed);
        }
        let token = event["token"]["text"].as_str().unwrap_or_else(|| panic!("{event}"));
        // A special token is reported as a token and is not part of the text.
        text += if event["token"]["special"] == true { "" } else { token };
    }
    assert!(known.text.starts_with(&text), "{}", known.body);
    Counts::add(&counts.left);
}

#[test]
fn random_traffic_with_random_kills() {
    let seconds = std::env::var("MILLRACE_SOAK_SECONDS").map_or(8, |text| text.parse().unwrap());
    let seed = std::env::var("MILLRACE_SOAK_SEED").map_or(seconds, |text| text.parse().unwrap());
    println!("{seconds} s with MILLRACE_SOAK_SEED={seed}");
    let flags =
        ["--max-concurrent-requests", "22", "--max-batch-size", "12", "--max-batch-total-tokens", "2048"];
    let timeout = seconds_of(patience(Duration::from_millis(1500)));
    let losses = ["--step-timeout", &timeout, "--heartbeat-timeout", "600", "--max-shard-failures", "10"];
    let server = Server::start(&[losses.as_slice(), flags.as_slice()].concat());
    let mut random = Random(seed);
    let known: Vec<Known> = (0..24).map(|_| known(&server, &mut random)).collect();

    let (counts, over) = (Counts::default(), AtomicBool::new(false));
    let until = Instant::now() + Duration::from_secs(seconds);
    let memory = || private_bytes(server.pid()) >> 10;
    let before = memory();
    std::thread::scope(|scope| {
        let (server, known, counts, over) = (&server, &known, &counts, &over);
        for client in 0..CLIENTS {
            let mut random = Random(seed.wrapping_add(client << 32));
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    ask(server, &known[random.below(known.len())], &mut random, counts);
                }
            });
        }
        while Instant::now() < until {
            std::thread::sleep(Duration::from_millis(500 + random.below(2500) as u64));
            let name = ["KILL", "KILL", "STOP"][random.below(3)];
            let shards = shards_of(server.pid());
            // The quarantine is filled before the next shards start, so a request that these shards
            // run alone is counted.
            if server.metric("millrace_quarantined_sequences") > 0.0 {
                Counts::add(&counts.kills_in_quarantine);
            }
            for shard in shards {
                try_signal(shard, name);
            }
            Counts::add(&counts.kills);
        }
        over.store(true, Ordering::Relaxed);
    });
    server.wait_until("nothing is left", |server| {
        server.metric("tgi_batch_current_size") == 0.0 && server.metric("tgi_queue_size") == 0.0
    });
    let Counts { whole, left, refused, kills, kills_in_quarantine, blamed } = counts;
    println!(
        "{whole:?} answers as expected, {left:?} clients left, {refused:?} refused, {kills:?} kills, {blamed:?} blamed; \
         {:.0} restarts, {:.0} ms from a loss to a token; memory {before} KiB, then {} KiB",
        server.metric("millrace_shard_restarts_total"),
        1e3 * server.metric("millrace_recovery_duration_sum")
            / server.metric("millrace_recovery_duration_count"),
        memory(),
    );
    let kills = kills.into_inner();
    assert!(whole.into_inner() > 0 && kills > 0);
    // A step that a busy machine does not compute in time is a loss as well.
    let explained = kills_in_quarantine.into_inner() + 1;
    assert!(blamed.into_inner() <= explained, "only {explained} losses hit a request that ran alone");
    assert_eq!(server.get("/ready").0, 200);
}
