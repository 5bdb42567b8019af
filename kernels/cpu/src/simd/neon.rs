//! NEON: 32 registers of 4 numbers, with and without dot products of bytes and of bf16.
//!
//! Rust has no stable intrinsics for the dot products, so that each of them is one instruction of
//! assembly. Like intrinsics they are functions with the features that they need, because compilers
//! refuse the instruction in any other, and the inliner moves them into functions that have them.

use std::arch::aarch64::*;
use std::arch::asm;

use super::vector::{Conversions, Floats, Integers, Kernel, Lanes, Memory, Simd};

/// The instruction set as a type: with `sdot` if `DOT`, and also with `usdot`, `bfdot` and `bfcvtn`
/// if `BF16`. Only the functions that enter it use it.
#[derive(Clone, Copy)]
pub(super) struct Neon<const DOT: bool, const BF16: bool>;

/// Runs `kernel` with the basic set, which every 64-bit ARM has.
///
/// # Safety
/// The machine must have the instruction set, and the pointers in the kernel must be valid.
#[target_feature(enable = "neon")]
#[inline(never)]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Neon<false, false>>() }
}

/// Runs `kernel` with dot products of signed bytes.
///
/// # Safety
/// As [`enter`].
#[target_feature(enable = "neon,dotprod")]
#[inline(never)]
pub(super) unsafe fn enter_dot<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Neon<true, false>>() }
}

/// Runs `kernel` with dot products of bytes and of bf16.
///
/// # Safety
/// As [`enter`].
#[target_feature(enable = "neon,dotprod,i8mm,bf16")]
#[inline(never)]
pub(super) unsafe fn enter_bf16<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Neon<true, true>>() }
}

/// Adds to each lane of `sums` the four products of the signed bytes in the same lane of `a` and
/// `b`.
///
/// # Safety
/// The machine must have `dotprod`.
#[target_feature(enable = "neon,dotprod")]
#[inline]
unsafe fn sdot(mut sums: int32x4_t, a: int32x4_t, b: int32x4_t) -> int32x4_t {
    // SAFETY: the instruction only changes the register of the sums.
    unsafe {
        asm!("sdot {sums:v}.4s, {a:v}.16b, {b:v}.16b", sums = inout(vreg) sums, a = in(vreg) a,
             b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// As [`sdot`], with unsigned bytes in `u`.
///
/// # Safety
/// The machine must have `i8mm`.
#[target_feature(enable = "neon,i8mm")]
#[inline]
unsafe fn usdot(mut sums: int32x4_t, u: int32x4_t, s: int32x4_t) -> int32x4_t {
    // SAFETY: the instruction only changes the register of the sums.
    unsafe {
        asm!("usdot {sums:v}.4s, {u:v}.16b, {s:v}.16b", sums = inout(vreg) sums, u = in(vreg) u,
             s = in(vreg) s, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Adds to each lane of `sums` the two products of the bf16 numbers in the same lane of `a` and
/// `b`. Denormal numbers are taken as zeros.
///
/// # Safety
/// The machine must have `bf16`.
#[target_feature(enable = "neon,bf16")]
#[inline]
unsafe fn bfdot(mut sums: float32x4_t, a: int32x4_t, b: int32x4_t) -> float32x4_t {
    // SAFETY: the instruction only changes the register of the sums. It raises no floating-point
    // exceptions.
    unsafe {
        asm!("bfdot {sums:v}.4s, {a:v}.8h, {b:v}.8h", sums = inout(vreg) sums, a = in(vreg) a,
             b = in(vreg) b, options(pure, nomem, nostack, preserves_flags));
    }
    sums
}

/// Returns the nearest bf16 numbers; ties go to the even one.
///
/// # Safety
/// The machine must have `bf16`.
#[target_feature(enable = "neon,bf16")]
#[inline]
unsafe fn bfcvtn(v: float32x4_t) -> uint16x4_t {
    let rounded: uint16x4_t;
    // SAFETY: the instruction changes the register of the result and the floating-point status.
    unsafe {
        asm!("bfcvtn {rounded:v}.4h, {v:v}.4s", rounded = lateout(vreg) rounded, v = in(vreg) v,
             options(pure, nomem, nostack));
    }
    rounded
}

impl<const DOT: bool, const BF16: bool> Lanes for Neon<DOT, BF16> {
    type V = float32x4_t;
    type I = int32x4_t;
    const LANES: usize = 4;
}

// SAFETY of the functions: `Simd` requires the instruction set and valid pointers from its callers.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const DOT: bool, const BF16: bool> Memory for Neon<DOT, BF16> {
    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        unsafe { vld1q_f32(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> float32x4_t {
        unsafe {
            // The half-precision vector types are not stable in Rust. The bits are widened, and a
            // product corrects the exponent.
            let bits = vmovl_u16(vld1_u16(p));
            let magnitude = vandq_u32(bits, vdupq_n_u32(0x7FFF));
            let moved = vreinterpretq_f32_u32(vshlq_n_u32::<13>(magnitude));
            let finite = vreinterpretq_u32_f32(vmulq_f32(moved, vdupq_n_f32(f32::from_bits(0x7780_0000))));
            let special = vcgeq_u32(magnitude, vdupq_n_u32(0x7C00));
            let exponent = vandq_u32(special, vdupq_n_u32(0x7F80_0000));
            let sign = vshlq_n_u32::<16>(vandq_u32(bits, vdupq_n_u32(0x8000)));
            vreinterpretq_f32_u32(vorrq_u32(vorrq_u32(finite, exponent), sign))
        }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshlq_n_u32::<16>(vmovl_u16(vld1_u16(p)))) }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> float32x4_t {
        unsafe {
            let bytes = vcreate_s8(u64::from(p.cast::<u32>().read_unaligned()));
            vcvtq_f32_s32(vmovl_s16(vget_low_s16(vmovl_s8(bytes))))
        }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> int32x4_t {
        unsafe { vld1q_s32(p) }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> int32x4_t {
        unsafe { vreinterpretq_s32_u32(vmovl_u16(vld1_u16(p))) }
    }
    #[inline(always)]
    unsafe fn widen_i8(p: *const i8) -> int32x4_t {
        unsafe {
            let four = vreinterpret_s8_s32(vdup_n_s32(p.cast::<i32>().read_unaligned()));
            vmovl_s16(vget_low_s16(vmovl_s8(four)))
        }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: float32x4_t) {
        unsafe {
            if BF16 {
                return vst1_u16(p, bfcvtn(v));
            }
            let bits = vreinterpretq_u32_f32(v);
            let odd = vandq_u32(vshrq_n_u32::<16>(bits), vdupq_n_u32(1));
            let nearest = vaddq_u32(bits, vaddq_u32(odd, vdupq_n_u32(0x7fff)));
            let quiet = vorrq_u32(bits, vdupq_n_u32(0x40_0000));
            vst1_u16(p, vshrn_n_u32::<16>(vbslq_u32(vceqq_f32(v, v), nearest, quiet)));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: int32x4_t) {
        unsafe {
            let words = vmovn_s32(a);
            let bytes = vmovn_s16(vcombine_s16(words, words));
            p.cast::<i32>().write_unaligned(vget_lane_s32::<0>(vreinterpret_s32_s8(bytes)));
        }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe {
            std::arch::asm!("prfm pldl1keep, [{p}]", p = in(reg) p, options(nostack, preserves_flags, readonly))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const DOT: bool, const BF16: bool> Floats for Neon<DOT, BF16> {
    #[inline(always)]
    unsafe fn splat(x: f32) -> float32x4_t {
        unsafe { vdupq_n_f32(x) }
    }
    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vsubq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmulq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vdivq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }
    #[inline(always)]
    unsafe fn max(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vmaxq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vminq_f32(a, b) }
    }
    #[inline(always)]
    unsafe fn scale(a: float32x4_t, n: float32x4_t) -> float32x4_t {
        unsafe {
            let exponent = vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127));
            vmulq_f32(a, vreinterpretq_f32_s32(vshlq_n_s32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn keep_at_least(x: float32x4_t, bound: float32x4_t, a: float32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vandq_u32(vcgeq_f32(x, bound), vreinterpretq_u32_f32(a))) }
    }
    #[inline(always)]
    unsafe fn greatest(v: float32x4_t) -> f32 {
        unsafe { vmaxvq_f32(v) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const DOT: bool, const BF16: bool> Integers for Neon<DOT, BF16> {
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> int32x4_t {
        unsafe { vdupq_n_s32(x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vaddq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vmulq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn and_i(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn or_i(a: int32x4_t, b: int32x4_t) -> int32x4_t {
        unsafe { vorrq_s32(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_left(a: int32x4_t, bits: i32) -> int32x4_t {
        unsafe { vshlq_s32(a, vdupq_n_s32(bits)) }
    }
    #[inline(always)]
    unsafe fn shift_right(a: int32x4_t, bits: i32) -> int32x4_t {
        unsafe { vreinterpretq_s32_u32(vshlq_u32(vreinterpretq_u32_s32(a), vdupq_n_s32(-bits))) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(a: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(a, vdupq_n_s32(0x0f0f_0f0f)) }
    }
    #[inline(always)]
    unsafe fn high_nibbles(a: int32x4_t) -> int32x4_t {
        unsafe { vandq_s32(vshrq_n_s32::<4>(a), vdupq_n_s32(0x0f0f_0f0f)) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const DOT: bool, const BF16: bool> Conversions for Neon<DOT, BF16> {
    #[inline(always)]
    unsafe fn from_bits(a: int32x4_t) -> float32x4_t {
        unsafe { vreinterpretq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn to_bits(a: float32x4_t) -> int32x4_t {
        unsafe { vreinterpretq_s32_f32(a) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: int32x4_t) -> float32x4_t {
        unsafe { vcvtq_f32_s32(a) }
    }
    #[inline(always)]
    unsafe fn to_i(a: float32x4_t) -> int32x4_t {
        unsafe { vcvtnq_s32_f32(a) }
    }
    #[inline(always)]
    unsafe fn lookup_f32(table: &[f32; 16], at: int32x4_t) -> float32x4_t {
        unsafe {
            // The four bytes of number i are bytes 4i to 4i + 3 of the table.
            let first = vmulq_s32(vandq_s32(at, vdupq_n_s32(15)), vdupq_n_s32(0x0404_0404));
            let bytes = vreinterpretq_u8_s32(vaddq_s32(first, vdupq_n_s32(0x0302_0100)));
            vreinterpretq_f32_u8(vqtbl4q_u8(vld1q_u8_x4(table.as_ptr().cast()), bytes))
        }
    }
    #[inline(always)]
    unsafe fn lookup_u16(table: &[u16; 16], at: int32x4_t) -> int32x4_t {
        unsafe {
            let at = vandq_s16(vreinterpretq_s16_s32(at), vdupq_n_s16(15));
            let bytes = vaddq_s16(vmulq_n_s16(at, 0x0202), vdupq_n_s16(0x0100));
            let table = vld1q_u8_x2(table.as_ptr().cast());
            vreinterpretq_s32_u8(vqtbl2q_u8(table, vreinterpretq_u8_s16(bytes)))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const DOT: bool, const BF16: bool> Simd for Neon<DOT, BF16> {
    const ROWS: usize = 12;
    const HAS_BF16: bool = BF16;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe {
            match const { (DOT && K::USES.has_vnni(), BF16 && K::USES.has_vnni()) } {
                (_, true) => enter_bf16(kernel),
                (true, false) => enter_dot(kernel),
                (false, false) => enter(kernel),
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: float32x4_t, a: int32x4_t, b: int32x4_t) -> float32x4_t {
        unsafe {
            if BF16 {
                return bfdot(acc, a, b);
            }
            let upper = |v| vreinterpretq_f32_s32(vandq_s32(v, vdupq_n_s32(!0xffff)));
            let lower = |v| vreinterpretq_f32_s32(vshlq_n_s32::<16>(v));
            let acc = vfmaq_f32(acc, lower(a), lower(b));
            vfmaq_f32(acc, upper(a), upper(b))
        }
    }
    #[inline(always)]
    unsafe fn dot_u8_i8(acc: int32x4_t, u: int32x4_t, s: int32x4_t) -> int32x4_t {
        unsafe {
            if BF16 {
                return usdot(acc, u, s);
            }
            if DOT {
                // `(u - 128) * s` has signed factors. The other part, `128 * s`, is subtracted with
                // the opposite sign, because 128 is not a signed byte.
                let signed = veorq_s32(u, vdupq_n_s32(i32::from_ne_bytes([0x80; 4])));
                let other = sdot(vdupq_n_s32(0), vdupq_n_s32(i32::from_ne_bytes([0x80; 4])), s);
                return vsubq_s32(sdot(acc, signed, s), other);
            }
            let (u, s) = (vreinterpretq_u8_s32(u), vreinterpretq_s8_s32(s));
            let unsigned = |bytes| vreinterpretq_s16_u16(vmovl_u8(bytes));
            let (ul, uh) = (unsigned(vget_low_u8(u)), unsigned(vget_high_u8(u)));
            let (sl, sh) = (vmovl_s8(vget_low_s8(s)), vmovl_s8(vget_high_s8(s)));
            let product = |a, b| {
                let (low, high) = (vmull_s16(vget_low_s16(a), vget_low_s16(b)), vmull_high_s16(a, b));
                vpaddq_s32(low, high)
            };
            vaddq_s32(acc, vpaddq_s32(product(ul, sl), product(uh, sh)))
        }
    }
}
