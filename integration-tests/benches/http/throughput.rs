//! The table of throughput: the time from process start to the first answer, tokens per second with
//! 1 to 32 clients, the shard's idle time between steps, prefill tokens per second, and memory. The
//! client shares the CPU with the server, and its own share of the time is printed.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{Server, binary, cpu_seconds, post, resident_bytes, shards_of, stream};
use serde_json::{Value, json};

use crate::model::BenchModel;

/// Measures the binary of this build with one model and prints the table.
pub(crate) fn measure(model: &BenchModel) {
    println!("\n## {}: throughput\n", model.name);
    let flags: Vec<&str> = model.flags.iter().map(String::as_str).collect();
    // The binary is built before the measurement.
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

/// Returns, for each round, the number of received tokens and the time to the first token.
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

/// Returns the shard's idle time between steps in percent while 16 sequences run.
fn idle(server: &Server, tokens: usize) -> f64 {
    const STREAMS: usize = 16;
    let body = |client: usize| {
        // The request excludes the tokens that end a text.
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
