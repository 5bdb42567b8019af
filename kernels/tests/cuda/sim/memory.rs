//! Shared and device memory, atomics, asynchronous copies, parameters.

use super::*;

#[test]
fn barriers_order_shared_memory() {
    in_all_orders(|sim| {
        let out = sim.words(3 * 100);
        let with = args().with(all(&out)).with(1);
        sim.run("neighbours", Grid::flat(3, 100), &with).unwrap();
        let want: Vec<u32> = (0..300).map(|i| i / 100 * 1000 + (i % 100 + 1) % 100).collect();
        assert_eq!(sim.get(&out), want, "{:?}", sim.order);
    });
}

/// Without the barrier every order but one gives something else, and none gives what is right.
#[test]
fn a_missing_barrier_shows() {
    in_all_orders(|sim| {
        let out = sim.words(100);
        sim.run("neighbours", block(100), &args().with(all(&out)).with(0)).unwrap();
        let wrong = (0..100).filter(|&i| sim.get(&out)[i] != (i as u32 + 1) % 100).count();
        assert!(wrong > 0, "{:?}", sim.order);
    });
}

#[test]
fn shared_memory_starts_as_garbage_in_every_block() {
    in_all_orders(|sim| {
        let out = sim.words(8 * 9);
        sim.run("untouched", Grid::flat(9, 1).with_shared(16), &args().with(all(&out))).unwrap();
        assert!(sim.get(&out).iter().all(|&word| word == 0xCDCD_CDCD));
    });
}

#[test]
fn atomics_add_up_over_blocks() {
    in_all_orders(|sim| {
        let numbers = sim.put(&[0; 8]);
        let (sum, wide) = (sim.put(&[0]), sim.put(&[0, 0]));
        let with = args().with(all(&numbers)).with(all(&sum)).with(all(&wide));
        sim.run("atomics", Grid::flat(40, 50), &with).unwrap();
        let got: Vec<i32> = sim.get(&numbers).iter().map(|&n| n as i32).collect();
        assert_eq!(got, [2000, 1999, -1999, 0x7fff_ffff, -4000, 1, 1, 2000]);
        assert_eq!(f32::from_bits(sim.get(&sum)[0]), 1000.0);
        assert_eq!(sim.get(&wide), [0, 2000]);
    });
}

/// What the copies of the kernel `copies` leave, before its neighbours' view of it: two groups of 64 x 4 words.
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
            let with = args().with(all(&out)).with(all(&from)).with(which);
            sim.run("copies", block(64).with_shared(8192 / 4), &with).map(|()| sim.get(&out))
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

/// What the guards hold.
const GUARD: u8 = 0xA5;

/// With `MILLRACE_SIM_EXACT` there are no guards: a sanitizer stands in for them, and ends the process.
#[test]
fn guards_find_writes_outside_an_allocation() {
    if std::env::var_os("MILLRACE_SIM_EXACT").is_some() {
        return;
    }
    let sim = Sim::new(Order::Forward);
    for at in [-1i64, -256, 10, 255] {
        let memory = std::mem::ManuallyDrop::new(sim.device.upload(&[0; 10]).unwrap());
        sim.run("write_at", block(1), &args().with(memory.view(Elem::U8)).with(at)).unwrap();
        let said = sim.device.synchronize().unwrap_err().to_string();
        assert!(said.contains("outside an allocation of 10 bytes"), "{at}: {said}");
        assert!(sim.device.read(memory.view(Elem::U8)).is_err());
        // Mended, because a damaged allocation may not even be freed.
        // SAFETY: the byte belongs to the allocation's guards.
        unsafe { *((memory.view(Elem::U8).address() as i64 + at) as *mut u8) = GUARD };
        sim.device.synchronize().unwrap();
        drop(std::mem::ManuallyDrop::into_inner(memory));
    }
}

#[test]
fn parameters_of_another_number_or_size_are_refused() {
    let sim = Sim::new(Order::Forward);
    let out = sim.words(1);
    let right = args().with(all(&out)).with(2.5f32).with(3i64 << 32).with(4u32).with(0u64);
    sim.run("takes_all", block(1), &right).unwrap();
    assert_eq!(sim.get(&out), [2 + 3 + 4 + 1]);
    let refused = |with: Args| sim.refusal("takes_all", block(1), &with);
    assert!(refused(right.with(1)).contains("takes 5 parameters, not 6"));
    assert!(refused(args().with(all(&out))).contains("takes 5 parameters, not 1"));
    let narrow = args().with(all(&out)).with(2.5f32).with(3).with(4u32).with(0u64);
    assert!(refused(narrow).contains("parameter 2 has 8 bytes, not 4"));
    assert!(sim.refusal("nothing", block(1), &right).contains("no kernel of the name nothing"));
}

#[test]
fn impossible_launches_are_refused() {
    let sim = Sim::new(Order::Forward);
    let out = sim.words(8);
    let refused = |grid: Grid| sim.refusal("untouched", grid, &args().with(all(&out)));
    assert!(refused(block(1025)).contains("1 to 1024 threads"));
    assert!(refused(block(0)).contains("1 to 1024 threads"));
    assert!(refused(Grid::flat(0, 1)).contains("grid is empty"));
    assert!(refused(block(1).with_shared((227 << 10) + 1)).contains("more shared memory"));
    // 16 bytes are the kernel's own.
    assert!(refused(block(1).with_shared(227 << 10)).contains("more shared memory"));
}

/// `cargo xtask sanitize` expects these two to die, and reads why.
#[test]
#[ignore = "the end of the process, if the kernels are compiled with a sanitizer"]
fn planted_overflow_of_dynamic_shared_memory() {
    let sim = Sim::new(Order::Forward);
    let out = sim.words(1);
    sim.run("overflow_dynamic", block(32).with_shared(31 * 4), &args().with(all(&out))).unwrap();
}

#[test]
#[ignore = "the end of the process, if the kernels are compiled with a sanitizer"]
fn planted_overflow_of_static_shared_memory() {
    let sim = Sim::new(Order::Forward);
    let out = sim.words(1);
    sim.run("overflow_static", block(32), &args().with(all(&out))).unwrap();
}

#[test]
#[ignore = "the end of the process, if the kernels are compiled with a sanitizer"]
fn planted_write_behind_an_allocation() {
    let sim = Sim::new(Order::Forward);
    let out = sim.device.upload(&[0; 10]).unwrap();
    sim.run("write_at", block(1), &args().with(out.view(Elem::U8)).with(10i64)).unwrap();
}
