//! Fiber schedules, deadlocks, and waiting for memory.

use super::shared::sim_tests::{PingPongParams, TicketsParams};
use super::*;

/// The order in which threads of two warps run, before and after the lanes of their warp meet.
fn tickets(sim: &Sim) -> Vec<u32> {
    let (out, counter) = (sim.words(128), sim.put(&[0]));
    sim.run("tickets", block(64), &TicketsParams { out: at(&out), counter: at(&counter) }).unwrap();
    let got = sim.get(&out);
    let mut sorted = got.clone();
    sorted.sort_unstable();
    assert_eq!(sorted, (0..128).collect::<Vec<u32>>(), "everybody comes by once");
    got
}

#[test]
fn schedules_differ_and_match_their_names() {
    let all: Vec<Vec<u32>> = FiberSchedule::ALL.iter().map(|&order| tickets(&Sim::new(order))).collect();
    for (i, a) in all.iter().enumerate() {
        assert_eq!(*a, tickets(&Sim::new(FiberSchedule::ALL[i])), "an order is the same every time");
        assert!(all[i + 1..].iter().all(|b| a != b), "{:?} is like another order", FiberSchedule::ALL[i]);
    }
    let [forward, reverse, greedy, greedy_reverse] = &all[..] else { panic!("four orders") };
    assert!(forward[..32].is_sorted() && forward[32] > forward[31], "threads ascending");
    assert!(forward[64] > forward[32], "the other warp starts before the first thread goes on");
    assert!(greedy[64] < greedy[32], "the first warp ends before the other one starts");
    assert!(reverse[..64].is_sorted_by(|a, b| a > b) || reverse[63] == 0, "threads descending");
    assert_eq!((reverse[63], greedy_reverse[63]), (0, 0));
    assert!(greedy_reverse[127] < greedy_reverse[31], "the last warp ends before the first one starts");
}

#[test]
fn deadlocks_are_reported() {
    in_all_orders(|sim| {
        for which in [0, 1] {
            let out = sim.words(32);
            let said = sim.refusal("divergence", block(32), &case(&out, which));
            assert!(said.contains("deadlock") && said.contains("divergence"), "{said}");
        }
    });
}

#[test]
fn a_barrier_is_of_one_kind() {
    in_all_orders(|sim| {
        let out = sim.words(1);
        let said = sim.refusal("mixed_barriers", block(64), &output(&out));
        assert!(said.contains("a barrier that votes"), "{said}");
    });
}

#[test]
fn a_warp_that_waits_for_memory_lets_others_run() {
    in_all_orders(|sim| {
        let out = sim.words(96);
        sim.run("wait_for_last_warp", block(96), &output(&out)).unwrap();
        assert!(sim.get(&out).iter().all(|&word| word == 1), "{:?}", sim.order);
    });
}

/// Launches in different threads wait for each other, as those of a collective do.
#[test]
fn launches_wait_for_each_other() {
    in_all_orders(|sim| {
        let rounds = 50;
        let flags = [sim.put(&[0]), sim.put(&[0])];
        let outs = [sim.words(1), sim.words(1)];
        std::thread::scope(|scope| {
            for rank in [0, 1] {
                let (mine, theirs, out) = (&flags[rank], &flags[1 - rank], &outs[rank]);
                scope.spawn(move || {
                    let params = PingPongParams { mine: at(mine), theirs: at(theirs), out: at(out), rounds };
                    sim.run("ping_pong", block(32), &params).unwrap();
                });
            }
        });
        for out in &outs {
            assert!(sim.get(out)[0] >= rounds as u32 - 1, "{:?}", sim.order);
        }
    });
}
