//! Sampling with the vocabularies of ChatGLM, Llama 3 and Qwen.

use millrace_backend::{SamplingParams, ScoreRow};
use millrace_cuda::Elem;
use millrace_cuda::ops::sample::{
    COLUMNS, RowSampling, SampleBounds, SampleOutputs, SampleRows, encode, encode_given, sample, score,
    workspace,
};

use crate::cost::{self, Cost};
use crate::harness::{Bench, Result};

/// Tokens that every sequence has.
const TOKENS: usize = 1024;

pub(crate) fn run(bench: &mut Bench) -> Result<()> {
    let sizes: &[usize] = if bench.is_simulated() { &[2] } else { &[1, 32, 256] };
    for (model, vocab) in [("ChatGLM", 65_024), ("Llama 3", 128_256), ("Qwen", 151_936)] {
        for &rows in sizes {
            for (what, params) in kinds() {
                one(bench, &format!("sample {what}, {rows} x {vocab} ({model})"), rows, vocab, &params)?;
            }
        }
    }
    Ok(())
}

fn kinds() -> Vec<(&'static str, SamplingParams)> {
    let greedy = SamplingParams::default();
    let drawn = SamplingParams { do_sample: true, temperature: 0.8, ..greedy.clone() };
    vec![
        ("greedy", greedy.clone()),
        ("greedy, top 20", SamplingParams { top_n: 20, ..greedy.clone() }),
        ("greedy, penalties", SamplingParams { repetition_penalty: 1.1, frequency_penalty: 0.2, ..greedy }),
        ("temperature", drawn.clone()),
        ("top-k 50, top-p 0.9", SamplingParams { top_k: 50, top_p: 0.9, ..drawn.clone() }),
        ("top-p 0.9", SamplingParams { top_p: 0.9, ..drawn.clone() }),
        ("top-p 0.9, flat", SamplingParams { top_p: 0.9, temperature: 20.0, ..drawn.clone() }),
        ("typical 0.9", SamplingParams { typical_p: 0.9, ..drawn }),
    ]
}

fn one(bench: &mut Bench, name: &str, rows: usize, vocab: usize, params: &SamplingParams) -> Result<()> {
    let device = bench.device.clone();
    let words = |all: &[u32]| all.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>();
    let mut table = vec![0; COLUMNS * rows];
    let bounds = SampleBounds { history: (rows, TOKENS), top_n: 20, ..SampleBounds::default() };
    let choice = |slot| RowSampling {
        params,
        tokens: TOKENS,
        prompt_len: TOKENS / 2,
        slot,
        mask: None,
        biases: (0, 0),
    };
    encode((0..rows).map(choice), &bounds, rows, &mut table)?;
    let table = device.upload(&words(&table))?;
    let history =
        device.upload(&words(&(0..(rows * TOKENS) as u32).map(|i| i * 7 % 9973).collect::<Vec<_>>()))?;
    let logits = device.upload(&normal(rows, vocab))?;
    let space = device.allocate(Elem::U8, workspace(rows, vocab))?;
    let row = |elem| device.allocate(elem, rows);
    let (tokens, logprobs, counts) = (row(Elem::U32)?, row(Elem::F32)?, row(Elem::U32)?);
    let (ids, tops) = (device.allocate(Elem::U32, rows * 20)?, device.allocate(Elem::F32, rows * 20)?);
    let all = SampleRows {
        rows,
        vocab,
        logits: logits.view(Elem::F32),
        table: table.view(Elem::U32),
        table_stride: rows,
        history: Some((history.view(Elem::U32), TOKENS)),
        biases: None,
        masks: None,
        workspace: space.view(Elem::U8),
        chosen: SampleOutputs {
            tokens: tokens.view(Elem::U32),
            logprobs: logprobs.view(Elem::F32),
            top_ids: ids.view(Elem::U32),
            top_logprobs: tops.view(Elem::F32),
            top_counts: counts.view(Elem::U32),
            top_stride: 20,
        },
    };
    let total = |one: Cost| (0..rows).fold(Cost::default(), |sum, _| sum + one);
    bench.measure(name, total(cost::sample(params, vocab, TOKENS, false)), |device| sample(device, &all))?;
    if params.do_sample || params.repetition_penalty != 1.0 {
        return Ok(());
    }
    let mut given = vec![0; (COLUMNS + 1) * rows];
    let row = |i| ScoreRow { token: (i * 9973 % vocab) as u32, top_n: params.top_n };
    encode_given(&(0..rows).map(row).collect::<Vec<_>>(), vocab, 20, &mut given)?;
    let given = device.upload(&words(&given))?;
    let (table, tokens) =
        (given.view(Elem::U32).slice(0..COLUMNS * rows), COLUMNS * rows..(COLUMNS + 1) * rows);
    let (all, tokens) = (SampleRows { table, ..all }, given.view(Elem::U32).slice(tokens));
    bench.measure(&name.replace("sample greedy", "score"), total(cost::score(vocab)), |device| {
        score(device, &all, tokens)
    })
}

/// Logits of a language model's kind: a normal bulk, and a few tokens per row that stand out.
fn normal(rows: usize, vocab: usize) -> Vec<u8> {
    let mut state = 1u32;
    let mut unit = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as f32 / (1 << 24) as f32 - 0.5
    };
    let mut bytes = Vec::with_capacity(rows * vocab * 4);
    for token in 0..rows * vocab {
        let bulk = (unit() + unit() + unit() + unit()) * 4.0;
        let above = if token % vocab % 9973 == 17 { 10.0 + 6.0 * unit() } else { 0.0 };
        bytes.extend_from_slice(&(bulk + above).to_le_bytes());
    }
    bytes
}
