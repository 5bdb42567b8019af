//! Shuffles, votes and masks.

use super::shared::sim_tests::ShufflesParams;
use super::*;
use crate::common::for_seeds;

/// The lane that a shuffle of `kind` (index, xor, up, down) reads from by the CUDA programming
/// guide.
fn source(kind: i32, lane: i32, amount: i32, width: i32) -> i32 {
    let segment = lane / width * width;
    match kind {
        0 => segment + amount.rem_euclid(width),
        1 if (lane ^ amount) < segment + width => lane ^ amount,
        2 if lane - amount >= segment => lane - amount,
        3 if lane + amount < segment + width => lane + amount,
        _ => lane,
    }
}

#[test]
fn shuffles_match_the_definition() {
    in_all_orders(|sim| {
        for_seeds(60, |rng| {
            let kind = rng.pick(&[0, 1, 2, 3]);
            let width = rng.pick(&[1, 2, 4, 8, 16, 32]);
            let amount = rng.below(33) as i32;
            let out = sim.words(32);
            let params = ShufflesParams { out: at(&out), kind, amount, width, mask: u32::MAX };
            sim.run("shuffles", block(32), &params).unwrap();
            for (lane, &got) in sim.get(&out).iter().enumerate() {
                let want = 100 + source(kind, lane as i32, amount, width) as u32;
                assert_eq!(got, want, "kind {kind} amount {amount} width {width} lane {lane}");
            }
        });
    });
}

/// Only the lanes of the mask take part; any mask works as long as no lane reads outside it.
#[test]
fn shuffles_of_some_lanes_match_the_definition() {
    in_all_orders(|sim| {
        for_seeds(40, |rng| {
            let mask = rng.next() as u32 | 1 << 9;
            let out = sim.words(32);
            let params = ShufflesParams { out: at(&out), kind: 0, amount: 9, width: 32, mask };
            sim.run("shuffles", block(32), &params).unwrap();
            for (lane, &got) in sim.get(&out).iter().enumerate() {
                assert_eq!(got, if mask >> lane & 1 == 1 { 109 } else { u32::MAX });
            }
        });
    });
}

#[test]
fn disjoint_masks_progress_on_their_own() {
    let mut value: Vec<u32> = (0..32).map(|lane| if lane < 16 { (lane ^ 1) + 5 } else { 31 }).collect();
    let even: u32 = value.iter().step_by(2).sum();
    value.iter_mut().step_by(2).for_each(|v| *v = even);
    let want: Vec<u32> = (0..32).map(|lane| value[(lane + 1).min(31)]).collect();
    in_all_orders(|sim| {
        let out = sim.words(32);
        sim.run("disjoint_masks", block(32), &output(&out)).unwrap();
        assert_eq!(sim.get(&out), want, "{:?}", sim.order);
    });
}

#[test]
fn misused_masks_are_refused() {
    let refusals = [
        "masks that overlap but differ",
        "different warp operations",
        "different warp operations",
        "a mask that does not name it",
        "a lane that does not take part",
        "must be a power of two",
    ];
    in_all_orders(|sim| {
        for (which, refusal) in refusals.iter().enumerate() {
            let out = sim.words(32);
            let said = sim.refusal("misused_masks", block(32), &case(&out, which));
            assert!(said.contains(refusal), "{which}: {said}");
            assert!(said.contains("misused_masks") && said.contains("thread"), "{said}");
        }
    });
}

#[test]
fn values_of_returned_lanes_are_read() {
    in_all_orders(|sim| {
        let out = sim.words(3);
        sim.run("leave_after_meeting", block(32), &output(&out)).unwrap();
        assert_eq!(sim.get(&out), [0x9249_2492, 120, 30], "{:?}", sim.order);
    });
}

#[test]
fn votes_match_the_definition() {
    in_all_orders(|sim| {
        // In some cases the last warp is not whole.
        for (threads, threshold) in [(96, 0), (96, 96), (80, 33), (64, 40), (33, 1)] {
            let out = sim.words(threads * 7);
            sim.run("votes", block(threads as u32), &case(&out, threshold)).unwrap();
            for (t, got) in sim.get(&out).chunks_exact(7).enumerate() {
                let lanes: Vec<usize> = (t / 32 * 32..(t / 32 * 32 + 32).min(threads)).collect();
                let bits = |is: &dyn Fn(usize) -> bool| {
                    lanes.iter().filter(|&&l| is(l)).fold(0u32, |bits, l| bits | 1 << (l % 32))
                };
                let any = lanes.iter().any(|&l| l < threshold);
                let whole = lanes.iter().all(|&l| l < threshold);
                let want = [
                    bits(&|l| l < threshold),
                    u32::from(any) * 2 + u32::from(whole),
                    bits(&|l| l % 5 == t % 5),
                    threshold as u32,
                    u32::from(threshold > 0),
                    u32::from(threshold == threads),
                    (threads - threshold) as u32,
                ];
                assert_eq!(got, want, "thread {t} of {threads}, threshold {threshold}, {:?}", sim.order);
            }
        }
    });
}
