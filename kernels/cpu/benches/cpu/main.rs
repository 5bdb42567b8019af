//! Measures the CPU backend against the limits of the machine, and with the feature `faer` against
//! `faer`.
//!
//! `cargo bench -p millrace-cpu --bench cpu [--features faer] -- [--threads N] [--only
//! linear|adapters|quantized|packing|attention|decode|prefill|recurrent|sampling|
//! staging] [--dtype
//! bfloat16|float16|float32] [--kv bfloat16|float16|float32|int8] [--rows 1,8,512] [--format
//! int8|q8_0|q4_0|int4|q4_k|q6_k|fp8|nf4] [--activations rounded|exact] [--isa NAME]`
//!
//! The shapes come from a Llama with 1.1 billion parameters. The weights are cycled so that every
//! product reads them from memory, as a decoder does. The peak (a loop on registers of the
//! instruction for the weights) and the bandwidth (a read-only stream over the same number of
//! bytes) are measured between the products, because the speed of shared machines varies. With one
//! thread, the measured time is the CPU time of that thread, so that other processes do not count.

#![allow(clippy::unwrap_used, reason = "a failed set-up is a failed benchmark")]

mod adapters;
mod attention;
mod harness;
mod linear;
mod packing;
mod quantized;
mod recurrent;
mod sampling;
mod staging;

use harness::SHAPES;
use millrace_backend::Backend;
use millrace_cpu::{Activations, Cpu, CpuOptions, Isa};
use millrace_numbers::DType;

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let flag = |name: &str| arguments.iter().position(|a| a == name).map(|at| arguments[at + 1].clone());
    let threads = flag("--threads").map(|n| n.parse().unwrap());
    let only = flag("--only");
    let activations = match flag("--activations").as_deref() {
        Some("exact") => Activations::Exact,
        _ => Activations::Rounded,
    };
    let isa = flag("--isa").map(|name| Isa::ALL.into_iter().find(|isa| isa.name() == name).unwrap());
    let cpu = Cpu::new(CpuOptions { threads, activations, isa, ..CpuOptions::default() }).unwrap();
    let rows = flag("--rows").map_or(vec![1, 2, 4, 8, 9, 16, 64, 512], |rows| {
        rows.split(',').map(|n| n.parse().unwrap()).collect()
    });
    let dtype = flag("--dtype");
    let dtypes = [DType::BF16, DType::F16, DType::F32]
        .into_iter()
        .filter(|d| dtype.as_deref().map_or(*d != DType::F16, |name| name == d.name()));
    println!("{}", cpu.name());
    let on = |name: &str| only.as_deref().is_none_or(|o| o == name);
    if on("linear") {
        for dtype in dtypes {
            for shape in SHAPES {
                linear::linear(&cpu, shape, dtype, &rows);
            }
        }
    }
    if on("adapters") {
        adapters::adapters(&cpu, &rows);
    }
    if on("quantized") {
        quantized::quantized(&cpu, flag("--format").as_deref(), &rows);
    }
    if on("packing") {
        packing::packing(&cpu, flag("--format").as_deref());
    }
    let kv = flag("--kv");
    if on("attention") || on("decode") {
        attention::decode(&cpu, kv.as_deref());
    }
    if on("attention") || on("prefill") {
        attention::prefill(&cpu, kv.as_deref());
    }
    if on("recurrent") {
        recurrent::recurrent(&cpu);
    }
    if on("sampling") {
        sampling::sampling(&cpu);
    }
    if on("staging") {
        staging::staging(cpu.threads());
    }
}
