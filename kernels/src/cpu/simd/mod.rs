//! Vectors of single-precision numbers, one implementation per instruction set, and the choice among them at run time.
//!
//! A [`Kernel`] is written once over [`Simd`] and compiled once per instruction set: [`Target::dispatch`] enters a function
//! that carries the `target_feature` attributes, and everything under it is inlined into that function.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;

use half::{bf16, f16};

use crate::{Error, Result};

/// An instruction set that the CPU backend has kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// 64-bit ARM.
    Neon,
    /// Any machine.
    Portable,
}

impl Isa {
    /// What this machine has, fastest first; never empty.
    pub fn available() -> Vec<Isa> {
        [Isa::Avx512, Isa::Avx2, Isa::Neon, Isa::Portable]
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// The name shown to people.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Avx512 => "avx512",
            Isa::Avx2 => "avx2",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        }
    }

    fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Isa::Portable => true,
            #[allow(unreachable_patterns, reason = "which sets are left depends on the architecture")]
            _ => false,
        }
    }
}

/// An instruction set that this machine was found to have.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target(Isa);

impl Target {
    /// The set asked for, or the fastest.
    pub(super) fn new(isa: Option<Isa>) -> Result<Target> {
        let available = Isa::available();
        match isa {
            None => Ok(Target(available[0])), // never empty: the portable set is always there
            Some(isa) if available.contains(&isa) => Ok(Target(isa)),
            Some(isa) => Err(Error::Unsupported(format!("this machine has no {}", isa.name()))),
        }
    }

    pub(super) fn isa(self) -> Isa {
        self.0
    }

    /// Runs `kernel` with this instruction set.
    pub(super) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `new` found the instruction set on this machine; what else a kernel asks for, its maker has promised.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => avx512::enter(kernel),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => avx2::enter(kernel),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => neon::enter(kernel),
                _ => kernel.run::<portable::Portable>(),
            }
        }
    }

    /// Rows of the highest tile of the matrix product.
    pub(super) fn tile_rows(self) -> usize {
        struct Rows;
        impl Kernel for Rows {
            type Output = usize;
            unsafe fn run<S: Simd>(self) -> usize {
                S::ROWS
            }
        }
        self.dispatch(Rows)
    }

    /// Outputs in one panel of a packed matrix.
    pub(super) fn panel_width(self) -> usize {
        struct Width;
        impl Kernel for Width {
            type Output = usize;
            unsafe fn run<S: Simd>(self) -> usize {
                2 * S::LANES
            }
        }
        self.dispatch(Width)
    }
}

/// Work that is compiled for every instruction set.
pub(super) trait Kernel {
    /// What it returns.
    type Output;
    /// Does the work. Implementations are `#[inline(always)]` wherever speed matters.
    ///
    /// # Safety
    /// The machine must have the instruction set `S`, and the pointers that the kernel was made of must be valid.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// Vectors of [`Simd::LANES`] single-precision numbers.
///
/// # Safety
/// All functions require the instruction set on the machine, and pointers valid for `LANES` elements; they need no alignment.
#[allow(clippy::missing_safety_doc, reason = "said once for all functions")]
pub(super) trait Simd: Copy + 'static {
    /// A vector.
    type V: Copy;
    /// Numbers in a vector: a power of two, at most 16.
    const LANES: usize;
    /// Rows of the highest tile of the matrix product, as many as the registers hold with two vectors for each.
    const ROWS: usize;

    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * 2^n` for integral n in -126..=127.
    unsafe fn scale(a: Self::V, n: Self::V) -> Self::V;
    /// `a` where `x >= bound`, else 0.
    unsafe fn keep_at_least(x: Self::V, bound: Self::V, a: Self::V) -> Self::V;
    /// The greatest lane.
    unsafe fn greatest(v: Self::V) -> f32;
    /// Hints that the cache line at `p`, which need not be a valid address, will be read.
    unsafe fn prefetch(p: *const u8);

    /// The numbers, in the first `LANES` places.
    #[inline(always)]
    unsafe fn lanes(v: Self::V) -> [f32; 16] {
        let mut all = [0.0; 16];
        // SAFETY: there are at most 16 lanes.
        unsafe { Self::store(all.as_mut_ptr(), v) };
        all
    }

    /// The sum of all lanes, halves added to halves.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: passed on.
        let mut all = unsafe { Self::lanes(v) };
        let mut width = Self::LANES / 2;
        while width > 0 {
            for i in 0..width {
                all[i] += all[i + width];
            }
            width /= 2;
        }
        all[0]
    }

    /// The first `n < LANES` numbers at `p`, then zeros.
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self::V {
        let mut all = [0f32; 16];
        // SAFETY: the caller vouches for n elements at p; n < LANES <= 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n);
            Self::load(all.as_ptr())
        }
    }

    /// Stores the first `n < LANES` numbers.
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: the caller vouches for n elements at p; n < LANES <= 16.
        unsafe {
            let all = Self::lanes(v);
            std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
        }
    }
}

/// An element type of weights and caches. The zero bit pattern is the number 0.
pub(super) trait Element: Copy + Send + Sync + 'static {
    /// Bytes per element are all that differs for the prefetch.
    const SIZE: usize = size_of::<Self>();
    /// The nearest value, ties to even.
    fn from_f32(x: f32) -> Self;
    /// The value, exactly.
    fn to_f32(self) -> f32;
    /// `S::LANES` elements, widened.
    ///
    /// # Safety
    /// As [`Simd::load`].
    unsafe fn load<S: Simd>(p: *const Self) -> S::V;
}

impl Element for f32 {
    #[inline(always)]
    fn from_f32(x: f32) -> f32 {
        x
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        self
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f32) -> S::V {
        // SAFETY: passed on.
        unsafe { S::load(p) }
    }
}

impl Element for f16 {
    #[inline(always)]
    fn from_f32(x: f32) -> f16 {
        f16::from_f32(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f16::to_f32(self)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const f16) -> S::V {
        // SAFETY: passed on; f16 is a transparent u16.
        unsafe { S::load_f16(p.cast()) }
    }
}

impl Element for bf16 {
    #[inline(always)]
    fn from_f32(x: f32) -> bf16 {
        bf16::from_f32(x)
    }
    #[inline(always)]
    fn to_f32(self) -> f32 {
        f32::from_bits(u32::from(self.to_bits()) << 16)
    }
    #[inline(always)]
    unsafe fn load<S: Simd>(p: *const bf16) -> S::V {
        // SAFETY: passed on; bf16 is a transparent u16.
        unsafe { S::load_bf16(p.cast()) }
    }
}
