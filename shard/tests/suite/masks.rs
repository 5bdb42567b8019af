//! Tests of masks that follow their step, over a real socket.

use crate::common::router::{Router, admission, expected, row};
use millrace_proto::{Row, Shutdown, Step, StepOutput, from_shard, to_shard};

/// A row of one generated token whose mask follows.
fn late(slot: u32, start: u32, new_blocks: &[u32]) -> Row {
    Row { mask_follows: true, ..row(slot, start, 1, new_blocks, true) }
}

fn tokens(output: &StepOutput) -> Vec<(u32, u32)> {
    output.sampled.iter().map(|sampled| (sampled.slot, sampled.token)).collect()
}

#[test]
fn masks_may_follow_their_step() {
    let (mut router, _, _) = Router::ready();
    let (a, b) = ([3u32, 9, 27, 1], [7u32, 7, 7]);
    let (of_a, of_b) = (expected(&a, 5), expected(&b, 5));
    let any = [u32::MAX];
    router.send_step(Step {
        id: 1,
        admit: vec![admission(0, &a), admission(1, &b)],
        rows: vec![row(0, 0, 4, &[0], true), row(1, 0, 3, &[1], true)],
        ..Step::default()
    });
    // All steps are sent before the first masks. Slot 0 is constrained.
    for id in 2..=5 {
        let start = id as u32 + 2;
        let blocks: &[u32] = if id == 2 { &[2, 3] } else { &[] };
        let of_b: &[u32] = if id == 3 { &[4] } else { &[] };
        router.send_step(Step {
            id,
            rows: vec![late(0, start, blocks), row(1, start - 1, 1, of_b, true)],
            ..Step::default()
        });
    }
    assert_eq!(tokens(&router.output()), [(0, of_a[0]), (1, of_b[0])]);
    assert_eq!(router.masks_due(), 2);
    router.send_masks(2, &[(0, &any)]);
    assert_eq!(tokens(&router.output()), [(0, of_a[1]), (1, of_b[1])]);
    // Without a mask only the row that needs it has no token.
    assert_eq!(router.masks_due(), 3);
    router.send_masks(3, &[]);
    let output = router.output();
    assert_eq!((tokens(&output), output.errors), (vec![(1, of_b[2])], vec![]));
    // The next step runs its position again, and these masks are there before the question.
    assert_eq!(router.masks_due(), 4);
    router.send_masks(4, &[(0, &any)]);
    router.send_masks(5, &[(0, &[1 << 6])]);
    assert_eq!(tokens(&router.output()), [(0, of_a[2]), (1, of_b[3])]);
    let output = loop {
        match router.receive() {
            from_shard::Message::Output(output) => break output,
            from_shard::Message::MasksDue(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(tokens(&output), [(0, 6), (1, of_b[4])], "only token 6 is allowed");
    router.send(to_shard::Message::Shutdown(Shutdown {}));
    router.shard.join().unwrap().unwrap();
}

#[test]
fn a_shutdown_ends_the_wait_for_masks() {
    let (mut router, _, _) = Router::ready();
    let a = [3u32, 9, 27, 1];
    router.send_step(Step {
        id: 1,
        admit: vec![admission(0, &a)],
        rows: vec![row(0, 0, 4, &[0], true)],
        ..Step::default()
    });
    router.send_step(Step { id: 2, rows: vec![late(0, 4, &[1])], ..Step::default() });
    router.send_step(Step { id: 3, rows: vec![late(0, 5, &[])], ..Step::default() });
    assert_eq!(tokens(&router.output()), [(0, expected(&a, 1)[0])]);
    assert_eq!(router.masks_due(), 2);
    router.send(to_shard::Message::Shutdown(Shutdown {}));
    assert_eq!(tokens(&router.output()), []);
    let last = loop {
        match router.receive() {
            from_shard::Message::Output(output) => break output,
            from_shard::Message::MasksDue(_) => {}
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((last.step, tokens(&last)), (3, vec![]));
    router.shard.join().unwrap().unwrap();
}

#[test]
fn masks_of_another_step_end_the_shard() {
    let (mut router, _, _) = Router::ready();
    router.send_step(Step {
        id: 1,
        admit: vec![admission(0, &[3, 9])],
        rows: vec![row(0, 0, 2, &[0], true)],
        ..Step::default()
    });
    router.send_step(Step { id: 2, rows: vec![late(0, 2, &[])], ..Step::default() });
    router.output();
    assert_eq!(router.masks_due(), 2);
    router.send_masks(1, &[]);
    let (message, _) = router.fault();
    assert!(message.contains("masks of step 1 came instead of those of step 2"), "{message}");
}
