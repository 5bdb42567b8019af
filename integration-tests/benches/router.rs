//! Benchmark of the router alone, with a shard that makes tokens up: `cargo bench -p
//! millrace-integration-tests --bench router`.
//!
//! The arguments are `-- [STREAMS] [TOKENS] [SECONDS] [PATH] [MICROS]`. STREAMS clients repeatedly
//! request TOKENS tokens from a shard that answers a step at once or after MICROS microseconds. The
//! client is one thread that counts events without parsing them. Its share of the CPU is printed.
#![allow(clippy::unwrap_used, reason = "a benchmark that fails may panic")]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use millrace_integration_tests::{Server, cpu_seconds, shards_of};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The events of all clients and their times.
#[derive(Default)]
struct Seen {
    events: AtomicUsize,
    reads: AtomicUsize,
    over: AtomicBool,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|text| !text.starts_with('-')).collect();
    let number = |index: usize, otherwise: usize| {
        arguments.get(index).map_or(otherwise, |text| text.parse().expect("a number"))
    };
    let (streams, tokens, seconds) = (number(0, 256), number(1, 900), number(2, 8));
    let path = arguments.get(3).map_or("/generate_stream", String::as_str);
    let pace = number(4, 0).to_string();
    let places = streams.to_string();
    let server = Server::start(&[
        "--device",
        "null",
        "--null-step-micros",
        &pace,
        "--max-batch-size",
        &places,
        "--max-concurrent-requests",
        &places,
    ]);
    let body = format!(
        r#"{{"model":"tgi","inputs":"Once upon","prompt":"Once upon","parameters":{{"max_new_tokens":{tokens}}},"max_tokens":{tokens},"stream":true}}"#
    );
    let request = format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        server.address(),
        body.len(),
    );
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let seen = Arc::new(Seen::default());
        let clients: Vec<_> = (0..streams)
            .map(|_| tokio::spawn(client(server.address().to_owned(), request.clone(), seen.clone())))
            .collect();
        // Waits until all streams run.
        tokio::time::sleep(Duration::from_secs(1)).await;
        let pids = [server.pid(), shards_of(server.pid())[0], std::process::id()];
        let read = || {
            (seen.events.load(Ordering::Relaxed), seen.reads.load(Ordering::Relaxed), pids.map(cpu_seconds))
        };
        let (events, reads, spent) = read();
        let since = Instant::now();
        tokio::time::sleep(Duration::from_secs(seconds as u64)).await;
        let (events_after, reads_after, spent_after) = read();
        let wall = since.elapsed().as_secs_f64();
        seen.over.store(true, Ordering::Relaxed);
        let events = (events_after - events) as f64;
        let per_token = |index: usize| 1e6 * (spent_after[index] - spent[index]) / events;
        let (router, shard, client) = (per_token(0), per_token(1), per_token(2));
        println!("| streams | {streams} of {tokens} tokens to {path} |");
        println!("| a step takes | {pace} us |");
        println!("| measured | {:.0} tokens/s |", events / wall);
        println!("| CPU per token | router {router:.2} us, shard {shard:.2} us, client {client:.2} us |");
        println!("| two cores without the client | {:.0} tokens/s |", 2e6 / (router + shard));
        println!("| events per read of the client | {:.2} |", events / (reads_after - reads) as f64);
        let mut gaps = Vec::new();
        for client in clients {
            gaps.extend(client.await.unwrap());
        }
        gaps.sort_unstable();
        let at = |part: usize| f64::from(gaps[(gaps.len() - 1) * part / 1000]) / 1e3;
        println!(
            "| between two reads of a stream | median {:.1} ms, 99% {:.1} ms, 99.9% {:.1} ms |",
            at(500),
            at(990),
            at(999)
        );
    });
}

/// Returns the times between the reads of the client's streams in microseconds.
async fn client(address: String, request: String, seen: Arc<Seen>) -> Vec<u32> {
    let (mut buffer, mut gaps) = (vec![0; 64 << 10], Vec::new());
    while !seen.over.load(Ordering::Relaxed) {
        let mut stream = TcpStream::connect(&address).await.unwrap();
        stream.write_all(request.as_bytes()).await.unwrap();
        let (mut last_byte, mut last_read, mut events) = (0, None, 0);
        while !seen.over.load(Ordering::Relaxed) {
            let read = stream.read(&mut buffer).await.unwrap();
            if read == 0 {
                assert!(events > 0, "a stream without events");
                break;
            }
            let now = Instant::now();
            if let Some(last) = last_read.replace(now) {
                gaps.push((now - last).as_micros() as u32);
            }
            // An event ends with an empty line, and the body contains no other empty lines.
            let mut count = 0;
            for &byte in &buffer[..read] {
                count += usize::from(byte == b'\n' && last_byte == b'\n');
                last_byte = byte;
            }
            events += count;
            seen.events.fetch_add(count, Ordering::Relaxed);
            seen.reads.fetch_add(1, Ordering::Relaxed);
        }
    }
    gaps
}
