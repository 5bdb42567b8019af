//! Tests with ranks as threads, over both transports.

mod forming;

use std::net::{IpAddr, Ipv4Addr};
use std::ops::RangeInclusive;
use std::sync::{Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use millrace_test_patience::patience;

use super::*;

type Rank = Box<dyn HostCollective>;

const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

/// A time longer than any test takes.
fn long() -> Duration {
    patience(Duration::from_secs(300))
}

fn transports() -> Vec<Transport> {
    let mut transports = vec![Transport::Tcp(LOOPBACK)];
    if cfg!(target_os = "linux") {
        transports.push(Transport::Shm);
    }
    transports
}

/// Forms a group and calls `run` for every rank on its own thread. Returns the results in the order
/// of the ranks.
fn group<T: Send>(
    transport: Transport,
    world_size: usize,
    deadlines: impl Into<Deadlines>,
    run: impl Fn(Rank) -> T + Sync,
) -> Vec<T> {
    let deadlines = deadlines.into();
    let lead = lead(transport, world_size, deadlines).unwrap();
    let address = lead.address();
    let (run, address) = (&run, &address);
    thread::scope(|scope| {
        let others = (1..world_size)
            .map(|rank| scope.spawn(move || run(join(address, rank, world_size, deadlines).unwrap())));
        let others: Vec<_> = others.collect();
        let first = run(lead.wait().unwrap());
        [first].into_iter().chain(others.into_iter().map(|rank| rank.join().unwrap())).collect()
    })
}

/// SplitMix64 (Steele, Lea, Flood, 2014). The seed is printed if the test fails.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }

    fn within(&mut self, range: RangeInclusive<usize>) -> usize {
        range.start() + (self.bits() % (range.end() - range.start() + 1) as u64) as usize
    }
}

/// The values of a rank in a call: numbers whose sum depends on the order of summation.
fn contribution(rank: usize, call: usize, length: usize) -> Vec<f32> {
    let mut state = (rank as u32 + 1).wrapping_mul(0x9e37_79b9) ^ (call as u32).wrapping_mul(0x85eb_ca6b);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let magnitude = (state >> 3 & 7) as i32 - 4;
        ((state >> 8) as f32 / 8_388_608.0 - 1.0) * 10_f32.powi(magnitude)
    };
    (0..length).map(|_| next()).collect()
}

fn sum_of_all(world_size: usize, call: usize, length: usize) -> Vec<f32> {
    let mut sum = contribution(0, call, length);
    for rank in 1..world_size {
        for (sum, value) in sum.iter_mut().zip(contribution(rank, call, length)) {
            *sum += value;
        }
    }
    sum
}

fn assert_same_bits(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let differs = got.iter().zip(want).position(|(got, want)| got.to_bits() != want.to_bits());
    assert_eq!(differs, None, "{what}");
}

fn gathered(rank: &mut Rank, part: &[f32]) -> Result<Vec<Vec<f32>>, CollectiveError> {
    let mut all = vec![Vec::new(); rank.world_size()];
    rank.all_gather(part, &mut |from, offset, chunk| {
        assert_eq!(all[from].len(), offset);
        all[from].extend_from_slice(chunk);
    })?;
    Ok(all)
}

/// Makes one call of an operation, and compares the result with the known values of all ranks.
fn check(rank: &mut Rank, operation: usize, call: usize, length: usize) {
    let (at, world_size) = (rank.rank(), rank.world_size());
    let what = format!("operation {operation}, call {call} of {length} on rank {at} of {world_size}");
    match operation {
        0 => {
            let mut values = contribution(at, call, length);
            rank.all_reduce(&mut values).unwrap();
            assert_same_bits(&values, &sum_of_all(world_size, call, length), &what);
        }
        1 => {
            let all = gathered(rank, &contribution(at, call, length)).unwrap();
            for (from, part) in all.iter().enumerate() {
                assert_same_bits(part, &contribution(from, call, length), &what);
            }
        }
        2 => {
            let text = |at: usize| (0..length).map(|i| (i * 31 + call + at) as u8).collect::<Vec<_>>();
            let mut bytes = text(at);
            rank.broadcast(&mut bytes).unwrap();
            assert!(bytes == text(0), "{what}");
        }
        3 => {
            let from = call % world_size;
            let mut values = contribution(at, call, length);
            rank.pass_on(from, &mut values).unwrap();
            assert_same_bits(&values, &contribution(from, call, length), &what);
        }
        _ => rank.barrier().unwrap(),
    }
}

#[test]
fn bytes_are_gathered_as_they_are() {
    for transport in transports() {
        group(transport, 3, long(), |mut rank| {
            let part =
                |rank: usize| (0..=255).map(|byte: u8| byte.rotate_left(rank as u32)).collect::<Vec<u8>>();
            let own = part(rank.rank());
            let all = rank.all_gather_bytes(&own).unwrap();
            assert_eq!(all, [0, 1, 2].map(part));
            // Longer than one half of the shared memory, and empty.
            let long = vec![rank.rank() as u8; 600_001];
            let all = rank.all_gather_bytes(&long).unwrap();
            assert!(all == [0, 1, 2].map(|rank| vec![rank; 600_001]));
            assert_eq!(rank.all_gather_bytes(&[]).unwrap(), [[], [], []].map(Vec::<u8>::from));
            rank.barrier().unwrap();
        });
    }
}

/// Sizes around all limits at which a transport changes its method: cache lines, blocks, pieces and
/// halves.
const SIZES: [usize; 22] = [
    0, 1, 2, 3, 15, 17, 127, 1009, 4095, 4097, 8191, 8192, 8209, 16_384, 16_411, 65_535, 65_536, 65_537,
    131_071, 196_613, 262_144, 300_007,
];

#[test]
fn every_size_and_world() {
    for transport in transports() {
        for world_size in [1, 2, 3, 4, 7] {
            group(transport, world_size, long(), |mut rank| {
                assert_eq!(rank.world_size(), world_size);
                for (call, length) in SIZES.into_iter().enumerate() {
                    for operation in 0..4 {
                        check(&mut rank, operation, call, length);
                    }
                }
            });
        }
    }
}

#[test]
fn the_largest_world() {
    for transport in transports() {
        group(transport, MAX_WORLD_SIZE, long(), |mut rank| {
            for (call, length) in [1, 1009, 10_007].into_iter().enumerate() {
                check(&mut rank, 0, call, length);
                check(&mut rank, 1, call, length.min(1009));
            }
        });
    }
}

/// Ranks run ahead and fall behind at random. No rank may overwrite values that another still
/// reads.
#[test]
fn thousands_of_operations_with_random_delays() {
    for transport in transports() {
        for world_size in [2, 3, 4] {
            let seed = u64::from(std::process::id()) << 8 | world_size as u64;
            println!("{transport:?}, {world_size} ranks, seed {seed}");
            group(transport, world_size, long(), |mut rank| {
                let mut plan = Random(seed);
                let mut delays = Random(seed ^ (rank.rank() as u64 + 1) << 48);
                for call in 0..3000 {
                    let length = match plan.within(0..=99) {
                        0 => plan.within(60_000..=140_000),
                        1..=10 => plan.within(8000..=9000),
                        _ => plan.within(0..=300),
                    };
                    let operation = plan.within(0..=3);
                    match delays.within(0..=99) {
                        0 => thread::sleep(Duration::from_micros(delays.bits() % 1000)),
                        1..=9 => thread::yield_now(),
                        10..=29 => (0..delays.bits() % 5000).for_each(|_| std::hint::spin_loop()),
                        _ => {}
                    }
                    check(&mut rank, operation, call, length);
                }
            });
        }
    }
}

/// A chunk must stay unchanged until `take` returns, however far ahead the other ranks are.
#[test]
fn a_chunk_is_unchanged_while_it_is_taken() {
    for transport in transports() {
        group(transport, 3, long(), |mut rank| {
            let at = rank.rank();
            for call in 0..60 {
                let part = contribution(at, call, 2000);
                let slow = call % 3 == at;
                let take = &mut |from, offset: usize, chunk: &[f32]| {
                    if slow {
                        thread::sleep(Duration::from_millis(1));
                    }
                    let want = contribution(from, call, 2000);
                    assert_same_bits(chunk, &want[offset..offset + chunk.len()], "taken late");
                };
                rank.all_gather(&part, take).unwrap();
            }
        });
    }
}

#[test]
fn ranks_that_disagree_are_refused() {
    for transport in transports() {
        for world_size in [2, 3, 4] {
            for odd in 0..world_size {
                let errors = group(transport, world_size, long(), |mut rank| {
                    rank.barrier().unwrap();
                    let length = if rank.rank() == odd { 200_000 } else { 200_001 };
                    let mut values = contribution(rank.rank(), 1, length);
                    let before = values.clone();
                    let error = rank.all_reduce(&mut values).unwrap_err();
                    // Nothing is computed, and no later call succeeds.
                    assert_same_bits(&values, &before, "refused");
                    assert!(matches!(rank.barrier(), Err(CollectiveError::Closed { .. })));
                    (rank.rank(), error)
                });
                for (at, error) in errors {
                    let CollectiveError::Mismatch { rank, ours, theirs } = &error else { panic!("{error}") };
                    assert!((at == odd) != (*rank == odd), "{error}");
                    assert_eq!(ours.operation, Operation::AllReduce);
                    assert_eq!(ours.length, if at == odd { 200_000 } else { 200_001 });
                    assert_eq!(theirs.length, if at == odd { 200_001 } else { 200_000 });
                    assert_eq!(ours.sequence, theirs.sequence);
                }
            }
        }
    }
}

#[test]
fn other_operations_are_other_calls() {
    for transport in transports() {
        let errors = group(transport, 3, long(), |mut rank| match rank.rank() {
            0 => gathered(&mut rank, &[1.0; 20_000]).unwrap_err(),
            1 => rank.broadcast(&mut [1; 20_000]).unwrap_err(),
            _ => rank.all_reduce(&mut [1.0; 20_000]).unwrap_err(),
        });
        for error in errors {
            assert!(matches!(error, CollectiveError::Mismatch { .. }), "{error}");
        }
    }
}

/// The ranks that wait are freed while one rank is absent: it comes only when they have told it.
#[test]
fn an_abort_frees_all_ranks_at_once() {
    for transport in transports() {
        // Any rank may abort: one that waits or one that does not, while rank 0 waits or computes.
        for (aborter, absent) in [(0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (2, 2)] {
            let (freed, told) = mpsc::channel();
            let told = Mutex::new(told);
            group(transport, 4, long(), |mut rank| {
                rank.barrier().unwrap();
                let aborts = rank.aborter();
                thread::scope(|scope| {
                    if rank.rank() == aborter {
                        scope.spawn(move || {
                            // Most ranks wait by then. Those that do not must be freed too.
                            thread::sleep(Duration::from_millis(20));
                            aborts.abort();
                            aborts.abort();
                        });
                    }
                    if rank.rank() == absent {
                        let told = told.lock().unwrap();
                        (1..4).for_each(|_| told.recv_timeout(long()).expect("a rank still waits"));
                    }
                    let error = rank.all_reduce(&mut [1.0; 100]).unwrap_err();
                    assert!(
                        matches!(error, CollectiveError::Aborted),
                        "{transport:?} {aborter} {absent}: {error}"
                    );
                    freed.send(()).unwrap();
                    let again = rank.barrier().unwrap_err();
                    let known = matches!(again, CollectiveError::Aborted | CollectiveError::Closed { .. });
                    assert!(known, "{again}");
                });
            });
        }
    }
}

/// Only the call of rank 0 has a short deadline, which must expire.
#[test]
fn a_missing_rank_is_named() {
    let deadline = Duration::from_millis(300);
    for transport in transports() {
        let (release, wait) = mpsc::channel::<()>();
        let (release, wait) = (Mutex::new(Some(release)), Mutex::new(wait));
        let deadlines = Deadlines { forming: long(), call: deadline };
        group(transport, 2, deadlines, |mut rank| match rank.rank() {
            0 => {
                let since = Instant::now();
                let error = rank.all_reduce(&mut [1.0; 3]).unwrap_err();
                assert!(since.elapsed() >= deadline);
                assert_eq!(error.to_string(), "all-reduce: waited 300ms for rank 1");
                assert!(matches!(rank.all_reduce(&mut [1.0]), Err(CollectiveError::Closed { rank: 0 })));
                release.lock().unwrap().take();
            }
            _ => {
                let _ = wait.lock().unwrap().recv();
                // A late call fails at once.
                rank.barrier().expect_err("rank 0 has given up");
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_is_not_waited_for() {
    for transport in transports() {
        let errors = group(transport, 3, long(), |mut rank| {
            // The last call succeeds on all ranks, although rank 1 leaves right after it.
            let mut values = [rank.rank() as f32; 1000];
            rank.all_reduce(&mut values).unwrap();
            assert_eq!(values, [3.0; 1000]);
            (rank.rank() != 1).then(|| rank.barrier().unwrap_err())
        });
        for error in errors.into_iter().flatten() {
            assert!(matches!(error, CollectiveError::Closed { .. }), "{error}");
        }
    }
}
