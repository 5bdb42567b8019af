//! Elementwise operations on single rows: activation, sum, scaling and soft cap.

use millrace_backend::{Activation, GateFunction, Gating, Xielu};

use super::exp::exp;
use super::simd::{Extension, Kernel, Simd};

/// `out = gating(gate, up)`, where `x` holds the gate features, then the up features.
pub(super) struct Gate<'a> {
    pub(super) gating: Gating,
    pub(super) x: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for Gate<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let len = self.out.len();
        assert_eq!(self.x.len(), 2 * len, "features of a gated row");
        let (gate, up) = self.x.split_at(len);
        // SAFETY: all three slices have `len` numbers.
        unsafe { zip::<S>(gate.as_ptr(), up.as_ptr(), self.out.as_mut_ptr(), len, self.gating) }
    }
}

/// `x = act(x)`.
pub(super) struct Activate<'a> {
    pub(super) act: Activation,
    pub(super) x: &'a mut [f32],
}

impl Kernel for Activate<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { map::<S>(self.x, self.act) }
    }
}

/// `x *= function(gates)`.
pub(super) struct MultiplyGates<'a> {
    pub(super) function: GateFunction,
    pub(super) gates: &'a [f32],
    pub(super) x: &'a mut [f32],
}

impl Kernel for MultiplyGates<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        let (len, x) = (self.x.len(), self.x.as_mut_ptr());
        assert_eq!(self.gates.len(), len, "gates of a row");
        // SAFETY: the caller guarantees the instruction set, and both slices have `len` numbers.
        unsafe { zip::<S>(self.gates.as_ptr(), x, x, len, self.function) }
    }
}

/// `x = cap * tanh(x / cap)`.
pub(super) struct SoftCap<'a> {
    pub(super) cap: f32,
    pub(super) x: &'a mut [f32],
}

impl Kernel for SoftCap<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { map::<S>(self.x, Cap(self.cap)) }
    }
}

/// `out += x`.
pub(super) struct Add<'a> {
    pub(super) x: &'a [f32],
    pub(super) out: &'a mut [f32],
}

impl Kernel for Add<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        self.out.iter_mut().zip(self.x).for_each(|(out, x)| *out += x);
    }
}

/// `x *= factor`.
pub(super) struct Scale<'a> {
    pub(super) factor: f32,
    pub(super) x: &'a mut [f32],
}

impl Kernel for Scale<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        self.x.iter_mut().for_each(|x| *x *= self.factor);
    }
}

/// `x = min(max(x, -bound), bound)`
pub(super) struct Clamp<'a> {
    pub(super) bound: f32,
    pub(super) x: &'a mut [f32],
}

impl Kernel for Clamp<'_> {
    const USES: Extension = Extension::None;
    type Output = ();

    #[inline(always)]
    unsafe fn run<S: Simd>(self) {
        self.x.iter_mut().for_each(|x| *x = x.clamp(-self.bound, self.bound));
    }
}

/// Returns `cap * tanh(x / cap)`.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
pub(super) unsafe fn soft_cap<S: Simd>(cap: f32, x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe { S::mul(S::splat(cap), tanh::<S>(S::mul(x, S::splat(1.0 / cap)))) }
}

#[inline(always)]
unsafe fn activate<S: Simd>(act: Activation, x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        match act {
            Activation::Silu => S::mul(x, sigmoid::<S>(x)),
            Activation::Gelu => S::mul(x, normal::<S>(x)),
            Activation::GeluTanh => {
                // 0.5 (1 + tanh(u)) = sigmoid(2u), where u = sqrt(2 / π) (x + 0.044715 x³).
                let cube = S::mul(S::mul(x, x), x);
                let inner = S::fma(S::splat(0.044_715), cube, x);
                S::mul(x, sigmoid::<S>(S::mul(S::splat(1.595_769), inner)))
            }
            Activation::Relu => S::max(x, S::splat(0.0)),
            Activation::ReluSquared => {
                let x = S::max(x, S::splat(0.0));
                S::mul(x, x)
            }
            Activation::Xielu(numbers) => xielu::<S>(numbers, x),
        }
    }
}

#[inline(always)]
unsafe fn xielu<S: Simd>(numbers: Xielu, x: S::V) -> S::V {
    let Xielu { positive, negative, linear, limit } = numbers;
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let zero = S::splat(0.0);
        let above = S::max(x, zero);
        let power = S::sub(exp::<S>(S::min(x, S::splat(limit))), S::splat(1.0));
        let below = S::keep_at_least(S::sub(zero, x), zero, S::sub(power, x));
        let curve = S::fma(S::mul(S::splat(positive), above), above, S::mul(S::splat(negative), below));
        S::fma(S::splat(linear), x, curve)
    }
}

/// Returns the product of [`Gating::Clamped`].
#[inline(always)]
unsafe fn clamped<S: Simd>(alpha: f32, limit: f32, gate: S::V, up: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let limits = (S::splat(-limit), S::splat(limit));
        // Instructions that prefer one of their operands if there is a NaN prefer the second.
        let (gate, up) = (S::min(limits.1, gate), S::min(limits.1, S::max(limits.0, up)));
        let factor = sigmoid::<S>(S::mul(S::splat(alpha), gate));
        S::mul(S::mul(gate, factor), S::add(up, S::splat(1.0)))
    }
}

/// `1 / (1 + e^-x)`.
#[inline(always)]
unsafe fn sigmoid<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let one = S::splat(1.0);
        S::div(one, S::add(one, exp::<S>(S::sub(S::splat(0.0), x))))
    }
}

/// `tanh(x) = 1 - 2 / (1 + e^2x)`. The error is below 2e-7, not relative to small results.
#[inline(always)]
unsafe fn tanh<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let one = S::splat(1.0);
        let double = S::add(x, x);
        S::sub(one, S::div(S::splat(2.0), S::add(one, exp::<S>(double))))
    }
}

/// The distribution function of the normal distribution, `0.5 * (1 + erf(x / sqrt(2)))`.
///
/// The error function is that of Abramowitz and Stegun, formula 7.1.26, whose error is below
/// 1.5e-7.
#[inline(always)]
unsafe fn normal<S: Simd>(x: S::V) -> S::V {
    // SAFETY: the caller guarantees the instruction set.
    unsafe {
        let (zero, one) = (S::splat(0.0), S::splat(1.0));
        let z = S::mul(x, S::splat(std::f32::consts::FRAC_1_SQRT_2));
        let size = S::max(z, S::sub(zero, z));
        let t = S::div(one, S::fma(S::splat(0.327_591_1), size, one));
        let mut p = S::splat(1.061_405_4);
        for c in [-1.453_152, 1.421_413_7, -0.284_496_74, 0.254_829_6] {
            p = S::fma(p, t, S::splat(c));
        }
        // Half of what the error function of |z| lacks to 1.
        let tail = S::mul(S::mul(S::mul(S::splat(0.5), p), t), exp::<S>(S::sub(zero, S::mul(z, z))));
        // `tail` for negative x, `1 - tail` for others.
        let positive = S::keep_at_least(x, zero, one);
        S::fma(tail, S::sub(one, S::add(positive, positive)), positive)
    }
}

/// A function of one number.
///
/// This is a trait because nothing forces the compiler to put a closure into the loop that calls
/// it. A closure that becomes a function of its own has no vector instructions: each operation in
/// it is a call.
trait OfOne: Copy {
    /// Returns the function of each lane.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn of<S: Simd>(self, x: S::V) -> S::V;
}

/// A function of two numbers. See [`OfOne`].
trait OfTwo: Copy {
    /// Returns the function of each pair of lanes.
    ///
    /// # Safety
    /// The machine has the instruction set.
    unsafe fn of<S: Simd>(self, a: S::V, b: S::V) -> S::V;
}

impl OfOne for Activation {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { activate::<S>(self, x) }
    }
}

/// [`soft_cap`] with this cap.
#[derive(Clone, Copy)]
struct Cap(f32);

impl OfOne for Cap {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe { soft_cap::<S>(self.0, x) }
    }
}

impl OfTwo for Gating {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, gate: S::V, up: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            match self {
                Gating::Product(act) => S::mul(activate::<S>(act, gate), up),
                Gating::Clamped { alpha, limit } => clamped::<S>(alpha, limit, gate, up),
            }
        }
    }
}

impl OfTwo for GateFunction {
    #[inline(always)]
    unsafe fn of<S: Simd>(self, gate: S::V, x: S::V) -> S::V {
        // SAFETY: the caller guarantees the instruction set.
        unsafe {
            match self {
                GateFunction::Identity => S::mul(gate, x),
                GateFunction::Sigmoid => S::mul(sigmoid::<S>(gate), x),
                GateFunction::Silu => S::mul(S::mul(gate, sigmoid::<S>(gate)), x),
            }
        }
    }
}

/// Replaces every number of `x` by `f` of it.
///
/// # Safety
/// The machine has the instruction set.
#[inline(always)]
unsafe fn map<S: Simd>(x: &mut [f32], f: impl OfOne) {
    let whole = x.len() - x.len() % S::LANES;
    // SAFETY: all vectors are inside the slice.
    unsafe {
        for i in (0..whole).step_by(S::LANES) {
            let at = x.as_mut_ptr().add(i);
            S::store(at, f.of::<S>(S::load(at)));
        }
        if whole < x.len() {
            let (at, rest) = (x.as_mut_ptr().add(whole), x.len() - whole);
            S::store_first(at, f.of::<S>(S::load_first(at, rest)), rest);
        }
    }
}

/// Writes `f` of the `len` numbers at `a` and at `b` to `out`, which may be `a` or `b`.
///
/// # Safety
/// The machine has the instruction set, and each pointer has `len` numbers.
#[inline(always)]
unsafe fn zip<S: Simd>(a: *const f32, b: *const f32, out: *mut f32, len: usize, f: impl OfTwo) {
    let whole = len - len % S::LANES;
    // SAFETY: the caller guarantees that all vectors are inside the rows.
    unsafe {
        for i in (0..whole).step_by(S::LANES) {
            S::store(out.add(i), f.of::<S>(S::load(a.add(i)), S::load(b.add(i))));
        }
        if whole < len {
            let rest = len - whole;
            let y = f.of::<S>(S::load_first(a.add(whole), rest), S::load_first(b.add(whole), rest));
            S::store_first(out.add(whole), y, rest);
        }
    }
}
