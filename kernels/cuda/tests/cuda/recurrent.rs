//! Short convolutions, recurrences and gates.

use millrace_backend::{KeySharing, RecurrentHeads, StateSpec};
use millrace_cuda::ops::activation::ActivationKind;
use millrace_cuda::ops::recurrent::{
    Convolve, GateKind, GatedRows, KernelVersion, Recur, RecurRule, SlotStates, StateRows, convolve,
    multiply_gates, recur,
};
use millrace_cuda::{Elem, Memory};

use crate::common::*;

const VERSIONS: [KernelVersion; 2] = [KernelVersion::Fast, KernelVersion::Plain];

/// A row of a step: slot, first position, and number of tokens.
type Row = (usize, usize, usize);

/// The rows of a step on the device. The last of them are padding, whose records are those of an
/// earlier step.
struct Rows {
    rows: usize,
    tokens: usize,
    max_tokens: usize,
    records: Memory,
    query_start: Memory,
}

impl Rows {
    fn new(rows: &[Row], padding: usize) -> Rows {
        let (mut records, mut starts) = (Vec::new(), vec![0u32]);
        for &(slot, start, count) in rows {
            records.extend([slot as u32, start as u32, count as u32, 1]);
            starts.push(starts[starts.len() - 1] + count as u32);
        }
        for _ in 0..padding {
            records.extend([0, 0, 7, 1]);
            starts.push(starts[starts.len() - 1]);
        }
        Rows {
            rows: rows.len() + padding,
            tokens: starts[starts.len() - 1] as usize,
            max_tokens: rows.iter().map(|row| row.2).max().unwrap_or(0),
            records: put_u32(&records),
            query_start: put_u32(&starts),
        }
    }

    fn of_step(&self) -> StateRows<'_> {
        let &Rows { rows, tokens, max_tokens, ref records, ref query_start } = self;
        let (records, query_start) = (records.view(Elem::I32), query_start.view(Elem::I32));
        StateRows { rows, tokens, max_tokens, records, query_start }
    }
}

/// Rows of one token, of a few, and of more than a block computes at once, in random slots. Some
/// begin a sequence.
fn random_rows(rng: &mut Rng, slots: usize) -> Vec<Row> {
    let count = 1 + rng.below(slots);
    let mut row = |slot: &u32| {
        let start = if rng.below(2) == 0 { 0 } else { 1 + rng.below(50) };
        let most = rng.pick(&[1, 3, 12, 70]);
        (*slot as usize, start, 1 + rng.below(most))
    };
    Rng(count as u64).shuffled(slots)[..count].iter().map(&mut row).collect()
}

/// The states of a layer before a step: numbers, but NaN in the slots of sequences that begin.
fn states_before(rng: &mut Rng, spec: &StateSpec, rows: &[Row]) -> Vec<f32> {
    let mut states = rng.values(Elem::F32, spec.slots * spec.slot_elements());
    for &(slot, ..) in rows.iter().filter(|row| row.1 == 0) {
        states[slot * spec.slot_elements()..][..spec.slot_elements()].fill(f32::NAN);
    }
    states
}

/// The state of a row's slot when the row begins, in f64.
fn state_of(states: &[f32], spec: &StateSpec, &(slot, start, _): &Row) -> Vec<f64> {
    let state = &states[slot * spec.slot_elements()..][..spec.slot_elements()];
    state.iter().map(|&x| if start == 0 { 0.0 } else { f64::from(x) }).collect()
}

fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Asserts that results are those of the reference. The error of sums is relative to the largest
/// result.
fn assert_results(name: &str, got: &[f32], want: &[f32], precision: f32) {
    let largest = want.iter().filter(|x| !x.is_nan()).fold(1e-3f32, |most, x| most.max(x.abs()));
    assert_close(name, got, want, precision * 1.01, 1e-5 * largest);
}

#[derive(Debug, Clone)]
struct Convolution {
    elem: Elem,
    spec: StateSpec,
    cols: usize,
    bias: bool,
    act: Option<ActivationKind>,
    gated: bool,
    rows: Vec<Row>,
    padding: usize,
}

/// The inputs of a convolution.
struct ConvolutionInputs {
    x: Vec<f32>,
    weight: Vec<f32>,
    bias: Vec<f32>,
    states: Vec<f32>,
}

impl Convolution {
    fn random(rng: &mut Rng) -> Convolution {
        let gated = rng.below(3) == 0;
        let spec = StateSpec {
            slots: 1 + rng.below(5),
            checkpoints: 0,
            channels: rng.pick(&[1, 7, 128, 200]),
            taps: 1 + rng.below(6),
            heads: rng.pick(&[None, Some(one_key_head(1, 2, 3))]),
        };
        let acts = [None, Some(ActivationKind::Silu), Some(ActivationKind::GeluTanh)];
        Convolution {
            elem: rng.pick(&ACTIVATIONS),
            spec,
            cols: spec.channels * if gated { 3 } else { 1 } + rng.below(9),
            bias: rng.below(2) == 1,
            act: rng.pick(&acts),
            gated,
            rows: random_rows(rng, spec.slots),
            padding: rng.below(3),
        }
    }

    fn inputs(&self, rng: &mut Rng) -> ConvolutionInputs {
        let tokens: usize = self.rows.iter().map(|row| row.2).sum();
        ConvolutionInputs {
            x: rng.values(self.elem, tokens * self.cols),
            weight: rng.values(Elem::F32, self.spec.taps * self.spec.channels),
            bias: rng.values(Elem::F32, self.spec.channels),
            states: states_before(rng, &self.spec, &self.rows),
        }
    }

    /// The results and the states after the step, by the definition in f64.
    fn reference(&self, inputs: &ConvolutionInputs) -> (Vec<f32>, Vec<f32>) {
        let StateSpec { channels, taps, .. } = self.spec;
        let (mut out, mut states) = (Vec::new(), inputs.states.clone());
        let mut x = inputs.x.chunks_exact(self.cols);
        for row in &self.rows {
            // All inputs that the row's tokens see, oldest first.
            let mut seen = state_of(&inputs.states, &self.spec, row)[..(taps - 1) * channels].to_vec();
            for x in x.by_ref().take(row.2) {
                let input = |c: usize| match self.gated {
                    true => f64::from(x[channels + c] * x[2 * channels + c]),
                    false => f64::from(x[c]),
                };
                seen.extend((0..channels).map(input));
                let first = seen.len() - taps * channels;
                out.extend((0..channels).map(|c| {
                    let mut y = if self.bias { f64::from(inputs.bias[c]) } else { 0.0 };
                    for tap in 0..taps {
                        y += f64::from(inputs.weight[tap * channels + c]) * seen[first + tap * channels + c];
                    }
                    let y = match self.act {
                        None => y,
                        Some(ActivationKind::Silu) => y * sigmoid(y),
                        Some(_) => {
                            y * sigmoid(
                                2.0 * (2.0 / std::f64::consts::PI).sqrt() * (y + 0.044715 * y.powi(3)),
                            )
                        }
                    };
                    (if self.gated { y * f64::from(x[c]) } else { y }) as f32
                }));
            }
            let window = &mut states[row.0 * self.spec.slot_elements()..][..(taps - 1) * channels];
            let last = seen.len() - window.len();
            window.iter_mut().zip(&seen[last..]).for_each(|(to, from)| *to = *from as f32);
        }
        (out, states)
    }

    /// The results and the states after the step, on the device.
    fn run(&self, inputs: &ConvolutionInputs, version: KernelVersion) -> (Vec<f32>, Vec<f32>) {
        let rows = Rows::new(&self.rows, self.padding);
        let (x, weight, bias) =
            (put(self.elem, &inputs.x), put(Elem::F32, &inputs.weight), put(Elem::F32, &inputs.bias));
        let (states, out) =
            (put(Elem::F32, &inputs.states), garbage(self.elem, rows.tokens * self.spec.channels));
        let convolution = Convolve {
            rows: rows.of_step(),
            states: SlotStates { spec: self.spec, data: states.view(Elem::F32) },
            cols: self.cols,
            x: x.view(self.elem),
            weight: weight.view(Elem::F32),
            bias: self.bias.then(|| bias.view(Elem::F32)),
            act: self.act,
            gated: self.gated,
            out: out.view(self.elem),
        };
        convolve(&DEVICE, version, &convolution).unwrap();
        let len = rows.tokens * self.spec.channels;
        (get(out.view(self.elem).slice(0..len)), get(states.view(Elem::F32).slice(0..inputs.states.len())))
    }

    fn check(&self, rng: &mut Rng) {
        let inputs = self.inputs(rng);
        let (want, want_states) = self.reference(&inputs);
        for version in VERSIONS {
            let name = format!("{self:?} {version:?}");
            let (got, states) = self.run(&inputs, version);
            assert_results(&name, &got, &want, precision(self.elem));
            assert_close(&format!("states of {name}"), &states, &want_states, 0.0, 0.0);
        }
    }
}

#[test]
fn convolutions_match_the_reference() {
    for_seeds(30, |rng| Convolution::random(rng).check(rng));
}

/// With many rows, a block has several groups of a row's tokens.
#[test]
fn a_long_row_among_many_is_convolved() {
    let spec = StateSpec { slots: 2, checkpoints: 0, channels: 3, taps: 4, heads: None };
    let case = Convolution {
        elem: Elem::F32,
        spec,
        cols: 3,
        bias: true,
        act: None,
        gated: false,
        rows: vec![(1, 0, 100), (0, 9, 1)],
        padding: 1500,
    };
    case.check(&mut Rng(1));
}

/// Returns value heads that all have the same key head.
fn one_key_head(heads: usize, key_dim: usize, value_dim: usize) -> RecurrentHeads {
    RecurrentHeads { key_heads: 1, heads, key_dim, value_dim, sharing: KeySharing::Neighbors }
}

#[derive(Debug, Clone)]
struct Recurrence {
    elem: Elem,
    heads: RecurrentHeads,
    /// The bounds of the steps of a state space, or the delta rule.
    limits: Option<(f32, f32)>,
    spec: StateSpec,
    rows: Vec<Row>,
    padding: usize,
}

/// The inputs of a recurrence.
#[derive(Clone)]
struct RecurrenceInputs {
    x: Vec<f32>,
    rates: Vec<f32>,
    decay_log: Vec<f32>,
    step_bias: Vec<f32>,
    skip: Vec<f32>,
    states: Vec<f32>,
}

impl Recurrence {
    fn random(rng: &mut Rng) -> Recurrence {
        let (key_heads, group) = (1 + rng.below(3), 1 + rng.below(3));
        let heads = RecurrentHeads {
            key_heads,
            heads: key_heads * group,
            key_dim: rng.pick(&[1, 16, 100, 128, 130, 256, 300]),
            value_dim: rng.pick(&[1, 16, 32, 33, 100]),
            sharing: rng.pick(&[KeySharing::Neighbors, KeySharing::Strided]),
        };
        let limits = rng.pick(&[None, None, Some((0.0, f32::INFINITY)), Some((0.3, 0.9))]);
        let slots = 1 + rng.below(3);
        let rows = random_rows(rng, slots);
        Recurrence {
            rows,
            padding: rng.below(3),
            ..Recurrence::new(rng.pick(&ACTIVATIONS), heads, limits, slots)
        }
    }

    /// A recurrence without rows.
    fn new(elem: Elem, heads: RecurrentHeads, limits: Option<(f32, f32)>, slots: usize) -> Recurrence {
        let spec = StateSpec { slots, checkpoints: 0, channels: heads.cols(), taps: 2, heads: Some(heads) };
        Recurrence { elem, heads, limits, spec, rows: Vec::new(), padding: 0 }
    }

    fn rate_cols(&self) -> usize {
        if self.limits.is_none() { 2 * self.heads.heads } else { self.heads.heads }
    }

    fn inputs(&self, rng: &mut Rng) -> RecurrenceInputs {
        let (tokens, heads) = (self.rows.iter().map(|row| row.2).sum::<usize>(), self.heads.heads);
        // Beyond 88, the exponential of a rate is infinite in single precision.
        let (rates, scale) = (rng.values(self.elem, tokens * self.rate_cols()), rng.pick(&[3.0, 120.0]));
        RecurrenceInputs {
            x: rng.values(self.elem, tokens * self.heads.cols()),
            rates: rates.iter().map(|rate| round(self.elem, scale * rate)).collect(),
            decay_log: rng.values(Elem::F32, heads),
            step_bias: rng.values(Elem::F32, heads),
            skip: rng.values(Elem::F32, heads),
            states: states_before(rng, &self.spec, &self.rows),
        }
    }

    /// Applies a token to a head's matrix, `[key_dim, value_dim]`, and appends the result.
    fn token(
        &self,
        inputs: &RecurrenceInputs,
        head: usize,
        (x, rates): (&[f32], &[f32]),
        matrix: &mut [f64],
        out: &mut Vec<f32>,
    ) {
        let RecurrentHeads { key_heads, heads, key_dim, value_dim, sharing } = self.heads;
        let key_head = match sharing {
            KeySharing::Neighbors => head / (heads / key_heads),
            KeySharing::Strided => head % key_heads,
        };
        let part = |first: usize, len: usize| -> Vec<f64> {
            x[first..first + len].iter().map(|&x| f64::from(x)).collect()
        };
        let (mut query, mut key) =
            (part(key_head * key_dim, key_dim), part((key_heads + key_head) * key_dim, key_dim));
        let value = part(2 * key_heads * key_dim + head * value_dim, value_dim);
        let rate = f64::from(rates[self.rate_cols() - heads + head]) + f64::from(inputs.step_bias[head]);
        let step = rate.max(0.0) + (-rate.abs()).exp().ln_1p();
        let step = self.limits.map_or(step, |(least, most)| step.clamp(f64::from(least), f64::from(most)));
        let decay = (-f64::from(inputs.decay_log[head]).exp() * step).exp();
        matrix.iter_mut().for_each(|s| *s *= decay);
        if self.limits.is_none() {
            for vector in [&mut query, &mut key] {
                let length = (vector.iter().map(|x| x * x).sum::<f64>() + 1e-6).sqrt();
                vector.iter_mut().for_each(|x| *x /= length);
            }
            query.iter_mut().for_each(|x| *x /= (key_dim as f64).sqrt());
        }
        for (v, value) in value.iter().enumerate() {
            let column = |matrix: &[f64], by: &[f64]| -> f64 {
                by.iter().enumerate().map(|(k, x)| x * matrix[k * value_dim + v]).sum()
            };
            let change = match self.limits {
                None => sigmoid(f64::from(rates[head])) * (value - column(matrix, &key)),
                Some(_) => step * value,
            };
            key.iter().enumerate().for_each(|(k, key)| matrix[k * value_dim + v] += key * change);
            let skipped = if self.limits.is_some() { f64::from(inputs.skip[head]) * value } else { 0.0 };
            out.push((column(matrix, &query) + skipped) as f32);
        }
    }

    /// The results and the states after the step, by the definition in f64.
    fn reference(&self, inputs: &RecurrenceInputs) -> (Vec<f32>, Vec<f32>) {
        let RecurrentHeads { heads, key_dim, value_dim, .. } = self.heads;
        let (mut out, mut states) = (Vec::new(), inputs.states.clone());
        let mut tokens =
            inputs.x.chunks_exact(self.heads.cols()).zip(inputs.rates.chunks_exact(self.rate_cols()));
        for row in &self.rows {
            let mut matrices = state_of(&inputs.states, &self.spec, row);
            let matrices = &mut matrices[self.spec.window_elements()..];
            for token in tokens.by_ref().take(row.2) {
                for (head, matrix) in matrices.chunks_exact_mut(key_dim * value_dim).enumerate() {
                    self.token(inputs, head, token, matrix, &mut out);
                }
            }
            let first = row.0 * self.spec.slot_elements() + self.spec.window_elements();
            let after = &mut states[first..first + heads * key_dim * value_dim];
            after.iter_mut().zip(matrices).for_each(|(to, from)| *to = *from as f32);
        }
        (out, states)
    }

    /// The results and the states after the step, on the device.
    fn run(&self, inputs: &RecurrenceInputs, version: KernelVersion) -> (Vec<f32>, Vec<f32>) {
        let rows = Rows::new(&self.rows, self.padding);
        let (x, rates) = (put(self.elem, &inputs.x), put(self.elem, &inputs.rates));
        let [decay_log, step_bias, skip] =
            [&inputs.decay_log, &inputs.step_bias, &inputs.skip].map(|values| put(Elem::F32, values));
        let len = rows.tokens * self.heads.value_cols();
        let (states, out) = (put(Elem::F32, &inputs.states), garbage(self.elem, len));
        let recurrence = Recur {
            rows: rows.of_step(),
            heads: self.heads,
            states: SlotStates { spec: self.spec, data: states.view(Elem::F32) },
            x: x.view(self.elem),
            rates: rates.view(self.elem),
            rule: self.limits.map_or(RecurRule::Delta, |limits| RecurRule::StateSpace {
                skip: skip.view(Elem::F32),
                limits,
            }),
            decay_log: decay_log.view(Elem::F32),
            step_bias: step_bias.view(Elem::F32),
            out: out.view(self.elem),
        };
        recur(&DEVICE, version, &recurrence).unwrap();
        (get(out.view(self.elem).slice(0..len)), get(states.view(Elem::F32).slice(0..inputs.states.len())))
    }

    fn check(&self, rng: &mut Rng) {
        let inputs = self.inputs(rng);
        let (want, want_states) = self.reference(&inputs);
        for version in VERSIONS {
            let name = format!("{self:?} {version:?}");
            let (got, states) = self.run(&inputs, version);
            assert_results(&name, &got, &want, precision(self.elem));
            assert_results(&format!("states of {name}"), &states, &want_states, precision(Elem::F32));
        }
    }
}

#[test]
fn recurrences_match_the_reference() {
    for_seeds(20, |rng| Recurrence::random(rng).check(rng));
}

/// Each compiled variant runs, whatever the random shapes are.
#[test]
fn every_rule_size_and_type_matches_the_reference() {
    for elem in ACTIVATIONS {
        for limits in [None, Some((0.1, 2.0))] {
            for key_dim in [128, 129] {
                let heads = one_key_head(2, key_dim, 9);
                let rows = vec![(0, 0, 9), (1, 4, 2)];
                let case = Recurrence { rows, ..Recurrence::new(elem, heads, limits, 2) };
                case.check(&mut Rng(key_dim as u64));
            }
        }
        for taps in [4, 5] {
            let spec = StateSpec { slots: 1, checkpoints: 0, channels: 9, taps, heads: None };
            let (cols, act, rows) = (9, Some(ActivationKind::Silu), vec![(0, 3, 5)]);
            let case = Convolution { elem, spec, cols, bias: true, act, gated: false, rows, padding: 0 };
            case.check(&mut Rng(taps as u64));
        }
    }
}

/// The cuts of a sequence, and other rows of a step, change no bits of results and states.
#[test]
fn chunks_change_no_bits() {
    for_seeds(6, |rng| {
        let heads = one_key_head(2, 20, 33);
        let limits = rng.pick(&[None, Some((0.0, f32::INFINITY))]);
        let empty = Recurrence::new(rng.pick(&ACTIVATIONS), heads, limits, 2);
        let (tokens, cols, rate_cols) = (21, heads.cols(), empty.rate_cols());
        let whole = Recurrence { rows: vec![(1, 0, tokens)], ..empty.clone() };
        let inputs = whole.inputs(rng);
        let (want, want_states) = whole.run(&inputs, KernelVersion::Fast);
        let (mut done, mut got, mut states) = (0, Vec::new(), inputs.states.clone());
        while done < tokens {
            let count = 1 + rng.below((tokens - done).min(11));
            let of_chunk = |values: &[f32], cols: usize| values[done * cols..(done + count) * cols].to_vec();
            // Another sequence decodes beside it.
            let beside = RecurrenceInputs {
                x: [rng.values(empty.elem, cols), of_chunk(&inputs.x, cols)].concat(),
                rates: [rng.values(empty.elem, rate_cols), of_chunk(&inputs.rates, rate_cols)].concat(),
                states,
                ..inputs.clone()
            };
            let chunk = Recurrence { rows: vec![(0, 5, 1), (1, done, count)], ..empty.clone() };
            let (out, after) = chunk.run(&beside, KernelVersion::Fast);
            got.extend_from_slice(&out[heads.value_cols()..]);
            (done, states) = (done + count, after);
        }
        let slot = whole.spec.slot_elements();
        // The window belongs to the convolution.
        let of_matrices = slot + whole.spec.window_elements()..2 * slot;
        assert_close("results", &got, &want, 0.0, 0.0);
        assert_close("states", &states[of_matrices.clone()], &want_states[of_matrices], 0.0, 0.0);
    });
}

#[test]
fn gates_match_the_reference() {
    for_seeds(24, |rng| {
        let elem = rng.pick(&ACTIVATIONS);
        let (rows, unit) = (1 + rng.below(3), rng.pick(&[1, 8]));
        let (cols, first, more) = (unit * (1 + rng.below(90)), unit * rng.below(4), unit * rng.below(3));
        let gate_cols = first + cols + more;
        let kind = rng.pick(&[GateKind::SigmoidGate, GateKind::SiluGate, GateKind::IdentityGate]);
        let x = rng.values(elem, rows * cols);
        let gates: Vec<f32> =
            rng.values(elem, rows * gate_cols).iter().map(|gate| round(elem, 9.0 * gate)).collect();
        let mut want = x.clone();
        for (row, gates) in want.chunks_exact_mut(cols).zip(gates.chunks_exact(gate_cols)) {
            for (x, gate) in row.iter_mut().zip(&gates[first..]) {
                let gate = f64::from(*gate);
                let factor = match kind {
                    GateKind::IdentityGate => gate,
                    GateKind::SiluGate => gate * sigmoid(gate),
                    _ => sigmoid(gate),
                };
                *x = (f64::from(*x) * factor) as f32;
            }
        }
        let on_gates = put(elem, &gates);
        for version in VERSIONS {
            let on_x = put(elem, &x);
            let of_rows = GatedRows {
                rows,
                cols,
                x: on_x.view(elem),
                gate_cols,
                first,
                gates: on_gates.view(elem),
                kind,
            };
            multiply_gates(&DEVICE, version, &of_rows).unwrap();
            let name = format!("{elem:?} {kind:?} {cols} gates from {first} of {gate_cols}, {version:?}");
            assert_close(&name, &get(on_x.view(elem).slice(0..x.len())), &want, precision(elem) * 1.01, 4e-6);
        }
    });
}

#[test]
fn wrong_shapes_are_refused() {
    let heads = one_key_head(1, 2, 2);
    let spec = StateSpec { slots: 2, checkpoints: 0, channels: 6, taps: 2, heads: Some(heads) };
    let (memory, rows) = (garbage(Elem::F32, 2 * spec.slot_elements()), Rows::new(&[(0, 1, 2)], 0));
    let view = memory.view(Elem::F32);
    let states = SlotStates { spec, data: view };
    let convolution = Convolve {
        rows: rows.of_step(),
        states,
        cols: 6,
        x: view,
        weight: view,
        bias: None,
        act: None,
        gated: false,
        out: view,
    };
    let refused = |c: &Convolve<'_>| convolve(&DEVICE, KernelVersion::Fast, c).unwrap_err().to_string();
    let few = SlotStates { data: view.slice(0..19), ..states };
    assert!(refused(&Convolve { states: few, ..convolution }).contains("states has 19 elements, not 20"));
    assert!(refused(&Convolve { gated: true, ..convolution }).contains("2 taps of 6 channels of 6 columns"));
    let recurrence = Recur {
        rows: rows.of_step(),
        heads,
        states,
        x: view,
        rates: view,
        rule: RecurRule::Delta,
        decay_log: view,
        step_bias: view,
        out: view,
    };
    let refused = |r: &Recur<'_>| recur(&DEVICE, KernelVersion::Fast, r).unwrap_err().to_string();
    let others = RecurrentHeads { value_dim: 3, ..heads };
    assert!(refused(&Recur { heads: others, ..recurrence }).contains("states of"));
    assert!(
        refused(&Recur { rates: view.slice(0..3), ..recurrence }).contains("rates has 3 elements, not 4")
    );
    let gates = GatedRows {
        rows: 1,
        cols: 4,
        x: view,
        gate_cols: 6,
        first: 3,
        gates: view,
        kind: GateKind::SiluGate,
    };
    let error = multiply_gates(&DEVICE, KernelVersion::Fast, &gates).unwrap_err().to_string();
    assert!(error.contains("4 gates from column 3 of 6"), "{error}");
}
