//! Tests of recurrent layers: convolutions, recurrences and gates.

use millrace_backend::reference::Reference;
use millrace_backend::{
    Activation, Backend, ChannelRecurrence, Convolution, GateFunction, KeySharing, Recurrence,
    RecurrenceRule, RecurrentHeads, SeqRow, StateCopy, StateSpec, StepInput,
};
use proptest::prelude::{Strategy, prop, prop_compose, proptest};

use crate::common::*;

/// The rule of a recurrence, or a convolution alone.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Rule {
    Gated,
    Delta,
    ChannelDelta,
    StateSpace(f32, f32),
}

/// Sequences that pass through a convolution and a recurrence.
#[derive(Debug, Clone)]
pub(crate) struct Case {
    heads: RecurrentHeads,
    rule: Rule,
    taps: usize,
    bias: bool,
    act: Option<Activation>,
    /// Columns of the input of the convolution that it does not read.
    more: usize,
    lengths: Vec<usize>,
    seed: u64,
}

/// The rows of one step: sequence, start, count.
pub(crate) type Plan = Vec<Vec<(usize, usize, usize)>>;

prop_compose! {
    pub(crate) fn cases_of_layers()(
        (key_heads, group, key_dim) in (1usize..4, 1usize..4, 4usize..40),
        value_dim in prop::sample::select(vec![1usize, 5, 16, 63, 64, 65, 130]),
        sharing in prop::sample::select(vec![KeySharing::Neighbors, KeySharing::Strided]),
        rule in prop::sample::select(vec![
            Rule::Gated, Rule::Delta, Rule::Delta, Rule::StateSpace(0.0, f32::INFINITY), Rule::StateSpace(0.3, 0.9),
        ]),
        (taps, bias, more) in (1usize..6, prop::bool::ANY, 0usize..9),
        act in prop::option::of(prop::sample::select(vec![Activation::Silu, Activation::GeluTanh])),
        lengths in prop::collection::vec(1usize..30, 1..5),
        seed: u64,
    ) -> Case {
        let heads = RecurrentHeads { key_heads, heads: key_heads * group, key_dim, value_dim, sharing };
        Case { heads, rule, taps, bias, act, more, lengths, seed }
    }
}

impl Case {
    /// Returns the results of the convolution and of the recurrence for all tokens of all
    /// sequences. Slots hold the states of other sequences first, and after each step one of them
    /// holds those of another one for a while.
    pub(crate) fn run<B: Backend>(&self, device: &B, plan: &Plan) -> [Vec<f32>; 2] {
        let &Case { heads, rule, taps, bias, act, more, .. } = self;
        let mut rng = Rng(self.seed);
        let gated = rule == Rule::Gated;
        let channels = if gated { heads.value_cols() } else { heads.cols() };
        let cols = if gated { 3 * channels } else { channels } + more;
        let total: usize = self.lengths.iter().sum();
        let (count, longest) = (self.lengths.len(), self.lengths.iter().copied().max().unwrap());
        let (x, weight) = (rng.values(total * cols), vector(device, &rng.values(taps * channels)));
        let of_channels = vector(device, &rng.values(channels));
        let [decay_log, step_bias, skip] = [(); 3].map(|()| vector(device, &rng.values(heads.heads)));
        let (by_channel, features) = (rule == Rule::ChannelDelta, heads.heads * heads.key_dim);
        let rule = match rule {
            Rule::StateSpace(least, most) => {
                RecurrenceRule::StateSpace { skip: &skip, limits: (least, most) }
            }
            _ => RecurrenceRule::Delta,
        };
        let recurrence = Recurrence { heads, rule, decay_log: &decay_log, step_bias: &step_bias };
        let rate_cols = if by_channel { heads.heads } else { recurrence.rate_cols() };
        let width = heads.value_cols();
        let rates: Vec<f32> = rng.values(total * rate_cols).iter().map(|rate| 3.0 * rate).collect();
        let feature_bias = vector(device, &rng.values(features));
        let feature_rates: Vec<f32> = rng.values(total * features).iter().map(|rate| 3.0 * rate).collect();
        let convolution = Convolution { weight: &weight, bias: bias.then_some(&of_channels), act, gated };
        let spec =
            StateSpec { slots: count, checkpoints: 2, channels, taps, heads: (!gated).then_some(heads) };
        let mut states = device.states(spec).unwrap();
        let mut queue = device.queue(&step_size(total, count, longest)).unwrap();
        let offset = |s: usize| self.lengths[..s].iter().sum::<usize>();
        let mut results = [vec![f32::NAN; total * channels], vec![f32::NAN; total * width]];
        // The sequences take their slots from others.
        for rows in self.whole().iter().chain(plan) {
            let of_rows = |values: &[f32], cols: usize| -> Vec<f32> {
                let of = |&(s, start, count): &(usize, usize, usize)| {
                    let at = offset(s) + start;
                    values[at * cols..(at + count) * cols].to_vec()
                };
                rows.iter().flat_map(of).collect()
            };
            let n: usize = rows.iter().map(|row| row.2).sum();
            let blocks = vec![0; longest.div_ceil(16)];
            let of_step: Vec<SeqRow<'_>> = rows
                .iter()
                .map(|&(s, start, count)| SeqRow::prefill(self.slot(s), start..start + count, &blocks))
                .collect();
            let tokens = vec![0; n];
            let (x, rates) = (upload(device, &of_rows(&x, cols), cols), of_rows(&rates, rate_cols));
            let rates = upload(device, &rates, rate_cols);
            let of_features = upload(device, &of_rows(&feature_rates, features), features);
            let input =
                StepInput { tokens: &tokens, rows: &of_step, outputs: &[], samples: &[], ..StepInput::EMPTY };
            let step = open(device, &mut queue, &input);
            let mut mixed = device.buf(n, channels).unwrap();
            device.convolve(&step, &x, &convolution, &mut states, &mut mixed).unwrap();
            let mut out = device.buf(n, width).unwrap();
            if by_channel {
                let recurrence = ChannelRecurrence {
                    heads,
                    decay_log: &decay_log,
                    step_bias: &feature_bias,
                    x: &mixed,
                    strengths: &rates,
                    rates: &of_features,
                };
                device.recur_by_channel(&step, &recurrence, &mut states, &mut out).unwrap();
            } else if !gated {
                device.recur(&step, (&mixed, &rates), &recurrence, &mut states, &mut out).unwrap();
            }
            let (slot, other, checkpoint) = (self.slot(rows[0].0), rng.below(count), count + rng.below(2));
            let copies = [(slot, checkpoint), (other, slot)].map(|(from, to)| StateCopy { from, to });
            device.copy_states(if other == slot { &copies[..1] } else { &copies }, &mut states).unwrap();
            device.copy_states(&[StateCopy { from: checkpoint, to: slot }], &mut states).unwrap();
            for (result, (buf, cols)) in results.iter_mut().zip([(&mixed, channels), (&out, width)]) {
                let (values, mut from) = (device.read(buf, n).unwrap(), 0);
                for &(s, start, count) in rows {
                    let to = (offset(s) + start) * cols;
                    result[to..to + count * cols].copy_from_slice(&values[from..from + count * cols]);
                    from += count * cols;
                }
            }
        }
        results
    }

    /// Returns the slot of a sequence: the last one for the first.
    fn slot(&self, sequence: usize) -> usize {
        self.lengths.len() - 1 - sequence
    }

    /// All sequences in one step.
    pub(crate) fn whole(&self) -> Plan {
        vec![self.lengths.iter().enumerate().map(|(s, &n)| (s, 0, n)).collect()]
    }

    /// Steps with chunks of some of the sequences, in random order.
    pub(crate) fn chunked(&self, rng: &mut Rng) -> Plan {
        let (mut done, mut plan) = (vec![0; self.lengths.len()], Vec::new());
        while done != self.lengths {
            let mut rows = Vec::new();
            for s in rng.shuffled(done.len()).into_iter().map(|s| s as usize) {
                let left = self.lengths[s] - done[s];
                if left > 0 && rng.below(3) > 0 {
                    let count = if rng.below(2) == 0 { 1 } else { 1 + rng.below(left) };
                    rows.push((s, done[s], count));
                    done[s] += count;
                }
            }
            if !rows.is_empty() {
                plan.push(rows);
            }
        }
        plan
    }
}

/// Generates functions of gates.
pub(crate) fn functions() -> impl Strategy<Value = GateFunction> {
    prop::sample::select(vec![GateFunction::Identity, GateFunction::Sigmoid, GateFunction::Silu])
}

/// Returns `x`, of `cols` columns, times its gates. `gates` are numbers, their columns, and the
/// column of the first gate.
pub(crate) fn gated<B: Backend>(
    device: &B,
    (x, cols): (&[f32], usize),
    (gates, of_gates, first): (&[f32], usize, usize),
    function: GateFunction,
) -> Vec<f32> {
    let n = x.len() / cols;
    let (mut x, gates) = (upload(device, x, cols), upload(device, gates, of_gates));
    device.multiply_gates(n, (&gates, first), function, &mut x).unwrap();
    device.read(&x, n).unwrap()
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn layers_agree_with_the_reference_whatever_the_cuts(
        case in cases_of_layers(), by_channel in prop::bool::weighted(0.3), seed: u64,
    ) {
        // Only CPUs have decays of features.
        let case = if by_channel { Case { rule: Rule::ChannelDelta, ..case } } else { case };
        let want = case.run(&Reference, &case.whole());
        let plan = case.chunked(&mut Rng(seed));
        for (want, cut) in want.iter().zip(case.run(&Reference, &plan)) {
            assert_same_bits("reference in chunks", &cut, want);
        }
        for cpu in CPUS.iter() {
            let name = cpu.name();
            let found = case.run(cpu, &case.whole());
            for (found, want) in found.iter().zip(&want) {
                assert_close(&name, found, want, 2e-5);
            }
            for (cut, whole) in case.run(cpu, &plan).iter().zip(&found) {
                assert_same_bits(&name, cut, whole);
            }
        }
    }

    /// Kernels compute the tokens of long rows in parts.
    #[test]
    fn long_rows_agree_with_the_reference_whatever_the_cuts(
        case in cases_of_layers(), by_channel in prop::bool::weighted(0.3),
        lengths in prop::collection::vec(30usize..100, 1..3), seed: u64,
    ) {
        let rule = if by_channel { Rule::ChannelDelta } else { case.rule };
        let case = Case { rule, lengths, ..case };
        let (want, plan) = (case.run(&Reference, &case.whole()), case.chunked(&mut Rng(seed)));
        for cpu in CPUS.iter() {
            let name = cpu.name();
            let found = case.run(cpu, &case.whole());
            for (found, want) in found.iter().zip(&want) {
                assert_close(&name, found, want, 2e-5);
            }
            for (cut, whole) in case.run(cpu, &plan).iter().zip(&found) {
                assert_same_bits(&name, cut, whole);
            }
        }
    }

    #[test]
    fn gates_agree_with_the_reference(
        n in 1usize..20, cols in 1usize..70, first in 0usize..9, more in 0usize..9, function in functions(),
        seed: u64,
    ) {
        let mut rng = Rng(seed);
        let of_gates = first + cols + more;
        let gates: Vec<f32> = rng.values(n * of_gates).iter().map(|gate| 9.0 * gate).collect();
        let x = rng.values(n * cols);
        let want = gated(&Reference, (&x, cols), (&gates, of_gates, first), function);
        for cpu in CPUS.iter() {
            let found = gated(cpu, (&x, cols), (&gates, of_gates, first), function);
            assert_close(&cpu.name(), &found, &want, 1e-6);
        }
    }
}
