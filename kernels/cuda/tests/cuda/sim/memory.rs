//! Shared and device memory, atomics, asynchronous copies, parameters.

use millrace_cuda::params::ParamsLayout;

use super::shared::sim_tests::{AtomicsParams, CopiesParams, TakesAllParams, WriteAtParams};
use super::*;

#[test]
fn barriers_order_shared_memory() {
    in_all_orders(|sim| {
        let out = sim.words(3 * 100);
        sim.run("neighbours", Grid::flat(3, 100), &case(&out, 1)).unwrap();
        let want: Vec<u32> = (0..300).map(|i| i / 100 * 1000 + (i % 100 + 1) % 100).collect();
        assert_eq!(sim.get(&out), want, "{:?}", sim.order);
    });
}

/// Without the barrier, no schedule gives the right result.
#[test]
fn a_missing_barrier_gives_wrong_results() {
    in_all_orders(|sim| {
        let out = sim.words(100);
        sim.run("neighbours", block(100), &case(&out, 0)).unwrap();
        let wrong = (0..100).filter(|&i| sim.get(&out)[i] != (i as u32 + 1) % 100).count();
        assert!(wrong > 0, "{:?}", sim.order);
    });
}

#[test]
fn shared_memory_starts_as_garbage_in_every_block() {
    in_all_orders(|sim| {
        let out = sim.words(8 * 9);
        sim.run("untouched", Grid::flat(9, 1).with_shared(16), &output(&out)).unwrap();
        assert!(sim.get(&out).iter().all(|&word| word == 0xCDCD_CDCD));
    });
}

#[test]
fn atomics_add_up_over_blocks() {
    in_all_orders(|sim| {
        let numbers = sim.put(&[0; 8]);
        let (sum, wide) = (sim.put(&[0]), sim.put(&[0, 0]));
        let params = AtomicsParams { numbers: at(&numbers), sum: at(&sum), wide: at(&wide) };
        sim.run("atomics", Grid::flat(40, 50), &params).unwrap();
        let got: Vec<i32> = sim.get(&numbers).iter().map(|&n| n as i32).collect();
        assert_eq!(got, [2000, 1999, -1999, 0x7fff_ffff, -4000, 1, 1, 2000]);
        assert_eq!(f32::from_bits(sim.get(&sum)[0]), 1000.0);
        assert_eq!(sim.get(&wide), [0, 2000]);
    });
}

/// The result of the kernel `copies`, in which each thread reads its neighbor's copies: two groups
/// of 64 x 4 words.
fn copied(input: &[u32]) -> Vec<u32> {
    (0..512)
        .map(|i| {
            let from = i / 256 * 256 + (i % 256 / 4 + 1) % 64 * 4 + i % 4;
            if i >= 256 && from % 256 / 4 % 2 == 1 { 0 } else { input[from] }
        })
        .collect()
}

const STALE: u32 = 0x7f7f_7f7f;

#[test]
fn asynchronous_copies_arrive_when_they_are_waited_for() {
    let input: Vec<u32> = (0..512).map(|i| i * 3 + 1).collect();
    let want = copied(&input);
    in_all_orders(|sim| {
        let from = sim.put(&input);
        let run = |which: i32| {
            let out = sim.words(512);
            let params = CopiesParams { out: at(&out), from: at(&from), which };
            sim.run("copies", block(64).with_shared(8192 / 4), &params).map(|()| sim.get(&out))
        };
        let (good, stale, groups) = (0, 1, 2);
        assert_eq!(run(good).unwrap(), want, "{:?}", sim.order);
        assert!(run(stale).unwrap().iter().all(|&word| word == STALE), "{:?}", sim.order);
        let half = run(groups).unwrap();
        assert_eq!(half[..256], want[..256], "the older group has been waited for");
        assert!(half[256..].iter().all(|&word| word == STALE), "the younger group has not");
        for (which, refusal) in [
            (3, "ends with asynchronous copies in flight"),
            (4, "misaligned destination"),
            (5, "outside the block's shared memory"),
        ] {
            let said = run(which).unwrap_err().to_string();
            assert!(said.contains(refusal), "{said}");
        }
        let uncommitted = run(6).unwrap();
        assert!(uncommitted.iter().all(|&word| word == STALE), "a wait is for groups that have ended");
    });
}

/// The byte that guards hold.
const GUARD: u8 = 0xA5;

/// With `MILLRACE_SIM_EXACT` there are no guards, because a sanitizer ends the process instead.
#[test]
fn guards_find_writes_outside_an_allocation() {
    if std::env::var_os("MILLRACE_SIM_EXACT").is_some() {
        return;
    }
    let sim = Sim::new(FiberSchedule::Forward);
    for at in [-1i64, -256, 10, 255] {
        let memory = std::mem::ManuallyDrop::new(sim.device.upload(&[0; 10]).unwrap());
        let out = memory.view(Elem::U8).into();
        sim.run("write_at", block(1), &WriteAtParams { out, at }).unwrap();
        let said = sim.device.synchronize().unwrap_err().to_string();
        assert!(said.contains("outside an allocation of 10 bytes"), "{at}: {said}");
        assert!(sim.device.read(memory.view(Elem::U8)).is_err());
        // The guard is repaired, because freeing a damaged allocation is an error.
        // SAFETY: the byte belongs to the allocation's guards.
        unsafe { *((memory.view(Elem::U8).address() as i64 + at) as *mut u8) = GUARD };
        sim.device.synchronize().unwrap();
        drop(std::mem::ManuallyDrop::into_inner(memory));
    }
}

/// A struct that pretends to be `TakesAllParams` but is shorter.
#[derive(Clone, Copy)]
#[repr(C)]
struct ShortParams {
    out: DevicePtr,
}

// SAFETY: not true, so that the simulated device must refuse the launch.
unsafe impl KernelParams for ShortParams {
    const LAYOUT: &'static ParamsLayout =
        &ParamsLayout { name: c"TakesAllParams", bytes: size_of::<ShortParams>(), pointers: &[] };
    const KERNELS: &'static [&'static str] = &["sim_tests/takes_all"];
}

#[test]
fn parameters_of_another_type_or_size_are_refused() {
    let sim = Sim::new(FiberSchedule::Forward);
    let out = sim.words(1);
    let right = TakesAllParams { out: at(&out), text: DevicePtr::NULL, wide: 3 << 32, f: 2.5, u: 4 };
    sim.run("takes_all", block(1), &right).unwrap();
    assert_eq!(sim.get(&out), [2 + 3 + 4 + 1]);
    let other = sim.refusal("takes_all", block(1), &output(&out));
    assert!(other.contains("takes TakesAllParams, not OutputParams"), "{other}");
    let short = sim.refusal("takes_all", block(1), &ShortParams { out: at(&out) });
    assert!(short.contains("TakesAllParams has 32 bytes, not 8"), "{short}");
    assert!(sim.refusal("nothing", block(1), &right).contains("no kernel of the name nothing"));
}

#[test]
fn impossible_launches_are_refused() {
    let sim = Sim::new(FiberSchedule::Forward);
    let out = sim.words(8);
    let refused = |grid: Grid| sim.refusal("untouched", grid, &output(&out));
    assert!(refused(block(1025)).contains("1 to 1024 threads"));
    assert!(refused(block(0)).contains("1 to 1024 threads"));
    assert!(refused(Grid::flat(0, 1)).contains("grid is empty"));
    let most = sim.device.properties().shared_per_block;
    assert!(refused(block(1).with_shared(most + 1)).contains("more shared memory"));
    // The kernel has 16 bytes of static shared memory.
    assert!(refused(block(1).with_shared(most)).contains("more shared memory"));
}

/// `cargo xtask sanitize` expects the planted tests to end the process, and reads the reason.
#[test]
#[ignore = "the end of the process, if the kernels are compiled with a sanitizer"]
fn planted_overflow_of_dynamic_shared_memory() {
    let sim = Sim::new(FiberSchedule::Forward);
    let out = sim.words(1);
    sim.run("overflow_dynamic", block(32).with_shared(31 * 4), &output(&out)).unwrap();
}

#[test]
#[ignore = "the end of the process, if the kernels are compiled with a sanitizer"]
fn planted_overflow_of_static_shared_memory() {
    let sim = Sim::new(FiberSchedule::Forward);
    let out = sim.words(1);
    sim.run("overflow_static", block(32), &output(&out)).unwrap();
}

#[test]
#[ignore = "the end of the process, if the kernels are compiled with a sanitizer"]
fn planted_write_behind_an_allocation() {
    let sim = Sim::new(FiberSchedule::Forward);
    let out = sim.device.upload(&[0; 10]).unwrap();
    let params = WriteAtParams { out: out.view(Elem::U8).into(), at: 10 };
    sim.run("write_at", block(1), &params).unwrap();
}
