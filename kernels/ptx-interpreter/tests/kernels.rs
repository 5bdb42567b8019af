//! Small kernels, written by hand, against the same computation in Rust, and kernels with a mistake
//! each.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed test")]

use millrace_ptx_interpreter::{DeviceMemory, Fault, Launch, Module, WarpOrder};

const ORDERS: [WarpOrder; 2] = [WarpOrder::Forward, WarpOrder::Reverse];

/// A kernel with one parameter, an address in `%rd1`, the thread in `%r1`, the address of the
/// thread's word in device memory in `%rd2` and in shared memory in `%r2`.
fn kernel(body: &str) -> String {
    format!(
        ".version 9.0\n.target sm_80\n.address_size 64\n.extern .shared .align 16 .b8 dynamic[];\n\
         .visible .entry k(.param .align 8 .b8 k_param_0[8])\n{{\n\
         .reg .pred %p<9>; .reg .b32 %r<40>; .reg .b64 %rd<9>; .reg .f32 %f<9>;\n\
         .shared .align 16 .b8 fixed[512];\n\
         ld.param.u64 %rd3, [k_param_0]; cvta.to.global.u64 %rd1, %rd3; mov.u32 %r1, %tid.x;\n\
         mul.wide.u32 %rd2, %r1, 4; add.s64 %rd2, %rd1, %rd2;\n\
         mov.u32 %r2, fixed; mad.lo.s32 %r2, %r1, 4, %r2;\n{body}\nret;\n}}\n"
    )
}

/// Runs a body on words in device memory and returns them.
fn run(body: &str, threads: u32, words: &[u32], order: WarpOrder) -> Result<Vec<u32>, Fault> {
    let module = Module::parse(&kernel(body)).unwrap();
    let mut memory = DeviceMemory::new(1 << 20);
    let at = memory.allocate(words.len() * 4).unwrap();
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    memory.write(at, &bytes).unwrap();
    let launch = Launch::new([1, 1, 1], [threads, 1, 1])
        .with_params(&at.to_le_bytes())
        .with_order(order)
        .with_max_steps(100_000);
    module.launch("k", &launch, &mut memory)?;
    let mut bytes = vec![0; words.len() * 4];
    memory.read(at, &mut bytes).unwrap();
    Ok(bytes.chunks_exact(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect())
}

fn faults(body: &str, threads: u32, message: &str) {
    let reported: Vec<String> = ORDERS
        .iter()
        .filter_map(|order| run(body, threads, &vec![1; threads as usize], *order).err())
        .map(|fault| fault.to_string())
        .collect();
    assert!(reported.iter().any(|fault| fault.contains(message)), "{message}: {reported:?}");
}

const NEIGHBOUR: &str = "xor.b32 %r3, %r1, 127; mov.u32 %r4, fixed; mad.lo.s32 %r4, %r3, 4, %r4;";

#[test]
fn threads_exchange_words_through_shared_memory() {
    let body = format!(
        "ld.global.u32 %r9, [%rd2]; st.shared.u32 [%r2], %r9; {NEIGHBOUR} bar.sync 0; \
         ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd2], %r5;"
    );
    let words: Vec<u32> = (0..128).map(|i| i * i).collect();
    let reversed: Vec<u32> = words.iter().rev().copied().collect();
    for order in ORDERS {
        assert_eq!(run(&body, 128, &words, order).unwrap(), reversed);
    }
    faults(&body.replace("bar.sync 0;", ""), 128, "was not written");
    faults(&body.replace("[%r4]", "[%r4+1]"), 128, "not aligned");
    faults(&body.replace("[%r4]", "[%r4+512]"), 128, "of shared memory, which has");
    faults(&body.replace("[%rd2]", "[%rd2+4]"), 128, "do not lie in one allocation");
}

#[test]
fn lanes_that_diverge_meet_again() {
    // Each lane runs as often as its number says; then all add up.
    let body = "mov.u32 %r3, 0; mov.u32 %r4, 0;\n\
        again: setp.ge.u32 %p1, %r3, %r1; @%p1 bra out;\n\
        add.s32 %r4, %r4, %r3; add.s32 %r3, %r3, 1; bra.uni again;\n\
        out: shfl.sync.bfly.b32 %r5|%p2, %r4, 1, 31, -1; add.s32 %r6, %r5, %r4;\n\
        vote.sync.ballot.b32 %r7, %p1, -1; setp.eq.s32 %p3, %r7, -1; selp.b32 %r6, %r6, 0, %p3;\n\
        st.global.u32 [%rd2], %r6;";
    let sum = |n: u32| n * n.saturating_sub(1) / 2;
    let expected: Vec<u32> = (0..32).map(|i| sum(i) + sum(i ^ 1)).collect();
    assert_eq!(run(body, 32, &[0; 32], WarpOrder::Forward).unwrap(), expected);
}

#[test]
fn copies_arrive_when_they_are_waited_for() {
    let body = format!(
        "cp.async.ca.shared.global [%r2], [%rd2], 4; cp.async.commit_group; {NEIGHBOUR} \
         cp.async.wait_group 0; bar.sync 0; ld.shared.u32 %r5, [%r4]; st.global.u32 [%rd2], %r5;"
    );
    let words: Vec<u32> = (0..128).map(|i| i + 7).collect();
    let reversed: Vec<u32> = words.iter().rev().copied().collect();
    for order in ORDERS {
        assert_eq!(run(&body, 128, &words, order).unwrap(), reversed);
    }
    faults(&body.replace("wait_group 0", "wait_group 1"), 128, "copy is in flight");
    faults(&body.replace("bar.sync 0;", ""), 128, "shared memory at");
    faults("cp.async.ca.shared.global [%r2], [%rd2], 4;", 32, "copies in flight");
}

#[test]
fn a_product_of_matrices_agrees_with_its_definition() {
    // A is 16x16 of bf16 in rows, B 16x8 in columns: small integers, whose sums are exact.
    let a = |row: u32, k: u32| (row * 3 + k * 5) % 7;
    let b = |k: u32, column: u32| (k * 2 + column) % 5;
    let bits = |x: u32| (x as f32).to_bits() >> 16;
    let mut words = Vec::new();
    for lane in 0..32 {
        let (g, t) = (lane / 4, lane % 4);
        let pair = |r: u32| {
            bits(a(g + 8 * (r % 2), 2 * t + 8 * (r / 2)))
                | bits(a(g + 8 * (r % 2), 2 * t + 1 + 8 * (r / 2))) << 16
        };
        words.extend((0..4).map(pair));
        words.extend((0..2).map(|r| bits(b(2 * t + 8 * r, g)) | bits(b(2 * t + 1 + 8 * r, g)) << 16));
        words.extend([0, 0]);
    }
    let body = "mul.wide.u32 %rd4, %r1, 32; add.s64 %rd4, %rd1, %rd4;\n\
        ld.global.v4.u32 {%r10, %r11, %r12, %r13}, [%rd4]; ld.global.v2.u32 {%r14, %r15}, [%rd4+16];\n\
        mov.f32 %f1, 0f3F800000;\n\
        mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%f2, %f3, %f4, %f5}, {%r10, %r11, %r12, %r13}, \
        {%r14, %r15}, {%f1, %f1, %f1, %f1};\n\
        st.global.v4.f32 [%rd4], {%f2, %f3, %f4, %f5};";
    let out = run(body, 32, &words, WarpOrder::Forward).unwrap();
    for lane in 0..32u32 {
        for i in 0..4u32 {
            let (row, column) = (lane / 4 + 8 * (i / 2), lane % 4 * 2 + i % 2);
            let sum: u32 = 1 + (0..16).map(|k| a(row, k) * b(k, column)).sum::<u32>();
            assert_eq!(
                f32::from_bits(out[(lane * 8 + i) as usize]),
                sum as f32,
                "row {row}, column {column}"
            );
        }
    }
}

#[test]
fn warps_reduce_and_count_atomically() {
    let reduce = "setp.eq.s32 %p1, %r1, 77; bar.red.or.pred %p2, 0, %p1; selp.u32 %r3, 1, 0, %p2;";
    for atomic in ["atom.global.add.u32", "atom.acq_rel.gpu.global.add.u32"] {
        let body = format!("{reduce}\n{atomic} %r4, [%rd1], %r3;");
        for order in ORDERS {
            assert_eq!(run(&body, 96, &[5], order).unwrap(), [5 + 96]);
            assert_eq!(run(&body, 64, &[5], order).unwrap(), [5]);
        }
    }
}

#[test]
fn what_never_ends_is_a_fault() {
    faults("bar.sync 1, 128;", 64, "deadlock: barrier 1");
    faults("again: bra.uni again;", 32, "no end after");
    faults(
        "setp.lt.u32 %p1, %r1, 5; @%p1 bra out; bar.warp.sync -1;\nout: bar.sync 0;",
        32,
        "different lines",
    );
    faults("div.s32 %r3, %r1, %r1;", 32, "division by zero");
    let fault = run("trap;", 32, &[0], WarpOrder::Forward).unwrap_err();
    assert_eq!((fault.thread, fault.line), (Some(0), Some(12)));
}

#[test]
fn unknown_forms_are_refused_with_their_line() {
    let refused = |body: &str| Module::parse(&kernel(body)).unwrap_err();
    assert!(refused("add.f32.weird %f1, %f2, %f3;").to_string().contains("line 12: add.f32.weird"));
    assert!(refused("bra nowhere;").message.contains("no label"));
    assert!(refused("mov.u32 %r1, %r99;").message.contains("%r99"));
    assert!(Module::parse("").unwrap().kernels().is_empty());
    assert!(Module::parse(".entry k() {").is_err());
}
