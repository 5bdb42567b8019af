//! AVX2 with FMA and F16C: 16 registers of 8 numbers, with and without AVX-VNNI.

use std::arch::x86_64::*;

use super::vector::{Conversions, Floats, Integers, Kernel, Lanes, Memory, Simd};

/// The instruction set as a type, with AVX-VNNI if the machine has it. Only the functions that
/// enter it use it.
#[derive(Clone, Copy)]
pub(super) struct Avx2<const VNNI: bool>;

/// Runs `kernel` with AVX2.
///
/// # Safety
/// The machine must have the instruction set, and the pointers in the kernel must be valid.
#[target_feature(enable = "avx2,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Avx2<false>>() }
}

/// Runs `kernel` with AVX2 and AVX-VNNI.
///
/// # Safety
/// As [`enter`].
#[target_feature(enable = "avx2,avxvnni,fma,f16c")]
#[inline(never)]
pub(super) unsafe fn enter_vnni<K: Kernel>(kernel: K) -> K::Output {
    // SAFETY: the caller guarantees what `Kernel::run` requires.
    unsafe { kernel.run::<Avx2<true>>() }
}

impl<const VNNI: bool> Lanes for Avx2<VNNI> {
    type V = __m256;
    type I = __m256i;
    const LANES: usize = 8;
}

// SAFETY of the functions: `Simd` requires the instruction set and valid pointers from its callers.
#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool> Memory for Avx2<VNNI> {
    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }
    #[inline(always)]
    unsafe fn load_f16(p: *const u16) -> __m256 {
        unsafe { _mm256_cvtph_ps(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn load_bf16(p: *const u16) -> __m256 {
        unsafe {
            _mm256_castsi256_ps(_mm256_slli_epi32::<16>(_mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast()))))
        }
    }
    #[inline(always)]
    unsafe fn load_i8(p: *const i8) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast()))) }
    }
    #[inline(always)]
    unsafe fn load_i(p: *const i32) -> __m256i {
        unsafe { _mm256_loadu_si256(p.cast()) }
    }
    #[inline(always)]
    unsafe fn load_u16(p: *const u16) -> __m256i {
        unsafe { _mm256_cvtepu16_epi32(_mm_loadu_si128(p.cast())) }
    }
    #[inline(always)]
    unsafe fn widen_i8(p: *const i8) -> __m256i {
        unsafe { _mm256_cvtepi8_epi32(_mm_loadl_epi64(p.cast())) }
    }
    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }
    #[inline(always)]
    unsafe fn store_i8(p: *mut i8, a: __m256i) {
        unsafe {
            let words = _mm_packs_epi32(_mm256_castsi256_si128(a), _mm256_extracti128_si256::<1>(a));
            _mm_storel_epi64(p.cast(), _mm_packs_epi16(words, words));
        }
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
impl<const VNNI: bool> Floats for Avx2<VNNI> {
    #[inline(always)]
    unsafe fn splat(x: f32) -> __m256 {
        unsafe { _mm256_set1_ps(x) }
    }
    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn sub(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_sub_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn mul(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_mul_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn div(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_div_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }
    #[inline(always)]
    unsafe fn max(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_max_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn min(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_min_ps(a, b) }
    }
    #[inline(always)]
    unsafe fn scale(a: __m256, n: __m256) -> __m256 {
        unsafe {
            let exponent = _mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127));
            _mm256_mul_ps(a, _mm256_castsi256_ps(_mm256_slli_epi32::<23>(exponent)))
        }
    }
    #[inline(always)]
    unsafe fn keep_at_least(x: __m256, bound: __m256, a: __m256) -> __m256 {
        unsafe { _mm256_and_ps(_mm256_cmp_ps::<_CMP_GE_OQ>(x, bound), a) }
    }
    #[inline(always)]
    unsafe fn greatest(v: __m256) -> f32 {
        unsafe {
            let four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v));
            let two = _mm_max_ps(four, _mm_movehl_ps(four, four));
            _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool> Integers for Avx2<VNNI> {
    #[inline(always)]
    unsafe fn splat_i(x: i32) -> __m256i {
        unsafe { _mm256_set1_epi32(x) }
    }
    #[inline(always)]
    unsafe fn add_i(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_add_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn mul_i(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_mullo_epi32(a, b) }
    }
    #[inline(always)]
    unsafe fn and_i(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn or_i(a: __m256i, b: __m256i) -> __m256i {
        unsafe { _mm256_or_si256(a, b) }
    }
    #[inline(always)]
    unsafe fn shift_left(a: __m256i, bits: i32) -> __m256i {
        unsafe { _mm256_sllv_epi32(a, _mm256_set1_epi32(bits)) }
    }
    #[inline(always)]
    unsafe fn shift_right(a: __m256i, bits: i32) -> __m256i {
        unsafe { _mm256_srlv_epi32(a, _mm256_set1_epi32(bits)) }
    }
    #[inline(always)]
    unsafe fn low_nibbles(a: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(a, _mm256_set1_epi8(0x0f)) }
    }
    #[inline(always)]
    unsafe fn high_nibbles(a: __m256i) -> __m256i {
        unsafe { _mm256_and_si256(_mm256_srli_epi32::<4>(a), _mm256_set1_epi8(0x0f)) }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool> Conversions for Avx2<VNNI> {
    #[inline(always)]
    unsafe fn from_bits(a: __m256i) -> __m256 {
        unsafe { _mm256_castsi256_ps(a) }
    }
    #[inline(always)]
    unsafe fn to_bits(a: __m256) -> __m256i {
        unsafe { _mm256_castps_si256(a) }
    }
    #[inline(always)]
    unsafe fn to_f32(a: __m256i) -> __m256 {
        unsafe { _mm256_cvtepi32_ps(a) }
    }
    #[inline(always)]
    unsafe fn to_i(a: __m256) -> __m256i {
        unsafe { _mm256_cvtps_epi32(a) }
    }
    #[inline(always)]
    unsafe fn lookup_f32(table: &[f32; 16], at: __m256i) -> __m256 {
        unsafe {
            // The instruction reads three bits. The fourth one becomes the sign, which chooses.
            let low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr()), at);
            let high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table.as_ptr().add(8)), at);
            _mm256_blendv_ps(low, high, _mm256_castsi256_ps(_mm256_slli_epi32::<28>(at)))
        }
    }
}

#[allow(clippy::undocumented_unsafe_blocks, reason = "every block has the safety conditions of the trait")]
impl<const VNNI: bool> Simd for Avx2<VNNI> {
    const ROWS: usize = 6;
    const HAS_BF16: bool = false;

    #[inline(always)]
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output {
        unsafe { if const { VNNI && K::USES.has_vnni() } { enter_vnni(kernel) } else { enter(kernel) } }
    }
    #[inline(always)]
    unsafe fn dot_bf16(acc: __m256, a: __m256i, b: __m256i) -> __m256 {
        unsafe {
            let upper = |v| _mm256_castsi256_ps(_mm256_and_si256(v, _mm256_set1_epi32(!0xffff)));
            let lower = |v| _mm256_castsi256_ps(_mm256_slli_epi32::<16>(v));
            let acc = _mm256_fmadd_ps(lower(a), lower(b), acc);
            _mm256_fmadd_ps(upper(a), upper(b), acc)
        }
    }
    #[inline(always)]
    unsafe fn dot_u8_i8(acc: __m256i, u: __m256i, s: __m256i) -> __m256i {
        unsafe {
            if VNNI {
                return _mm256_dpbusd_avx_epi32(acc, u, s);
            }
            // Bytes at even and odd places become 16-bit numbers, whose products cannot overflow.
            let even_u = _mm256_and_si256(u, _mm256_set1_epi16(0xff));
            let even_s = _mm256_srai_epi16::<8>(_mm256_slli_epi16::<8>(s));
            let even = _mm256_madd_epi16(even_u, even_s);
            let odd = _mm256_madd_epi16(_mm256_srli_epi16::<8>(u), _mm256_srai_epi16::<8>(s));
            _mm256_add_epi32(acc, _mm256_add_epi32(even, odd))
        }
    }
}
