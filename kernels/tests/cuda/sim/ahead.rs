//! What a kernel may do while the one before it still runs: nothing that concerns memory but read weights, up to its wait.

use super::*;

/// The cases of the kernel `ahead`, in its order.
#[derive(Debug, Clone, Copy)]
enum Case {
    Nothing,
    Weights,
    Read,
    Write,
    Atomic,
    Copy,
    Leave,
    Barrier,
}

const GRID: (usize, u32) = (5, 64);

fn run(sim: &Sim, case: Case) -> Result<Vec<u32>> {
    let (blocks, threads) = GRID;
    let (out, words) = (sim.words(blocks * threads as usize), sim.put(&[7, 8, 9, 10]));
    let args = args().with(all(&out)).with(all(&words)).with(0u64).with(case as i32);
    sim.run("ahead", Grid::flat(blocks, threads), &args)?;
    Ok(sim.get(&out))
}

#[test]
fn what_concerns_no_memory_or_weights_alone_may_come_before_the_wait() {
    in_all_orders(|sim| {
        for (case, want) in [(Case::Nothing, 0), (Case::Weights, 17), (Case::Barrier, 0)] {
            assert!(run(sim, case).unwrap().iter().all(|&word| word == want), "{case:?}");
        }
    });
}

#[test]
fn what_touches_memory_before_the_wait_or_never_waits_is_refused() {
    in_all_orders(|sim| {
        for (case, why) in [
            (Case::Read, "memory of parameter 1 is touched before the wait"),
            (Case::Write, "memory of parameter 0 is touched before the wait"),
            (Case::Atomic, "memory of parameter 0 is touched before the wait"),
            (Case::Copy, "a copy of memory begins before the wait"),
            (Case::Leave, "a thread ends without waiting"),
        ] {
            let said = run(sim, case).expect_err("the launch must be refused").to_string();
            assert!(said.contains(why), "{case:?}: {said}");
        }
    });
}
