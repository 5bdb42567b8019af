//! Measures sampling from one row of logits.

use millrace_backend::{SampleRow, SamplingParams, StepQueue};
use millrace_cpu::Cpu;

use crate::harness::{activations, opened, queue, time};

const VOCAB: usize = 128 << 10;
/// Tokens of the sequence, over which penalties run.
const CONTEXT: u32 = 32 << 10;

/// Prints the time of the usual kinds of sampling.
pub(crate) fn sampling(cpu: &Cpu) {
    let greedy = SamplingParams::default();
    let drawn = SamplingParams { do_sample: true, temperature: 0.8, ..greedy.clone() };
    let kinds = [
        ("greedy", greedy.clone()),
        ("greedy with a repetition penalty", SamplingParams { repetition_penalty: 1.0001, ..greedy.clone() }),
        ("greedy with top tokens", SamplingParams { top_n: 5, ..greedy }),
        ("temperature", drawn.clone()),
        ("top-p", SamplingParams { top_p: 0.9, ..drawn }),
    ];
    let tokens: Vec<u32> = (0..CONTEXT).map(|i| i.wrapping_mul(2_654_435_761) % VOCAB as u32).collect();
    let mut queue = queue(cpu, 1, 1);
    let mut step = opened(cpu, &mut queue, &[0], &[(0, 1, &[0])]);
    for (name, params) in kinds {
        let mut logits = activations(cpu, 1, VOCAB);
        let rows = [SampleRow { params: &params, tokens: &tokens, prompt_len: 1, allowed: None }];
        let seconds = time(cpu.threads(), |_| cpu.sample(&mut step, &mut logits, &rows).unwrap());
        println!("sampling 1 x {VOCAB} {name:33} {:7.3} ms", 1e3 * seconds);
    }
}
