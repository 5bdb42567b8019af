//! The table of throughput: the time from process start to the first answer, tokens per second with
//! 1 to 32 clients, the shard's idle time between steps, prefill tokens per second, and memory. The
//! clients share the CPU with the server.

use std::time::{Duration, Instant};

use millrace_integration_tests::{Server, binary, post, resident_bytes, shards_of};
use serde_json::{Value, json};

use crate::load::Load;
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
        let before = server.metric("millrace_shard_idle_micros_total");
        let requests = clients * model.rounds;
        let figures = stream(&server, clients, requests, tokens).figures();
        let idle = server.metric("millrace_shard_idle_micros_total") - before;
        println!(
            "| {clients} clients × {tokens} tokens | {:.1} tokens/s | first token: median {:.0} ms | shard idle {:.2}% |",
            number(&figures, "/output_tokens_per_second"),
            number(&figures, "/ttft_ms/p50"),
            1e-4 * idle / number(&figures, "/seconds"),
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
        let mut events = millrace_integration_tests::stream(&server.url("/generate_stream"), &again);
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

/// Starts clients with short prompts that stream `requests` answers in all.
fn stream(server: &Server, clients: usize, requests: usize, tokens: usize) -> Load {
    let [clients, requests, tokens] = [clients, requests, tokens].map(|number| number.to_string());
    let flags = ["--concurrency", &clients, "--requests", &requests, "--max-tokens", &tokens];
    Load::start(server, 1, &[&flags[..], &["--prompt-words", "12"]].concat())
}

/// Returns the shard's idle time between steps in percent while 16 sequences run.
fn idle(server: &Server, tokens: usize) -> f64 {
    const STREAMS: usize = 16;
    let load = stream(server, STREAMS, STREAMS, tokens);
    let read = || (server.metric("millrace_shard_idle_micros_total"), Instant::now());
    server.wait_until("all streams run", |server| server.metric("tgi_batch_current_size") == STREAMS as f64);
    let (before, since) = read();
    let (mut after, mut until) = (before, since);
    while server.metric("tgi_batch_current_size") == STREAMS as f64 {
        (after, until) = read();
        std::thread::sleep(Duration::from_millis(50));
    }
    load.figures();
    1e-4 * (after - before) / (until - since).as_secs_f64()
}

/// Returns a figure of a load.
fn number(figures: &Value, pointer: &str) -> f64 {
    figures.pointer(pointer).and_then(Value::as_f64).unwrap()
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}
