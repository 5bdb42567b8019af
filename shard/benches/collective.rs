//! All-reduce between processes of this machine, over shared memory and over TCP on the loopback.
//!
//! `cargo bench -p millrace-shard --bench collective [-- --ranks N]`
//!
//! The time is that of the median call on rank 0; GB/s are the bytes of one rank's vector over it.
//! Copying the same vector to and fro between two buffers is measured in between, because shared
//! machines vary.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed benchmark")]

use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use millrace_shard::collective::{HostCollective, Transport, join, lead};

/// Variable that passes rank, world size and address to the children.
const CHILD: &str = "MILLRACE_BENCH_COLLECTIVE";
const DEADLINE: Duration = Duration::from_secs(30);
const SIZES: [usize; 4] = [8 << 10, 64 << 10, 1 << 20, 4 << 20];

fn main() {
    if let Ok(told) = std::env::var(CHILD) {
        let mut told = told.split(' ');
        let mut next = || told.next().unwrap();
        let (rank, world_size) = (next().parse().unwrap(), next().parse().unwrap());
        let address: Vec<u8> = next().split(',').map(|byte| byte.parse().unwrap()).collect();
        let mut group = join(&address, rank, world_size, DEADLINE).unwrap();
        for bytes in SIZES {
            measure(group.as_mut(), bytes);
        }
        return;
    }
    let arguments: Vec<String> = std::env::args().collect();
    let ranks = arguments.iter().position(|argument| argument == "--ranks");
    let world_size = ranks.map_or(2, |at| arguments[at + 1].parse().unwrap());
    for wire in [Transport::Shm, Transport::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST))] {
        match lead(wire, world_size, DEADLINE) {
            Ok(lead) => {
                let address = lead.address();
                let mut children: Vec<_> =
                    (1..world_size).map(|rank| start(rank, world_size, &address)).collect();
                let mut group = lead.wait().unwrap();
                println!("{wire:?}, {world_size} ranks");
                SIZES.into_iter().for_each(|bytes| report(group.as_mut(), bytes));
                drop(group);
                children.iter_mut().for_each(|child| assert!(child.wait().unwrap().success()));
            }
            Err(error) => println!("{wire:?}: {error}"),
        }
    }
}

fn start(rank: usize, world_size: usize, address: &[u8]) -> Child {
    let address: Vec<_> = address.iter().map(u8::to_string).collect();
    let told = format!("{rank} {world_size} {}", address.join(","));
    Command::new(std::env::current_exe().unwrap()).env(CHILD, told).spawn().unwrap()
}

fn report(group: &mut dyn HostCollective, bytes: usize) {
    let took = measure(group, bytes);
    let (from, mut to) = (vec![1.0_f32; bytes / 4], vec![0.0_f32; bytes / 4]);
    let copied = median(calls(bytes), || std::hint::black_box(&mut to).copy_from_slice(&from));
    let rate = |took: Duration| bytes as f64 / took.as_secs_f64() / 1e9;
    println!(
        "  {:5} KiB: {:8.1} us, {:6.2} GB/s   (a copy: {:7.1} us, {:6.2} GB/s)",
        bytes >> 10,
        took.as_secs_f64() * 1e6,
        rate(took),
        copied.as_secs_f64() * 1e6,
        rate(copied),
    );
}

fn measure(group: &mut dyn HostCollective, bytes: usize) -> Duration {
    // The values are zeros, because sums of other values would grow without limit.
    let mut values = vec![0.0_f32; bytes / 4];
    for _ in 0..20 {
        group.all_reduce(&mut values).unwrap();
    }
    median(calls(bytes), || group.all_reduce(&mut values).unwrap())
}

/// Returns the number of calls to measure: about 256 MiB in all.
fn calls(bytes: usize) -> usize {
    ((256 << 20) / bytes).min(10_000)
}

fn median(calls: usize, mut call: impl FnMut()) -> Duration {
    let timed = |_| {
        let since = Instant::now();
        call();
        since.elapsed()
    };
    let mut times: Vec<_> = (0..calls).map(timed).collect();
    times.sort_unstable();
    times[calls / 2]
}
