//! Recurrent layers: short convolutions, and recurrences over the tokens of a sequence. States are
//! rounded to single precision after each token.

use super::buffers::{Buf, Queue};
use super::math::{activate, dot};
use crate::{
    ChannelRecurrence, Convolution, GateFunction, Recurrence, RecurrenceRule, RecurrentHeads, StateCopy,
    StateSpec,
};

/// The recurrent states of one layer of [`Reference`](super::Reference).
#[derive(Debug, Clone)]
pub struct States {
    spec: StateSpec,
    /// The window and the matrices of each slot, then those of each checkpoint.
    places: Vec<Vec<f32>>,
}

impl States {
    pub(super) fn new(spec: StateSpec) -> States {
        States { spec, places: vec![vec![0.0; spec.slot_elements()]; spec.places()] }
    }

    pub(super) fn copy(&mut self, copies: &[StateCopy]) {
        for &StateCopy { from, to } in copies {
            self.places[to] = self.places[from].clone();
        }
    }

    /// Returns the window of the slot of a token of the step, which is zeros at position 0.
    fn window(&mut self, step: &Queue, token: usize) -> &mut [f32] {
        let (position, table) = step.places[token];
        let elements = self.spec.window_elements();
        let window = &mut self.places[step.slots[table]][..elements];
        if position == 0 {
            window.fill(0.0);
        }
        window
    }

    /// Returns a head's matrix of the slot of a token of the step, which is zeros at position 0.
    fn matrix(&mut self, step: &Queue, token: usize, head: usize) -> &mut [f32] {
        let (position, table) = step.places[token];
        let window = self.spec.window_elements();
        let of_head = self.spec.heads.map_or(0, |heads| heads.key_dim * heads.value_dim);
        let matrix = &mut self.places[step.slots[table]][window + head * of_head..][..of_head];
        if position == 0 {
            matrix.fill(0.0);
        }
        matrix
    }
}

/// Convolves the tokens of the step.
pub(super) fn convolve(
    step: &Queue,
    x: &Buf,
    convolution: &Convolution<'_, Vec<f32>>,
    states: &mut States,
    out: &mut Buf,
) {
    let StateSpec { channels, taps, .. } = states.spec;
    for t in 0..step.places.len() {
        let x = x.row(t);
        let input = |c: usize| match convolution.gated {
            true => (f64::from(x[channels + c]) * f64::from(x[2 * channels + c])) as f32,
            false => x[c],
        };
        // The window holds the inputs of the tokens before this one.
        let window = states.window(step, t);
        for (c, out) in out.row_mut(t).iter_mut().enumerate() {
            let mut sum = convolution.bias.map_or(0.0, |bias| f64::from(bias[c]));
            for tap in 0..taps {
                let u = if tap == taps - 1 { input(c) } else { window[tap * channels + c] };
                sum += f64::from(convolution.weight[tap * channels + c]) * f64::from(u);
            }
            let y = convolution.act.map_or(sum, |act| activate(act, sum));
            *out = (if convolution.gated { f64::from(x[c]) * y } else { y }) as f32;
        }
        if taps > 1 {
            window.copy_within(channels.., 0);
            let last = (taps - 2) * channels;
            window[last..].iter_mut().enumerate().for_each(|(c, u)| *u = input(c));
        }
    }
}

/// Applies the recurrence to the tokens of the step.
pub(super) fn recur(
    step: &Queue,
    (x, rates): (&Buf, &Buf),
    recurrence: &Recurrence<'_, Vec<f32>>,
    states: &mut States,
    out: &mut Buf,
) {
    let heads = recurrence.heads;
    let RecurrentHeads { heads: count, key_dim, value_dim, .. } = heads;
    for t in 0..step.places.len() {
        let (x, rates) = (x.row(t), rates.row(t));
        for h in 0..count {
            let key_head = heads.key_head(h);
            let query = &x[key_head * key_dim..][..key_dim];
            let key = &x[heads.key_cols() + key_head * key_dim..][..key_dim];
            let values = &x[2 * heads.key_cols() + h * value_dim..][..value_dim];
            let matrix = states.matrix(step, t, h);
            let out = &mut out.row_mut(t)[h * value_dim..][..value_dim];
            let speed = f64::from(recurrence.decay_log[h]).exp();
            let softplus = |rate: f32| (f64::from(rate) + f64::from(recurrence.step_bias[h])).exp().ln_1p();
            match recurrence.rule {
                RecurrenceRule::Delta => {
                    let decay = (-speed * softplus(rates[count + h])).exp();
                    let strength = 1.0 / (1.0 + (-f64::from(rates[h])).exp());
                    let unit = |x: &[f32]| -> Vec<f64> {
                        let length = (dot(x, x) + 1e-6).sqrt();
                        x.iter().map(|x| f64::from(*x) / length).collect()
                    };
                    let (query, key) = (unit(query), unit(key));
                    for (v, out) in out.iter_mut().enumerate() {
                        let column = (0..key_dim).map(|k| decay * f64::from(matrix[k * value_dim + v]));
                        let column: Vec<f64> = column.collect();
                        let seen: f64 = column.iter().zip(&key).map(|(s, key)| s * key).sum();
                        let change = strength * (f64::from(values[v]) - seen);
                        let mut sum = 0.0;
                        for (k, s) in column.iter().enumerate() {
                            let s = s + key[k] * change;
                            matrix[k * value_dim + v] = s as f32;
                            sum += s * query[k];
                        }
                        *out = (sum / (key_dim as f64).sqrt()) as f32;
                    }
                }
                RecurrenceRule::StateSpace { skip, limits: (least, most) } => {
                    let step = softplus(rates[h]).clamp(f64::from(least), f64::from(most));
                    let decay = (-speed * step).exp();
                    for (v, out) in out.iter_mut().enumerate() {
                        let value = f64::from(values[v]);
                        let mut sum = f64::from(skip[h]) * value;
                        for k in 0..key_dim {
                            let s = &mut matrix[k * value_dim + v];
                            let new = decay * f64::from(*s) + f64::from(key[k]) * step * value;
                            *s = new as f32;
                            sum += new * f64::from(query[k]);
                        }
                        *out = sum as f32;
                    }
                }
            }
        }
    }
}

/// Applies the recurrence with a decay of each feature to the tokens of the step.
pub(super) fn recur_by_channel(
    step: &Queue,
    recurrence: &ChannelRecurrence<'_, Vec<f32>, Buf>,
    states: &mut States,
    out: &mut Buf,
) {
    let &ChannelRecurrence { heads, decay_log, step_bias, x, strengths, rates } = recurrence;
    let RecurrentHeads { heads: count, key_dim, value_dim, .. } = heads;
    let unit = |x: &[f32]| -> Vec<f64> {
        let length = (dot(x, x) + 1e-6).sqrt();
        x.iter().map(|x| f64::from(*x) / length).collect()
    };
    for t in 0..step.places.len() {
        for h in 0..count {
            let (x, key_head) = (x.row(t), heads.key_head(h));
            let query = unit(&x[key_head * key_dim..][..key_dim]);
            let key = unit(&x[heads.key_cols() + key_head * key_dim..][..key_dim]);
            let values = &x[2 * heads.key_cols() + h * value_dim..][..value_dim];
            let speed = f64::from(decay_log[h]).exp();
            let decay = |k: usize| {
                let rate = f64::from(rates.row(t)[h * key_dim + k]) + f64::from(step_bias[h * key_dim + k]);
                (-speed * rate.exp().ln_1p()).exp()
            };
            let decays: Vec<f64> = (0..key_dim).map(decay).collect();
            let strength = 1.0 / (1.0 + (-f64::from(strengths.row(t)[h])).exp());
            let matrix = states.matrix(step, t, h);
            let out = &mut out.row_mut(t)[h * value_dim..][..value_dim];
            for (v, out) in out.iter_mut().enumerate() {
                let old = |k: usize| decays[k] * f64::from(matrix[k * value_dim + v]);
                let column: Vec<f64> = (0..key_dim).map(old).collect();
                let seen: f64 = column.iter().zip(&key).map(|(s, key)| s * key).sum();
                let change = strength * (f64::from(values[v]) - seen);
                let mut sum = 0.0;
                for (k, s) in column.iter().enumerate() {
                    let s = s + key[k] * change;
                    matrix[k * value_dim + v] = s as f32;
                    sum += s * query[k];
                }
                *out = (sum / (key_dim as f64).sqrt()) as f32;
            }
        }
    }
}

/// `x[t, f] *= function(gates[t, first + f])` over the first `n` rows.
pub(super) fn multiply_gates(n: usize, (gates, first): (&Buf, usize), function: GateFunction, x: &mut Buf) {
    for t in 0..n {
        for (x, gate) in x.row_mut(t).iter_mut().zip(&gates.row(t)[first..]) {
            let gate = f64::from(*gate);
            let sigmoid = 1.0 / (1.0 + (-gate).exp());
            let factor = match function {
                GateFunction::Identity => gate,
                GateFunction::Sigmoid => sigmoid,
                GateFunction::Silu => gate * sigmoid,
            };
            *x = (f64::from(*x) * factor) as f32;
        }
    }
}
