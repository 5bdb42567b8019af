//! Arrays that the compiler vectorizes for the build's target. Products and sums are rounded
//! separately, because a fused product would be a library call on machines without the instruction.

use half::f16;

use super::vector::{Conversions, Floats, Integers, Kernel, Lanes, Memory, Simd};

/// Numbers in an array.
#[derive(Clone, Copy)]
pub(super) struct Portable;

/// As many lanes as the registers have that every 64-bit machine offers.
const LANES: usize = 4;

type V = [f32; LANES];
type I = [i32; LANES];

#[inline(always)]
fn zip(a: V, b: V, f: impl Fn(f32, f32) -> f32) -> V {
    std::array::from_fn(|i| f(a[i], b[i]))
}

impl Lanes for Portable {
    type V = V;
    type I = I;
    const LANES: usize = LANES;
}

impl Memory for Portable {
    #[inline(always)]
    unsafe fn load(p: *const f32) -> V {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { p.cast::<V>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> V {
        // SAFETY: the caller guarantees `LANES` elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|b| f16::from_bits(b).to_f32())
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> V {
        // SAFETY: the caller guarantees `LANES` elements.
        let bits = unsafe { p.cast::<[u16; LANES]>().read_unaligned() };
        bits.map(|b| f32::from_bits(u32::from(b) << 16))
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> V {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { p.cast::<[i8; LANES]>().read_unaligned() }.map(f32::from)
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> I {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { p.cast::<I>().read_unaligned() }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> I {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { p.cast::<[u16; LANES]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn widen_i8(p: *const i8) -> I {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { p.cast::<[i8; LANES]>().read_unaligned() }.map(i32::from)
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: V) {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { p.cast::<V>().write_unaligned(v) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: I) {
        // SAFETY: the caller guarantees `LANES` elements.
        unsafe { p.cast::<[i8; LANES]>().write_unaligned(a.map(|x| x as i8)) }
    }
    #[inline(always)]
    unsafe fn prefetch(_p: *const u8) {}
}

impl Floats for Portable {
    #[inline(always)]
    unsafe fn splat(x: f32) -> V {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn add(a: V, b: V) -> V {
        zip(a, b, |a, b| a + b)
    }
    #[inline(always)]
    unsafe fn sub(a: V, b: V) -> V {
        zip(a, b, |a, b| a - b)
    }
    #[inline(always)]
    unsafe fn mul(a: V, b: V) -> V {
        zip(a, b, |a, b| a * b)
    }
    #[inline(always)]
    unsafe fn div(a: V, b: V) -> V {
        zip(a, b, |a, b| a / b)
    }
    #[inline(always)]
    unsafe fn fma(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i] * b[i] + c[i])
    }
    #[inline(always)]
    unsafe fn fma_once(a: V, b: V, c: V) -> V {
        std::array::from_fn(|i| a[i].mul_add(b[i], c[i]))
    }
    #[inline(always)]
    unsafe fn max(a: V, b: V) -> V {
        zip(a, b, |a, b| if a > b { a } else { b })
    }
    #[inline(always)]
    unsafe fn min(a: V, b: V) -> V {
        zip(a, b, |a, b| if a < b { a } else { b })
    }
    #[inline(always)]
    unsafe fn scale(a: V, n: V) -> V {
        zip(a, n, |a, n| a * f32::from_bits(((n as i32 + 127) as u32) << 23))
    }
    #[inline(always)]
    unsafe fn keep_at_least(x: V, bound: V, a: V) -> V {
        std::array::from_fn(|i| if x[i] >= bound[i] { a[i] } else { 0.0 })
    }
    #[inline(always)]
    unsafe fn greatest(v: V) -> f32 {
        v.into_iter().fold(f32::NEG_INFINITY, |a, b| if a > b { a } else { b })
    }
}

impl Integers for Portable {
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> I {
        [x; LANES]
    }
    #[inline(always)]
    unsafe fn add_i(a: I, b: I) -> I {
        std::array::from_fn(|i| a[i].wrapping_add(b[i]))
    }
    #[inline(always)]
    unsafe fn mul_i(a: I, b: I) -> I {
        std::array::from_fn(|i| a[i].wrapping_mul(b[i]))
    }
    #[inline(always)]
    unsafe fn and_i(a: I, b: I) -> I {
        std::array::from_fn(|i| a[i] & b[i])
    }
    #[inline(always)]
    unsafe fn or_i(a: I, b: I) -> I {
        std::array::from_fn(|i| a[i] | b[i])
    }
    #[inline(always)]
    unsafe fn shift_left(a: I, bits: i32) -> I {
        a.map(|x| x << bits)
    }
    #[inline(always)]
    unsafe fn shift_right(a: I, bits: i32) -> I {
        a.map(|x| (x.cast_unsigned() >> bits).cast_signed())
    }
    #[inline(always)]
    unsafe fn low_nibbles(a: I) -> I {
        a.map(|x| x & 0x0f0f_0f0f)
    }
    #[inline(always)]
    unsafe fn high_nibbles(a: I) -> I {
        a.map(|x| x >> 4 & 0x0f0f_0f0f)
    }
}

impl Conversions for Portable {
    #[inline(always)]
    unsafe fn from_bits(a: I) -> V {
        a.map(|x| f32::from_bits(x.cast_unsigned()))
    }
    #[inline(always)]
    unsafe fn to_bits(a: V) -> I {
        a.map(|x| x.to_bits().cast_signed())
    }
    #[inline(always)]
    unsafe fn to_f32(a: I) -> V {
        a.map(|x| x as f32)
    }
    #[inline(always)]
    unsafe fn to_i(a: V) -> I {
        a.map(|x| x.round_ties_even() as i32)
    }
}

impl Simd for Portable {
    const ROWS: usize = 4;
    // Not for speed: so that the layout for dot products is computed with on every machine.
    const HAS_BF16: bool = true;

    #[inline(never)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        // SAFETY: the caller guarantees what the kernel requires.
        unsafe { kernel.run::<Portable>() }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: V, a: I, b: I) -> V {
        let lower = |x: i32| f32::from_bits((x as u32) << 16);
        let upper = |x: i32| f32::from_bits(x as u32 & !0xffff);
        std::array::from_fn(|i| acc[i] + lower(a[i]) * lower(b[i]) + upper(a[i]) * upper(b[i]))
    }
    #[inline(always)]
    unsafe fn dot_u8_i8(acc: I, u: I, s: I) -> I {
        std::array::from_fn(|i| {
            let bytes = u[i].to_le_bytes().into_iter().zip(s[i].to_le_bytes());
            let sum: i32 = bytes.map(|(u, s)| i32::from(u) * i32::from(s as i8)).sum();
            acc[i].wrapping_add(sum)
        })
    }
}
