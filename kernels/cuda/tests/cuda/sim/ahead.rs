//! Actions of a kernel while the previous one still runs: up to its wait it may only read weights.

use super::shared::sim_tests::AheadParams;
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
    let params = AheadParams { out: at(&out), from: at(&words), unused: DevicePtr::NULL, which: case as i32 };
    sim.run("ahead", Grid::flat(blocks, threads), &params)?;
    Ok(sim.get(&out))
}

#[test]
fn actions_without_memory_and_reads_of_weights_may_come_before_the_wait() {
    in_all_orders(|sim| {
        for (case, want) in [(Case::Nothing, 0), (Case::Weights, 17), (Case::Barrier, 0)] {
            assert!(run(sim, case).unwrap().iter().all(|&word| word == want), "{case:?}");
        }
    });
}

#[test]
fn kernels_that_touch_memory_before_the_wait_or_never_wait_are_refused() {
    in_all_orders(|sim| {
        for (case, why) in [
            (Case::Read, "memory of the parameter from is touched before the wait"),
            (Case::Write, "memory of the parameter out is touched before the wait"),
            (Case::Atomic, "memory of the parameter out is touched before the wait"),
            (Case::Copy, "a copy of memory begins before the wait"),
            (Case::Leave, "a thread ends without waiting"),
        ] {
            let said = run(sim, case).expect_err("the launch must be refused").to_string();
            assert!(said.contains(why), "{case:?}: {said}");
        }
    });
}
