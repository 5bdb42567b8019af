//! Tests with ranks as processes: they compute together, and a killed rank leaves no rank waiting
//! and nothing behind.

use std::io::{BufRead, BufReader};
use std::net::{IpAddr, Ipv4Addr};
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millrace_shard::collective::{CollectiveError, Deadlines, HostCollective, Transport, join, lead};
use millrace_test_patience::patience;

// Variables that pass the settings to the children.
const RANK: &str = "MILLRACE_TEST_COLLECTIVE_RANK";
const WORLD_SIZE: &str = "MILLRACE_TEST_COLLECTIVE_WORLD_SIZE";
const WIRE: &str = "MILLRACE_TEST_COLLECTIVE_WIRE";
const ADDRESS: &str = "MILLRACE_TEST_COLLECTIVE_ADDRESS";
const ROUNDS: &str = "MILLRACE_TEST_COLLECTIVE_ROUNDS";
const CALL_MILLIS: &str = "MILLRACE_TEST_COLLECTIVE_CALL_MILLIS";

/// The deadline of calls in a group that loses a rank. Over shared memory it must expire.
const SHORT: Duration = Duration::from_secs(1);

/// A time longer than any test takes.
fn long() -> Duration {
    patience(Duration::from_secs(120))
}

/// The name of the test that is the body of a rank's process.
const CHILD: &str = "collective::child";

/// The exit code of a child whose error is the consequence of a killed rank.
const LOST_A_RANK: i32 = 3;

/// The body of a rank's process. It does nothing unless another test starts it.
#[test]
fn child() {
    let Ok(rank) = std::env::var(RANK) else { return };
    let number = |name| std::env::var(name).unwrap().parse::<usize>().unwrap();
    let (rank, world_size): (usize, _) = (rank.parse().unwrap(), number(WORLD_SIZE));
    let call = Duration::from_millis(number(CALL_MILLIS) as u64);
    let deadlines = Deadlines { forming: long(), call };
    let mut group = if rank == 0 {
        let wire = match std::env::var(WIRE).unwrap().as_str() {
            "shm" => Transport::Shm,
            _ => Transport::Tcp(IpAddr::V4(Ipv4Addr::LOCALHOST)),
        };
        let lead = lead(wire, world_size, deadlines).unwrap();
        println!("\naddress {}", hex(&lead.address()));
        lead.wait().unwrap()
    } else {
        join(&unhex(&std::env::var(ADDRESS).unwrap()), rank, world_size, deadlines).unwrap()
    };
    println!("\nformed");
    match compute(group.as_mut(), number(ROUNDS)) {
        Ok(()) => {}
        Err(CollectiveError::TimedOut { .. } | CollectiveError::Closed { .. }) => {
            std::process::exit(LOST_A_RANK)
        }
        Err(other) => panic!("{other}"),
    }
}

/// Computes sums, and checks them on every rank.
fn compute(group: &mut dyn HostCollective, rounds: usize) -> Result<(), CollectiveError> {
    let (rank, world_size) = (group.rank(), group.world_size());
    let mut values = vec![0.0; 100_003];
    for round in 0..rounds {
        let length = if round % 50 == 0 { values.len() } else { 257 };
        let values = &mut values[..length];
        let value = |rank: usize, at: usize| (at % 97 + rank * 3 + round % 11) as f32;
        for (at, slot) in values.iter_mut().enumerate() {
            *slot = value(rank, at);
        }
        group.all_reduce(values)?;
        for (at, &sum) in values.iter().enumerate() {
            assert_eq!(sum, (0..world_size).map(|rank| value(rank, at)).sum::<f32>());
        }
    }
    Ok(())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Vec<u8> {
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

/// The settings that all ranks of a group share.
#[derive(Clone, Copy)]
struct Settings {
    wire: &'static str,
    world_size: usize,
    rounds: usize,
    /// The deadline of a call.
    call: Duration,
}

/// The process of a rank. It is killed when the test ends early.
struct Process {
    child: Child,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(rank: usize, address: &str, settings: Settings) -> Process {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", CHILD, "--nocapture"])
            .env(RANK, rank.to_string())
            .env(WORLD_SIZE, settings.world_size.to_string())
            .env(WIRE, settings.wire)
            .env(ADDRESS, address)
            .env(ROUNDS, settings.rounds.to_string())
            .env(CALL_MILLIS, settings.call.as_millis().to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let output = BufReader::new(child.stdout.take().unwrap());
        Process { child, output }
    }

    /// Returns the rest of the first line that begins with `word`.
    fn line(&mut self, word: &str) -> String {
        for line in (&mut self.output).lines() {
            if let Some(rest) = line.unwrap().strip_prefix(word) {
                return rest.trim().to_owned();
            }
        }
        panic!("a rank has ended without the line {word}");
    }

    fn ended(&mut self) -> ExitStatus {
        let since = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < long(), "a rank still waits");
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // This fails only for a process that has ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn start(settings: Settings) -> Vec<Process> {
    let mut first = Process::start(0, "", settings);
    let address = first.line("address ");
    let others = (1..settings.world_size).map(|rank| Process::start(rank, &address, settings));
    let mut ranks: Vec<_> = [first].into_iter().chain(others).collect();
    for rank in &mut ranks {
        rank.line("formed");
    }
    ranks
}

fn wires() -> &'static [&'static str] {
    if cfg!(target_os = "linux") { &["shm", "tcp"] } else { &["tcp"] }
}

/// Returns the names of shared memory that a group may have left.
fn left_behind() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return Vec::new() };
    let names = entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    let mut names: Vec<_> = names.filter(|name| name.contains("millrace")).collect();
    names.sort();
    names
}

#[test]
fn processes_sum_together() {
    for &wire in wires() {
        for world_size in [2, 4] {
            for mut rank in start(Settings { wire, world_size, rounds: 500, call: long() }) {
                assert_eq!(rank.ended().code(), Some(0), "{wire}, {world_size} ranks");
            }
        }
    }
}

#[test]
fn a_killed_rank_leaves_no_rank_waiting_and_nothing_behind() {
    let before = left_behind();
    for &wire in wires() {
        for (world_size, victim) in [(2, 0), (2, 1), (4, 0), (4, 2)] {
            // A rank that is slow may be missed before the other one is killed, with the same
            // result.
            let mut ranks = start(Settings { wire, world_size, rounds: usize::MAX, call: SHORT });
            thread::sleep(Duration::from_millis(100));
            ranks[victim].child.kill().unwrap();
            for (rank, process) in ranks.iter_mut().enumerate().filter(|(rank, _)| *rank != victim) {
                let status = process.ended();
                let what = format!("{wire}, rank {rank} of {world_size} without rank {victim}");
                assert_eq!(status.code(), Some(LOST_A_RANK), "{what}");
            }
            drop(ranks);
            assert_eq!(left_behind(), before);
        }
    }
}
