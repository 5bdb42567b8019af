//! The whole server under load: `cargo bench --package millrace-integration-tests`.
//!
//! Starts the release binary, talks to it over loopback, and prints one table per model: time from process start to the
//! first answer, tokens per second with 1 to 32 clients and the shard's idle time between steps, prefill tokens per
//! second, and memory. The client shares the processor with the server; its own share of the time is printed.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{Server, binary, cpu_seconds, post, resident_bytes, shards_of, stream};
use serde_json::{Value, json};

struct Model {
    name: &'static str,
    flags: Vec<String>,
    /// Tokens each client asks for with 1, 8, 16 and 32 clients.
    tokens: [usize; 4],
    /// Tokens of each of 16 streams, between whose beginning and end nothing comes or goes.
    steady: usize,
    /// How often each client asks.
    rounds: usize,
    /// Prompts of about this many characters measure the prefill.
    prompt_chars: usize,
    /// Characters of a prompt that is sent twice.
    prefix_chars: usize,
}

fn main() {
    let wanted: Vec<String> =
        std::env::args().skip(1).filter(|argument| !argument.starts_with('-')).collect();
    let shape = concat!(env!("CARGO_MANIFEST_DIR"), "/benches/llama-1.1b");
    let models = [
        Model {
            name: "demo",
            flags: vec![],
            tokens: [400, 200, 200, 100],
            rounds: 8,
            steady: 900,
            prompt_chars: 2000,
            prefix_chars: 2700,
        },
        Model {
            name: "llama-1.1b",
            flags: ["--model-id", shape, "--load-format", "dummy", "--max-batch-total-tokens", "32768"]
                .map(str::to_owned)
                .to_vec(),
            tokens: [32, 24, 20, 16],
            rounds: 1,
            steady: 24,
            prompt_chars: 1500,
            prefix_chars: 12_800,
        },
    ];
    for model in
        models.iter().filter(|model| wanted.is_empty() || wanted.iter().any(|name| name == model.name))
    {
        measure(model);
    }
}

fn measure(model: &Model) {
    println!("\n## {}\n", model.name);
    let flags: Vec<&str> = model.flags.iter().map(String::as_str).collect();
    // Built before the time is taken.
    binary();
    let since = Instant::now();
    let server = Server::start(&flags);
    let ready = since.elapsed();
    post(&server.url("/generate"), &request("Once upon a time", 1));
    let first = since.elapsed();
    println!("| start to ready | {:.0} ms |", ms(ready));
    println!("| start to first answer | {:.0} ms |", ms(first));

    for (clients, tokens) in [1, 8, 16, 32].into_iter().zip(model.tokens) {
        let spent = cpu_seconds(std::process::id());
        let idle = server.metric("millrace_shard_idle_micros_total");
        let since = Instant::now();
        let counts: Vec<(usize, Duration)> = std::thread::scope(|scope| {
            let server = &server;
            let running: Vec<_> = (0..clients)
                .map(|client| scope.spawn(move || generate(server, client, tokens, model.rounds)))
                .collect();
            running.into_iter().flat_map(|client| client.join().unwrap()).collect()
        });
        let wall = since.elapsed().as_secs_f64();
        let total: usize = counts.iter().map(|(count, _)| count).sum();
        let mut firsts: Vec<Duration> = counts.iter().map(|(_, first)| *first).collect();
        firsts.sort();
        println!(
            "| {clients} clients × {tokens} tokens | {:.1} tokens/s | first token: median {:.0} ms | shard idle {:.2}% | client used {:.0}% of a core |",
            total as f64 / wall,
            ms(firsts[firsts.len() / 2]),
            1e-4 * (server.metric("millrace_shard_idle_micros_total") - idle) / wall,
            100.0 * (cpu_seconds(std::process::id()) - spent) / wall,
        );
    }

    println!("| shard idle while 16 streams run | {:.2}% |", idle(&server, model.steady));

    let mut rates = Vec::new();
    for round in 0..3 {
        let prompt: String = format!("{round}: the fox and the lantern went over the hill. ").repeat(80);
        let prompt: String = prompt.chars().take(model.prompt_chars).collect();
        let since = Instant::now();
        let answer = post(&server.url("/generate"), &request(&prompt, 1));
        let wall = since.elapsed().as_secs_f64();
        assert_eq!(answer.status, 200, "{}", answer.body);
        let tokens: f64 = answer.header("x-prompt-tokens").unwrap().parse().unwrap();
        rates.push((tokens / wall, tokens));
    }
    rates.sort_by(|a, b| a.0.total_cmp(&b.0));
    println!("| prefill of {} tokens | {:.0} tokens/s |", rates[1].1, rates[1].0);

    let prompt: String = "the lantern and the fox went over the hill, ".repeat(400);
    let again = request(&prompt[..model.prefix_chars], 2);
    let [cold, warm] = [0, 1].map(|_| {
        let since = Instant::now();
        let mut events = stream(&server.url("/generate_stream"), &again);
        assert_eq!(events.status, 200);
        assert!(events.next().is_some());
        since.elapsed()
    });
    let answer = post(&server.url("/generate"), &again);
    let tokens = |name: &str| answer.header(name).unwrap().to_owned();
    println!(
        "| first token after {} tokens | {:.0} ms; again, {} of them cached: {:.1} ms ({:.2}%) |",
        tokens("x-prompt-tokens"),
        ms(cold),
        tokens("x-cached-tokens"),
        ms(warm),
        100.0 * ms(warm) / ms(cold),
    );

    let shard: u64 = shards_of(server.pid()).into_iter().map(resident_bytes).sum();
    println!("| memory, router | {} MiB |", resident_bytes(server.pid()) >> 20);
    println!("| memory, shard | {} MiB |", shard >> 20);
}

fn request(prompt: &str, tokens: usize) -> Value {
    json!({"inputs": prompt, "parameters": {"max_new_tokens": tokens, "return_full_text": false}})
}

/// Of each round: tokens received and the time to the first one.
fn generate(server: &Server, client: usize, tokens: usize, rounds: usize) -> Vec<(usize, Duration)> {
    let generate = |round: usize| {
        let prompt = format!("{round} times upon a time there was a fox with {client} lanterns");
        let since = Instant::now();
        let mut events = stream(&server.url("/generate_stream"), &request(&prompt, tokens));
        assert_eq!(events.status, 200);
        let Some(_) = events.next() else { return (0, Duration::MAX) };
        let first = since.elapsed();
        (1 + events.count(), first)
    };
    (0..rounds).map(generate).collect()
}

/// The shard's idle time between steps while 16 sequences run, in percent.
fn idle(server: &Server, tokens: usize) -> f64 {
    const STREAMS: usize = 16;
    let body = |client: usize| {
        // Without the marks that end a text.
        json!({"model": "tgi", "prompt": format!("{client} foxes"), "max_tokens": tokens, "temperature": 0,
               "stream": true, "logit_bias": {"0": -100, "1": -100, "2": -100}})
    };
    let seen = AtomicUsize::new(0);
    let reach = |count: usize| {
        while seen.load(Ordering::Relaxed) < count {
            std::thread::sleep(Duration::from_millis(2));
        }
        (server.metric("millrace_shard_idle_micros_total"), Instant::now())
    };
    std::thread::scope(|scope| {
        for client in 0..STREAMS {
            let (seen, body) = (&seen, body(client));
            scope.spawn(move || {
                for _ in stream(&server.url("/v1/completions"), &body) {
                    seen.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        let (before, since) = reach(STREAMS * tokens / 8);
        let (after, until) = reach(STREAMS * tokens * 7 / 8);
        1e-4 * (after - before) / (until - since).as_secs_f64()
    })
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
