//! The copy engine.

use millrace_ptx_interpreter::{Fill, Swizzle, TensorElement, TensorMapLayout};

use crate::common::Case;

/// 64 bytes go to shared memory, and each of 32 lanes reads a word of them.
fn bulk() -> Case {
    let words: Vec<u32> = (0..64).map(|i| 100 + i).collect();
    Case::new(
        64,
        &words,
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
         bar.sync 0;
         and.b32 %r6, %r1, 15; mad.lo.s32 %r4, %r6, 4, %r2;
         @!%p1 bra wait;
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 64;
         cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 64, [%r3];
         wait: WAIT(0)
         ld.shared.u32 %r5, [%r4];
         bar.sync 0;
         st.global.u32 [%rd2], %r5;",
    )
}

#[test]
fn bytes_arrive_with_the_phase() {
    let case = bulk();
    assert_eq!(case.words(), (0..64).map(|i| 100 + i % 16).collect::<Vec<u32>>());
    case.with("wait: WAIT(0)", "wait:").faults("copy is in flight");
    case.with("[%r3], 64;", "[%r3], 48;").faults("0 of 1 arrivals and -16 bytes");
    case.with("[%r3], 64;", "[%r3], 80;").faults("waits for 0 of 1 arrivals and 16 bytes");
    case.with("[%r2], [%rd1], 64", "[%r2+8], [%rd1], 64").faults("not aligned to 16");
    case.with("[%rd1], 64, [%r3]", "[%rd1], 60, [%r3]").faults("not aligned to 16");
    case.with("[%r2], [%rd1], 64", "[%r2+65584], [%rd1], 64").faults("of shared memory, which has");
    case.with("[%r2], [%rd1], 64", "[%r2], [%rd1+208], 64").faults("do not lie in one allocation");
    case.with("[%rd1], 64, [%r3]", "[%rd1], 64, [%r3+8]").faults("no mbarrier is initialized");
    case.with("cp.async.bulk", "st.shared.u32 [%r2], 0; cp.async.bulk").faults("fence.proxy.async");
    let twice = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%rd1], 64, [%r3];";
    case.with(twice, &format!("{twice} {twice}")).faults("copies to shared memory at 0x0");
}

/// One warp waits. The other one may only read after a barrier that follows the wait.
#[test]
fn each_reader_must_know_that_a_copy_has_ended() {
    let case = bulk()
        .with("wait: WAIT(0)", "wait: setp.gt.u32 %p2, %r1, 31; @%p2 bra meet; WAIT(0) meet: bar.sync 0;");
    assert_eq!(case.words()[63], 115);
    case.with("meet: bar.sync 0;", "meet:").faults("shared memory at");
}

#[test]
fn a_block_waits_for_its_copies() {
    let case = bulk();
    let read = "ld.shared.u32 %r5, [%r4];";
    // In the early arrival the bytes are there, which nobody may rely on.
    let body = case.with("wait: WAIT(0)", "wait:").with(read, "mov.u32 %r5, 0;");
    let late = std::panic::catch_unwind(|| body.bytes()).unwrap_err();
    let message = late.downcast_ref::<String>().unwrap();
    assert!(message.contains("the block ends while this copy is in flight"), "{message}");
}

const COLUMNS: usize = 72;
const ROWS: usize = 6;
/// Elements of a box along both dimensions.
const BOX: [u32; 2] = [64, 4];

/// The element of a tensor.
fn element(row: i64, column: i64) -> u16 {
    let inside = (0..ROWS as i64).contains(&row) && (0..COLUMNS as i64).contains(&column);
    if inside { (row * 256 + column + 1) as u16 } else { 0 }
}

/// Copies a box of the tensor to shared memory and from there, in its order, behind the tensor.
fn boxed(swizzle: Swizzle, extents: &'static [u32], at: [i32; 2]) -> Case {
    let row_bytes = 160usize;
    let mut data = vec![0u8; ROWS * row_bytes + 1024];
    for row in 0..ROWS {
        for column in 0..COLUMNS {
            let at = row * row_bytes + column * 2;
            data[at..at + 2].copy_from_slice(&element(row as i64, column as i64).to_le_bytes());
        }
    }
    let bytes = extents[0] * extents[1] * 2;
    let body = format!(
        "@%p1 mbarrier.init.shared::cta.b64 [%r3], 1;
         bar.sync 0;
         mad.lo.s32 %r4, %r1, 4, %r2;
         @!%p1 bra wait;
         prefetch.tensormap [%rd3];
         mov.u32 %r7, {}; mov.u32 %r8, {};
         mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], {bytes};
         cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes \
         [%r2], [%rd3, {{%r7, %r8}}], [%r3];
         wait: WAIT(0)
         ld.shared.u32 %r5, [%r4];
         st.global.u32 [%rd2+{}], %r5;",
        at[0],
        at[1],
        ROWS * row_bytes
    );
    let map = TensorMapLayout {
        address: 0,
        element: TensorElement::BF16,
        sizes: &[COLUMNS as u64, ROWS as u64],
        strides: &[160],
        extents,
        swizzle,
        fill: Fill::Zeros,
    };
    Case { body, threads: bytes / 4, data, map: Some(map) }
}

/// The box in shared memory: rows one after the other, whose 16-byte units change places. The
/// number that is added to the unit's is the row in a period of the swizzle, bit by bit.
fn expected(span: usize, extents: &[u32], at: [i32; 2]) -> Vec<u8> {
    let row_bytes = extents[0] as usize * 2;
    let mut out = vec![0; extents[1] as usize * row_bytes];
    for row in 0..extents[1] as usize {
        for column in 0..extents[0] as usize {
            let byte = row * row_bytes + column * 2;
            let (line, unit) = (byte / 128, byte / 16);
            let moved = unit ^ (line % (span / 16).max(1));
            let value = element(i64::from(at[1]) + row as i64, i64::from(at[0]) + column as i64);
            let to = moved * 16 + byte % 16;
            out[to..to + 2].copy_from_slice(&value.to_le_bytes());
        }
    }
    out
}

#[test]
fn boxes_are_swizzled_and_filled_at_the_edges() {
    for at in [[0, 0], [8, 2], [40, 4], [-5, -1], [100, 0], [0, 6]] {
        for (swizzle, span, extents) in [
            (Swizzle::None, 0, &BOX),
            (Swizzle::Bytes128, 128, &BOX),
            (Swizzle::Bytes64, 64, &[32, 8]),
            (Swizzle::Bytes32, 32, &[16, 16]),
        ] {
            let out = boxed(swizzle, extents, at).bytes();
            let found = &out[ROWS * 160..][..512];
            assert_eq!(found, expected(span, extents, at), "{swizzle:?} at {at:?}");
        }
    }
}

#[test]
fn mistakes_in_tensor_copies_are_faults() {
    let case = boxed(Swizzle::Bytes128, &BOX, [0, 0]);
    case.with("[%r2], [%rd3,", "[%r2+64], [%rd3,").faults("not aligned to 128");
    case.with("[%rd3, {%r7, %r8}]", "[%rd3+64, {%r7, %r8}]").faults("are not all parameters");
    case.with("[%rd3, {%r7, %r8}]", "[%rd3+8, {%r7, %r8}]").faults("not aligned to 64");
    case.with("2d", "1d").with("{%r7, %r8}", "{%r7}").faults("1 dimensions with a map of 2");
    case.with("[%rd3, {%r7, %r8}]", "[%rd1, {%r7, %r8}]").faults("not a tensor map");
    case.with("[%r3], 512;", "[%r3], 256;").faults("0 of 1 arrivals and -256 bytes");
    case.with("[%r2], [%rd3,", "[%r2+65152], [%rd3,").faults("shared memory");
    let outside = TensorMapLayout { strides: &[16000], ..case.map.clone().unwrap() };
    Case { map: Some(outside), ..case.clone() }.faults("do not lie in one allocation");
    let published = case.with(
        "bar.sync 0;",
        "mad.lo.s32 %r4, %r1, 4, %r2; st.shared.u32 [%r4], 0; fence.proxy.async.shared::cta; bar.sync 0;",
    );
    assert_eq!(published.bytes(), case.bytes());
    published.with("fence.proxy.async.shared::cta;", "").faults("fence.proxy.async and a barrier");
}

/// Elements outside of the tensor are NaN on demand.
#[test]
fn boxes_are_filled_with_nan() {
    let case = boxed(Swizzle::None, &BOX, [0, 5]);
    let nan = TensorMapLayout { fill: Fill::Nan, ..case.map.clone().unwrap() };
    let out = Case { map: Some(nan), ..case }.bytes();
    assert_eq!(out[ROWS * 160..][..2], element(5, 0).to_le_bytes());
    assert!(out[ROWS * 160 + 128..][..384].iter().all(|byte| *byte == 0xff));
}
