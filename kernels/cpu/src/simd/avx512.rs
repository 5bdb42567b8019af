//! AVX-512: 32 registers of 16 numbers, with and without the instructions for dot products.

use std::arch::x86_64::*;

use super::vector::{Conversions, Floats, Integers, Kernel, Lanes, Memory, Simd};

/// The instruction set as a type, with VNNI and with BF16 if the machine has them. Only the
/// functions that enter it use it.
#[derive(Clone, Copy)]
pub(super) struct Avx512<const VNNI: bool, const BF16: bool>;

/// Runs `kernel` with AVX-512.
///
/// # Safety
/// The machine must have the instruction set, and the pointers in the kernel must be valid.
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Avx512<false, false>>() }
}

/// Runs `kernel` with AVX-512 and VNNI.
///
/// # Safety
/// As [`enter`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter_vnni<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Avx512<true, false>>() }
}

/// Runs `kernel` with AVX-512, VNNI and BF16.
///
/// # Safety
/// As [`enter`].
#[target_feature(enable = "avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512bf16,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter_bf16<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Avx512<true, true>>() }
}

impl<const VNNI: bool, const BF16: bool> Lanes for Avx512<VNNI, BF16> {
    type V = __m512;
    type I = __m512i;
    const LANES: usize = 16;
}

// SAFETY of the functions: `Simd` requires the instruction set and valid pointers from its callers.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool, const BF16: bool> Memory for Avx512<VNNI, BF16> {
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m512 {
        unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m512 {
        unsafe {
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(_mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()))))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> __m512i {
        unsafe { _mm512_loadu_si512(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> __m512i {
        unsafe { _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast())) }
    }
    #[inline(always)]
    unsafe fn widen_i8(p: *const i8) -> __m512i {
        unsafe { _mm512_cvtepi8_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: __m512) {
        unsafe {
            if BF16 {
                let rounded = std::mem::transmute::<__m256bh, __m256i>(_mm512_cvtneps_pbh(v));
                return _mm256_storeu_si256(p.cast(), rounded);
            }
            let bits = _mm512_castps_si512(v);
            let odd = _mm512_and_si512(_mm512_srli_epi32::<16>(bits), _mm512_set1_epi32(1));
            let half = _mm512_add_epi32(odd, _mm512_set1_epi32(0x7fff));
            let nan = _mm512_cmp_ps_mask::<_CMP_UNORD_Q>(v, v);
            let quiet = _mm512_or_si512(bits, _mm512_set1_epi32(0x40_0000));
            let nearest = _mm512_mask_blend_epi32(nan, _mm512_add_epi32(bits, half), quiet);
            _mm256_storeu_si256(p.cast(), _mm512_cvtepi32_epi16(_mm512_srli_epi32::<16>(nearest)));
        }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: __m512i) {
        unsafe { _mm_storeu_si128(p.cast(), _mm512_cvtepi32_epi8(a)) }
    }
    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
    #[inline(always)]
    unsafe fn prefetch_later(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T1>(p.cast()) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool, const BF16: bool> Floats for Avx512<VNNI, BF16> {
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m512 {
        unsafe { _mm512_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn scale(a: __m512, n: __m512) -> __m512 {
        unsafe { _mm512_scalef_ps(a, n) }
    }
    #[inline(always)]
    unsafe fn keep_at_least(x: __m512, bound: __m512, a: __m512) -> __m512 {
        unsafe { _mm512_maskz_mov_ps(_mm512_cmp_ps_mask::<_CMP_GE_OQ>(x, bound), a) }
    }
    #[inline(always)]
    unsafe fn greatest(v: __m512) -> f32 {
        unsafe { _mm512_reduce_max_ps(v) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool, const BF16: bool> Integers for Avx512<VNNI, BF16> {
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> __m512i {
        unsafe { _mm512_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_mullo_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn and_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn or_i(a: __m512i, b: __m512i) -> __m512i {
        unsafe { _mm512_or_si512(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_left(a: __m512i, bits: i32) -> __m512i {
        unsafe { _mm512_sllv_epi32(a, _mm512_set1_epi32(bits)) }
    }
    #[inline(always)]
    unsafe fn shift_right(a: __m512i, bits: i32) -> __m512i {
        unsafe { _mm512_srlv_epi32(a, _mm512_set1_epi32(bits)) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(a: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(a, _mm512_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    unsafe fn high_nibbles(a: __m512i) -> __m512i {
        unsafe { _mm512_and_si512(_mm512_srli_epi32::<4>(a), _mm512_set1_epi8(0x0f)) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool, const BF16: bool> Conversions for Avx512<VNNI, BF16> {
    #[inline(always)]
    unsafe fn from_bits(a: __m512i) -> __m512 {
        unsafe { _mm512_castsi512_ps(a) }
    }
    #[inline(always)]
    unsafe fn to_bits(a: __m512) -> __m512i {
        unsafe { _mm512_castps_si512(a) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: __m512i) -> __m512 {
        unsafe { _mm512_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn to_i(a: __m512) -> __m512i {
        unsafe { _mm512_cvtps_epi32(a) }
    }
    #[inline(always)]
    unsafe fn lookup_f32(table: &[f32; 16], at: __m512i) -> __m512 {
        unsafe { _mm512_permutexvar_ps(at, _mm512_loadu_ps(table.as_ptr())) }
    }
    #[inline(always)]
    unsafe fn lookup_u16(table: &[u16; 16], at: __m512i) -> __m512i {
        unsafe {
            // The instruction reads five bits.
            let twice = _mm512_broadcast_i64x4(_mm256_loadu_si256(table.as_ptr().cast()));
            _mm512_permutexvar_epi16(at, twice)
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool, const BF16: bool> Simd for Avx512<VNNI, BF16> {
    const ROWS: usize = 12;
    const HAS_BF16: bool = BF16;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe {
            if const { BF16 && K::USES.has_bf16() } {
                enter_bf16(kernel)
            } else if const { VNNI && K::USES.has_vnni() } {
                enter_vnni(kernel)
            } else {
                enter(kernel)
            }
        }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: __m512, a: __m512i, b: __m512i) -> __m512 {
        unsafe {
            if BF16 {
                return _mm512_dpbf16_ps(
                    acc,
                    std::mem::transmute::<__m512i, __m512bh>(a),
                    std::mem::transmute::<__m512i, __m512bh>(b),
                );
            }
            let upper = |v| _mm512_castsi512_ps(_mm512_and_si512(v, _mm512_set1_epi32(!0xffff)));
            let lower = |v| _mm512_castsi512_ps(_mm512_slli_epi32::<16>(v));
            let acc = _mm512_fmadd_ps(lower(a), lower(b), acc);
            _mm512_fmadd_ps(upper(a), upper(b), acc)
        }
    }
    #[inline(always)]
    unsafe fn dot_u8_i8(acc: __m512i, u: __m512i, s: __m512i) -> __m512i {
        unsafe {
            if VNNI {
                return _mm512_dpbusd_epi32(acc, u, s);
            }
            // Bytes at even and odd places become 16-bit numbers, whose products cannot overflow.
            let even_u = _mm512_and_si512(u, _mm512_set1_epi16(0xff));
            let even_s = _mm512_srai_epi16::<8>(_mm512_slli_epi16::<8>(s));
            let even = _mm512_madd_epi16(even_u, even_s);
            let odd = _mm512_madd_epi16(_mm512_srli_epi16::<8>(u), _mm512_srai_epi16::<8>(s));
            _mm512_add_epi32(acc, _mm512_add_epi32(even, odd))
        }
    }
}
