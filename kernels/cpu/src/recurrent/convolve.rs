//! The convolution of a recurrent layer.

use std::ops::Range;

use millrace_backend::Convolution;

use super::super::memory::Shared;
use super::super::queue::Row;
use super::super::rows::Activate;
use super::super::simd::{Extension, Kernel, Simd};

/// Channels of a task: enough that a row of inputs is read as a stream.
pub(super) const CHANNELS: usize = 512;

/// Tokens of a task.
pub(super) const TOKENS: usize = 32;

/// The inputs of some channels of a row of the step.
#[derive(Clone, Copy)]
pub(super) struct Inputs<'a> {
    pub(super) row: &'a Row,
    /// The first channel.
    pub(super) first: usize,
    /// Number of channels, at most [`CHANNELS`].
    pub(super) len: usize,
    /// The rows of the step, of `cols` columns each.
    pub(super) x: &'a [f32],
    pub(super) cols: usize,
    pub(super) convolution: &'a Convolution<'a, Vec<f32>>,
    pub(super) channels: usize,
    pub(super) taps: usize,
    /// The window of the row's slot, `[taps - 1, channels]`, oldest token first.
    pub(super) window: Shared<f32>,
}

impl Inputs<'_> {
    /// Returns up to a vector of inputs, from channel `at` of the task's on. `index` counts from
    /// the first token of the window, which the row's tokens follow.
    ///
    /// # Safety
    /// The machine has the instruction set, the token and the channel exist, and nobody writes to
    /// the window.
    #[inline(always)]
    unsafe fn load<S: Simd>(&self, index: usize, at: usize) -> S::V {
        let (channel, rest) = (self.first + at, self.len - at);
        // SAFETY: the window and the row have all channels, and with gates the row has three times
        // as many.
        unsafe {
            let Some(token) = index.checked_sub(self.taps - 1) else {
                // A sequence begins without inputs.
                return match self.row.start {
                    0 => S::splat(0.0),
                    _ => S::load_up_to(self.window.from(index * self.channels + channel).as_ptr(), rest),
                };
            };
            let x = self.x[(self.row.token + token) * self.cols..][..self.cols].as_ptr().add(channel);
            if !self.convolution.gated {
                return S::load_up_to(x, rest);
            }
            let inner = S::load_up_to(x.add(self.channels), rest);
            S::mul(inner, S::load_up_to(x.add(2 * self.channels), rest))
        }
    }

    /// Returns up to a vector of the sums of a token of the row.
    ///
    /// # Safety
    /// As [`Inputs::load`].
    #[inline(always)]
    unsafe fn sums<S: Simd>(&self, token: usize, at: usize) -> S::V {
        let (channel, rest) = (self.first + at, self.len - at);
        // SAFETY: weights and biases have all channels.
        unsafe {
            let mut sums = match self.convolution.bias {
                Some(bias) => S::load_up_to(bias.as_ptr().add(channel), rest),
                None => S::splat(0.0),
            };
            for tap in 0..self.taps {
                let weights = self.convolution.weight.as_ptr().add(tap * self.channels + channel);
                sums = S::fma(S::load_up_to(weights, rest), self.load::<S>(token + tap, at), sums);
            }
            sums
        }
    }
}

/// The convolution of some channels for some tokens of a row.
pub(super) struct Convolve<'a> {
    pub(super) inputs: Inputs<'a>,
    /// The tokens, counted from the row's first one.
    pub(super) tokens: Range<usize>,
    /// `[tokens, channels]`
    pub(super) out: Shared<f32>,
}

impl Kernel for Convolve<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let Convolve { inputs, tokens, out } = self;
        let Inputs { row, first, len, convolution, channels, .. } = inputs;
        for token in tokens {
            // SAFETY: only this task writes these channels of these tokens.
            let out = unsafe { out.slice((row.token + token) * channels + first, len) };
            for at in (0..len).step_by(S::LANES) {
                // SAFETY: the caller guarantees the instruction set, and the channels exist. The
                // window moves later.
                unsafe { S::store_up_to(out.as_mut_ptr().add(at), inputs.sums::<S>(token, at), len - at) };
            }
            if let Some(act) = convolution.act {
                // SAFETY: the caller guarantees the instruction set.
                unsafe { Activate { act, x: &mut *out }.run::<S>() };
            }
            if convolution.gated {
                let gates = &inputs.x[(row.token + token) * inputs.cols + first..][..len];
                out.iter_mut().zip(gates).for_each(|(out, gate)| *out *= gate);
            }
        }
    }
}

/// Moves some channels of a row's window to the last tokens of the row, after the convolution.
pub(super) struct MoveWindow<'a>(pub(super) Inputs<'a>);

impl Kernel for MoveWindow<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let MoveWindow(inputs) = self;
        // Rows of the window are overwritten in the order in which they are no longer read.
        for index in 0..inputs.taps - 1 {
            for at in (0..inputs.len).step_by(S::LANES) {
                let to = inputs.window.from(index * inputs.channels + inputs.first + at).as_ptr();
                // SAFETY: the caller guarantees the instruction set. Only this task uses these
                // channels of the window.
                unsafe {
                    let moved = inputs.load::<S>(index + inputs.row.count, at);
                    S::store_up_to(to, moved, inputs.len - at);
                }
            }
        }
    }
}
