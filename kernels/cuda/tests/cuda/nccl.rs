//! Groups of ranks, each with a device and a thread of its own, over the stand-in for NCCL.

use std::sync::{Arc, Barrier};
use std::time::Duration;

use millrace_cuda::nccl::{Communicator, Nccl};
use millrace_cuda::{Device, Elem, Simulated};
use millrace_test_patience::patience;

use crate::common::{Rng, is_simulated, round};

/// The deadline of ranks that all arrive. Only ranks that wait for each other forever reach it.
fn long() -> Duration {
    patience(Duration::from_secs(120))
}

fn nccl() -> Arc<Nccl> {
    Arc::new(Nccl::open_file(Simulated::nccl_library()).unwrap())
}

/// Whether there is the stand-in, which exchanges memory of simulated devices. If not, prints that
/// the test is skipped.
fn has_stand_in() -> bool {
    is_simulated("the stand-in for NCCL exchanges memory of simulated devices")
}

/// Runs `work` as every rank of a group. No rank leaves before all are done.
fn in_group(world: usize, work: impl Fn(&Device, &Communicator) + Sync) {
    let nccl = nccl();
    let id = nccl.unique_id().unwrap();
    std::thread::scope(|scope| {
        let rank = |rank| {
            let (nccl, id, work) = (nccl.clone(), &id, &work);
            scope.spawn(move || {
                let device = Device::new(Arc::new(Simulated::new().unwrap()));
                let group = Communicator::form(nccl, &device, id, rank, world, long()).unwrap();
                work(&device, &group);
                group
            })
        };
        let ranks: Vec<_> = (0..world).map(rank).collect();
        let groups: Vec<_> = ranks.into_iter().map(|rank| rank.join()).collect();
        assert!(groups.iter().all(|group| group.is_ok()), "a rank failed");
    });
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn raw(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

#[test]
fn sums_gathers_and_broadcasts() {
    if !has_stand_in() {
        return;
    }
    for world in [1, 2, 5] {
        // More than a piece of the wire, and nothing at all.
        for len in [1, 1000, 40_000, 0] {
            let values = |rank: usize| Rng(rank as u64).values(Elem::F32, len);
            in_group(world, |device, group| {
                let own = values(group.rank());
                let sum = device.upload(&raw(&own)).unwrap();
                group.all_reduce(sum.view(Elem::F32)).unwrap();
                let mut want = vec![0.0f32; len];
                for rank in 0..world {
                    want.iter_mut().zip(values(rank)).for_each(|(w, v)| *w += v);
                }
                assert_eq!(floats(&device.read(sum.view(Elem::F32)).unwrap()), want);

                let part = device.upload(&raw(&own)).unwrap();
                let whole = device.allocate(Elem::F32, world * len).unwrap();
                group.all_gather(part.view(Elem::F32), whole.view(Elem::F32)).unwrap();
                let want: Vec<f32> = (0..world).flat_map(values).collect();
                assert_eq!(floats(&device.read(whole.view(Elem::F32)).unwrap()), want);

                group.broadcast(part.view(Elem::F32)).unwrap();
                assert_eq!(floats(&device.read(part.view(Elem::F32)).unwrap()), values(0));
                group.check().unwrap();
            });
        }
    }
}

#[test]
fn sums_in_half_precision_are_rounded_once() {
    if !has_stand_in() {
        return;
    }
    let bits = |rank: usize| -> Vec<f32> { Rng(rank as u64).values(Elem::BF16, 100) };
    in_group(3, |device, group| {
        let bytes: Vec<u8> =
            bits(group.rank()).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        let sum = device.upload(&bytes).unwrap();
        group.all_reduce(sum.view(Elem::BF16)).unwrap();
        let got = device.read(sum.view(Elem::BF16)).unwrap();
        for (i, got) in got.chunks_exact(2).enumerate() {
            let want = round(Elem::BF16, bits(0)[i] + bits(1)[i] + bits(2)[i]);
            assert_eq!(half::bf16::from_le_bytes([got[0], got[1]]).to_f32(), want);
        }
    });
}

#[test]
fn a_rank_that_never_comes_is_not_waited_for_for_ever() {
    if !has_stand_in() {
        return;
    }
    let (nccl, device) = (nccl(), Device::new(Arc::new(Simulated::new().unwrap())));
    let id = nccl.unique_id().unwrap();
    let deadline = Duration::from_millis(300);
    let error = Communicator::form(nccl, &device, &id, 0, 2, deadline).unwrap_err().to_string();
    assert!(error.contains("not all ranks took part within 0.3 s"), "{error}");
}

#[test]
fn an_abort_ends_the_others_wait() {
    if !has_stand_in() {
        return;
    }
    let ready = Barrier::new(2);
    in_group(2, |device, group| {
        let values = device.upload(&raw(&[1.0; 8])).unwrap();
        ready.wait();
        if group.rank() == 0 {
            std::thread::sleep(Duration::from_millis(100));
            group.aborter().abort();
            assert!(group.all_reduce(values.view(Elem::F32)).unwrap_err().to_string().contains("aborted"));
        } else {
            let error = group.all_reduce(values.view(Elem::F32)).unwrap_err().to_string();
            assert!(error.contains("ncclAllReduce: remote process exited"), "{error}");
        }
    });
}

#[test]
fn ranks_in_different_collectives_are_found_out() {
    if !has_stand_in() {
        return;
    }
    in_group(2, |device, group| {
        let values = device.upload(&raw(&[1.0; 8])).unwrap();
        let done = match group.rank() {
            0 => group.all_reduce(values.view(Elem::F32)),
            _ => group.broadcast(values.view(Elem::F32)),
        };
        assert!(done.unwrap_err().to_string().contains("different collectives"));
    });
}

#[test]
fn what_cannot_be_is_refused() {
    if !has_stand_in() {
        return;
    }
    let nccl = nccl();
    let device = Device::new(Arc::new(Simulated::new().unwrap()));
    let form = |id: &[u8]| Communicator::form(nccl.clone(), &device, id, 0, 1, long());
    assert!(form(&[1, 2, 3]).unwrap_err().to_string().contains("not the name of an NCCL group"));
    let group = form(&nccl.unique_id().unwrap()).unwrap();
    let (one, two) = (device.allocate(Elem::E4M3, 1).unwrap(), device.allocate(Elem::F32, 2).unwrap());
    assert!(group.all_reduce(one.view(Elem::E4M3)).unwrap_err().to_string().contains("E4M3"));
    let short = two.view(Elem::F32).slice(0..1);
    assert!(group.all_gather(two.view(Elem::F32), short).unwrap_err().to_string().contains("not 2"));
    let absent = Nccl::open_file("/nowhere/libnccl.so.2".as_ref()).unwrap_err().to_string();
    assert!(absent.contains("/nowhere/libnccl.so.2") && absent.contains("MILLRACE_NCCL_LIBRARY"), "{absent}");
}

/// The real library, where there is one: its functions are all there.
#[test]
fn the_installed_library_is_understood() {
    match Nccl::open() {
        Ok(nccl) => assert!(nccl.version_name().unwrap().starts_with('2')),
        Err(absent) => eprintln!("skipped: {absent}"),
    }
}
