//! Groups of ranks that open each other's memory, each with a device and a thread of its own.

use std::sync::{Arc, Barrier, Mutex};
use std::time::Duration;

use millrace_cuda::ops::allreduce::AllGatherColumns;
use millrace_cuda::{Device, Elem, PeerCollectives, PeerOffer, SharedName, Simulated};
use millrace_test_patience::patience;

use crate::common::{Rng, is_simulated};

/// Bytes of a message.
const CAPACITY: usize = 1 << 10;

/// The timeout of ranks that all arrive. Only ranks that wait for each other forever reach it.
fn long() -> Duration {
    patience(Duration::from_secs(120))
}

/// Whether ranks in threads can open each other's memory. If not, prints that the test is skipped.
fn has_shared_memory() -> bool {
    is_simulated("CUDA shares memory between processes only, and the ranks of these tests are threads")
}

/// Runs `work` as every rank of a group.
fn in_group(world: usize, timeout: Duration, work: impl Fn(&Device, usize, PeerCollectives) + Sync) {
    let (names, told) = (Mutex::new(vec![[0; size_of::<SharedName>()]; world]), Barrier::new(world));
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (names, told, work) = (&names, &told, &work);
            scope.spawn(move || {
                let device = Device::new(Arc::new(Simulated::new().unwrap()));
                let offer = PeerOffer::new(&device, CAPACITY).unwrap();
                names.lock().unwrap()[rank] = *offer.name();
                told.wait();
                let names = names.lock().unwrap().clone();
                work(&device, rank, offer.open(rank, &names, timeout).unwrap());
                // With it goes its memory, which others may still read.
                device
            })
        };
        let ranks: Vec<_> = (0..world).map(rank).collect();
        let devices: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        assert!(devices.iter().all(|device| device.is_ok()), "a rank failed");
    });
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Sums and columns of any length, also those that take several messages.
#[test]
fn sums_and_columns_of_any_length() {
    if !has_shared_memory() {
        return;
    }
    for world in [1, 2, 5] {
        in_group(world, long(), |device, rank, peers| {
            peers.self_test().unwrap();
            for len in [0, 1, 256, 257, 1501] {
                let values = |rank: usize| Rng(rank as u64).values(Elem::F32, len);
                let x = device.upload(&raw(&values(rank))).unwrap();
                peers.all_reduce(x.view(Elem::F32)).unwrap();
                let mut want = vec![0.0f32; len];
                for rank in 0..world {
                    want.iter_mut().zip(values(rank)).for_each(|(w, v)| *w += v);
                }
                assert_eq!(floats(&device.read(x.view(Elem::F32)).unwrap()), want);
            }
            let (rows, part_cols) = (11, 60);
            let values = |rank: usize| Rng(rank as u64).values(Elem::F32, rows * part_cols);
            let part = device.upload(&raw(&values(rank))).unwrap();
            let whole = device.allocate(Elem::F32, rows * part_cols * world).unwrap();
            peers
                .all_gather(&AllGatherColumns {
                    rows,
                    part_cols,
                    whole_cols: part_cols * world,
                    part: part.view(Elem::F32),
                    whole: whole.view(Elem::F32),
                })
                .unwrap();
            let parts: Vec<Vec<f32>> = (0..world).map(values).collect();
            let row = |row: usize| parts.iter().flat_map(move |p| &p[row * part_cols..(row + 1) * part_cols]);
            let want: Vec<f32> = (0..rows).flat_map(row).copied().collect();
            assert_eq!(floats(&device.read(whole.view(Elem::F32)).unwrap()), want);
            peers.check().unwrap();
        });
    }
}

/// Whoever has waited in vain knows it without asking the device, and is not made to wait again.
#[test]
fn a_rank_that_is_missed_is_known_to_the_host() {
    if !has_shared_memory() {
        return;
    }
    // The timeout must expire. Rank 1 never arrives, so nothing has to happen within it.
    in_group(2, Duration::from_millis(50), |device, rank, peers| {
        let x = device.upload(&raw(&[1.0; 64])).unwrap();
        if rank == 1 {
            return;
        }
        peers.check().unwrap();
        peers.all_reduce(x.view(Elem::F32)).unwrap();
        device.synchronize().unwrap();
        // The simulated device does this copy, and all later work, when somebody waits for it.
        let mut pinned = device.pinned(4).unwrap();
        device.read_into(x.view(Elem::F32).slice(0..1), &mut pinned, 0..4).unwrap();
        let copied = 1f32.to_le_bytes();
        for said in [peers.check(), peers.all_reduce(x.view(Elem::F32))] {
            assert_eq!(said.unwrap_err().to_string(), "rank 1 did not take part in a collective within 50ms");
        }
        assert_ne!(pinned[..], copied, "the host has waited for the device");
        device.synchronize().unwrap();
        assert_eq!(pinned[..], copied);
    });
}

/// Memory that is not there, or is another group's, is refused with the rank it should have been
/// of.
#[test]
fn what_cannot_be_opened_is_named() {
    if !has_shared_memory() {
        return;
    }
    let device = Device::new(Arc::new(Simulated::new().unwrap()));
    let offer = || PeerOffer::new(&device, CAPACITY).unwrap();
    let error = |other: &SharedName| {
        let own = offer();
        let names = [*own.name(), *other];
        own.open(0, &names, long()).unwrap_err().to_string()
    };
    // Of a process that cannot be.
    let gone = [0xff; size_of::<SharedName>()];
    assert!(error(&gone).starts_with("the memory of rank 1: it cannot be opened"), "{}", error(&gone));
    let longer = PeerOffer::new(&device, 2 * CAPACITY).unwrap();
    assert!(error(longer.name()).contains("not as long"), "{}", error(longer.name()));
}
