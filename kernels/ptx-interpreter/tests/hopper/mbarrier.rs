//! Phases, arrivals and waits.

use crate::common::Case;

/// One warp writes words to shared memory and arrives; the other one waits and reads them.
fn hand_over() -> Case {
    let words: Vec<u32> = (0..64).map(|i| i * 3).collect();
    Case::new(
        64,
        &words,
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 32;
         @%p1 fence.mbarrier_init.release.cluster;
         bar.sync 0;
         mad.lo.s32 %r4, %r1, 4, %r2; setp.gt.u32 %p2, %r1, 31;
         @%p2 bra reader;
         ld.global.u32 %r5, [%rd2];
         st.shared.u32 [%r4], %r5;
         mbarrier.arrive.shared::cta.b64 _, [%r3];
         bra.uni out;
         reader: WAIT(0)
         ld.shared.u32 %r5, [%r4+-128];
         st.global.u32 [%rd2], %r5;
         out:",
    )
}

#[test]
fn a_wait_ends_with_the_last_arrival() {
    let case = hand_over();
    let first: Vec<u32> = (0..32).map(|i| i * 3).collect();
    assert_eq!(case.words(), [&first[..], &first[..]].concat());
    let spelled = case.with("arrive.shared::cta.b64 _, [%r3]", "arrive.release.cta.shared.b64 _, [%r3], 1");
    assert_eq!(spelled.words(), case.words());

    case.with("[%r3], 32", "[%r3], 33").faults("waits for 1 of 33 arrivals");
    case.with("[%r3], 32", "[%r3], 31").faults("before anybody has seen the end of its phase 0");
    case.with("_, [%r3];", "_, [%r3], 33;").faults("33 arrivals at an mbarrier that waits for 32");
    case.with("@%p1 mbarrier.init.shared::cta.b64 [%r3], 32;", "").faults("no mbarrier is initialized");
    case.with("[%r3], 32", "[%r3], 0").faults("0 arrivals");
    case.with("_, [%r3];", "_, [%r3+4];").faults("not aligned");
    case.with("st.shared.u32 [%r4]", "st.shared.u32 [%r3]").faults("where an mbarrier lies");
    case.with("mbarrier.arrive", "ld.shared.u32 %r6, [%r3]; mbarrier.arrive")
        .faults("where an mbarrier lies");
    case.with("bar.sync 0;", "@%p1 mbarrier.init.shared::cta.b64 [%r3], 32; bar.sync 0;").faults("twice");
    case.with("WAIT(0)", "WAIT(0) mbarrier.try_wait.parity.shared::cta.b64 %p3, [%r3], 2;")
        .faults("parity 2");
}

/// Without a barrier of the block the other warp may use the mbarrier before it is made; that it
/// comes later here does not help.
#[test]
fn an_mbarrier_must_be_made_known() {
    hand_over().with("bar.sync 0;", "").faults("without a barrier between");
}

/// A state names a phase; two phases later it is too old.
#[test]
fn states_name_phases() {
    let case = Case::new(
        1,
        &[0; 2],
        "mbarrier.init.shared::cta.b64 [%r3], 1;
         mbarrier.arrive.shared::cta.b64 %rd5, [%r3];
         mbarrier.test_wait.shared::cta.b64 %p2, [%r3], %rd5;
         mbarrier.arrive.shared::cta.b64 %rd6, [%r3];
         mbarrier.try_wait.acquire.cta.shared::cta.b64 %p3, [%r3], %rd6, 100;
         mbarrier.test_wait.parity.shared::cta.b64 %p4, [%r3], 0;
         selp.u32 %r4, 1, 0, %p2; selp.u32 %r5, 2, 0, %p3; selp.u32 %r6, 4, 0, %p4;
         or.b32 %r4, %r4, %r5; or.b32 %r4, %r4, %r6; st.global.u32 [%rd1], %r4;",
    );
    // Phase 2 has parity 0 and has not ended.
    assert_eq!(case.words()[0], 3);
    case.with("[%r3], %rd6, 100", "[%r3], %rd5").faults("a state of phase 0 in phase 2");
    case.with("mbarrier.test_wait.shared::cta.b64 %p2, [%r3], %rd5;", "").faults("before anybody has seen");
}

#[test]
fn transactions_count_bytes() {
    let case = Case::new(
        32,
        &[0; 32],
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
         bar.sync 0;
         @%p1 mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r3], 48;
         @%p1 mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r3], 16;
         @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 32;
         WAIT(0)
         st.global.u32 [%rd2], %r1;",
    );
    assert_eq!(case.words(), (0..32).collect::<Vec<u32>>());
    case.with("[%r3], 32;", "[%r3], 31;").faults("deadlock: the mbarrier at 0x10000, in its phase 0");
    case.with("[%r3], 48;", "[%r3], 2097152;").faults("more than 1048575");
    case.with("[%r3], 16;", "[%r3], 32;").with("WAIT(0)", "").faults("the block ends, but the mbarrier");
}

#[test]
fn arrivals_drop_out_and_barriers_end() {
    let case = Case::new(
        2,
        &[0; 2],
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 3;
         bar.sync 0;
         @%p1 mbarrier.arrive.noComplete.release.cta.shared::cta.b64 %rd5, [%r3], 1;
         mbarrier.arrive_drop.release.cta.shared::cta.b64 _, [%r3];
         WAIT(0)
         @%p1 mbarrier.arrive.shared::cta.b64 _, [%r3];
         WAIT(1)
         bar.sync 0;
         @%p1 mbarrier.inval.shared::cta.b64 [%r3];
         @%p1 st.shared.u32 [%r3], 7;
         bar.sync 0;
         ld.shared.u32 %r5, [%r3]; st.global.u32 [%rd2], %r5;",
    );
    assert_eq!(case.words(), [7, 7]);
    case.with("[%r3], 3;", "[%r3], 1;").faults("noComplete completes");
    case.with("@%p1 mbarrier.inval.shared::cta.b64 [%r3];", "").faults("where an mbarrier lies");
    case.with("@%p1 st.shared.u32 [%r3], 7;", "").faults("was not written");
}

/// A relaxed wait does not order the copy's bytes.
#[test]
fn relaxed_operations_order_nothing() {
    let case = Case::new(
        32,
        &[5; 32],
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
         bar.sync 0;
         @%p1 mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 16;
         @%p1 cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 16, [%r3];
         again: mbarrier.try_wait.parity.acquire.cta.shared::cta.b64 %p2, [%r3], 0; @!%p2 bra again;
         ld.shared.u32 %r5, [%r2]; st.global.u32 [%rd2], %r5;",
    );
    assert_eq!(case.words(), [5; 32]);
    case.with("parity.acquire", "parity.relaxed").faults("without a wait for the copy's mbarrier");
}
