//! Registers of warpgroups, chosen lanes, and addresses in a cluster.

use crate::common::Case;

/// Two groups of 128 threads with 248 registers each at launch.
fn trade() -> Case {
    Case::new(
        256,
        &[0; 256],
        "setp.gt.u32 %p2, %r1, 127;
         @%p2 bra more;
         setmaxnreg.dec.sync.aligned.u32 24;
         bra.uni out;
         more: setmaxnreg.inc.sync.aligned.u32 256;
         out: st.global.u32 [%rd2], %r1;",
    )
}

#[test]
fn registers_move_between_warpgroups() {
    let case = trade();
    assert_eq!(case.words(), (0..256).collect::<Vec<u32>>());
    case.with("dec.sync.aligned.u32 24", "dec.sync.aligned.u32 248").faults("setmaxnreg waits for registers");
    case.with("setmaxnreg.dec.sync.aligned.u32 24", "setmaxnreg.inc.sync.aligned.u32 24")
        .faults("that has 248");
    case.with("@%p2 bra more;", "@%p2 bra more; setp.gt.u32 %p3, %r1, 95; @%p3 bra out;")
        .faults("not all warps of the warpgroup");
    Case { threads: 96, ..case }.faults("less than four warps");
}

#[test]
fn one_lane_is_chosen() {
    let case = Case::new(
        64,
        &[0; 64],
        "elect.sync %r4|%p2, -1;
         @%p2 atom.global.add.u32 %r5, [%rd1], 1;
         elect.sync _|%p3, 0xffffffff;",
    );
    assert_eq!(case.words()[0], 2);
    case.with("%r4|%p2, -1", "%r4|%p2, 1").faults("not in its own mask");
}

#[test]
fn a_cluster_has_one_block() {
    let case = Case::new(
        32,
        &[3; 32],
        "mapa.shared::cluster.u32 %r4, %r2, 0;
         mov.u32 %r5, %cluster_ctarank; mov.u32 %r6, %cluster_nctarank; add.u32 %r5, %r5, %r6;
         st.shared::cluster.u32 [%r4], %r5; ld.shared.u32 %r7, [%r2]; st.global.u32 [%rd2], %r7;",
    );
    assert_eq!(case.words(), [1; 32]);
    case.with("%r2, 0;", "%r2, 1;").faults("block 1 of a cluster of one");
}
