//! Adapters beside the products by the matrices that they change.

use std::ops::Range;

use bytes::Bytes;
use millrace_backend::{
    AdapterOps, AdapterSpec, AdapterWeights, ForwardOps, LowRankProduct, ModelLoading, SeqRow, StepInput,
    StepQueue,
};
use millrace_cpu::Cpu;
use millrace_numbers::DType;

use crate::harness::{SHAPES, activations, bytes, matrix, queue, time, values};

/// The rank of each product.
const RANK: usize = 16;
/// The number of adapters in a pool.
const PLACES: usize = 8;
/// Numbers of outputs of the parts of each matrix of [`SHAPES`].
const PARTS: [&[usize]; 4] = [&[2048, 256, 256], &[2048], &[5632, 5632], &[2048]];

/// Prints the times of a layer's products by bf16 weights and of its adapters, for steps of decode
/// rows that use all adapters, and for a prompt with one.
pub(crate) fn adapters(cpu: &Cpu, rows: &[usize]) {
    for &n in rows {
        let prompt = n > 64;
        let mut sums = [0.0; 2];
        for (&(name, inputs, outputs), parts) in SHAPES.iter().zip(PARTS) {
            let (linear, adapt) = measure(cpu, (inputs, outputs), parts, n, prompt);
            print(name, n, [linear, adapt]);
            sums[0] += linear;
            sums[1] += adapt;
        }
        print("layer", n, sums);
    }
}

fn print(name: &str, n: usize, [linear, adapt]: [f64; 2]) {
    println!(
        "adapters {name:8} m={n:<4} linear {:8.3} ms, adapters {:7.3} ms, both {:5.3} of linear",
        1e3 * linear,
        1e3 * adapt,
        (linear + adapt) / linear
    );
}

/// Returns the seconds of a product and of its adapters. Weights are cycled, so that both are read
/// from memory.
fn measure(
    cpu: &Cpu,
    (inputs, outputs): (usize, usize),
    parts: &[usize],
    n: usize,
    prompt: bool,
) -> (f64, f64) {
    let raw = Bytes::from(bytes(&values(outputs * inputs)));
    let copies = (200 << 20) / raw.len() + 2;
    let weights: Vec<_> = (0..copies).map(|_| matrix(cpu, &raw, outputs, inputs, DType::BF16)).collect();
    let spec = AdapterSpec { inputs, outputs, places: PLACES, rank: RANK * parts.len(), dtype: DType::BF16 };
    let mut first = 0;
    let product = |len: &usize| {
        let rows = vec![Range { start: first, end: first + len }];
        first += len;
        LowRankProduct { rank: RANK, down: values(RANK * inputs), up: values(len * RANK), rows }
    };
    let adapter = AdapterWeights { products: parts.iter().map(product).collect() };
    let copies_of_pools = (100 << 20) / spec.bytes() + 2;
    let pools: Vec<_> = (0..copies_of_pools)
        .map(|_| {
            let mut pool = cpu.adapters(&spec).unwrap();
            (0..PLACES).for_each(|place| cpu.load_adapter(&mut pool, place, &adapter).unwrap());
            pool
        })
        .collect();
    let (x, mut out) = (activations(cpu, n, inputs), cpu.buf(n, outputs).unwrap());
    let mut mid = cpu.buf(n, spec.rank).unwrap();
    let linear = time(cpu.threads(), |i| cpu.linear(n, &x, &weights[i % copies], None, &mut out).unwrap());

    let (tokens, count) = (vec![0; n], if prompt { 1 } else { n });
    let mut queue = queue(cpu, n, count);
    let rows: Vec<SeqRow<'_>> = (0..count)
        .map(|slot| SeqRow::prefill(slot, 0..n / count, &[]).with_adapter(Some(slot % PLACES)))
        .collect();
    let input = StepInput { tokens: &tokens, rows: &rows, ..StepInput::EMPTY };
    let step = cpu.prepare(cpu.begin(&mut queue, &input).unwrap()).unwrap();
    let adapt = time(cpu.threads(), |i| {
        cpu.adapt(&step, &x, &pools[i % copies_of_pools], &mut mid, &mut out).unwrap();
    });
    (linear, adapt)
}
