//! The vectors of an instruction set, and kernels over them.

/// Instructions beyond the basic ones of a family of instruction sets.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Extension {
    /// No others.
    None,
    /// [`Simd::dot_u8_i8`].
    Vnni,
    /// [`Simd::dot_bf16`] and [`Memory::store_bf16`], and those of [`Extension::Vnni`].
    Bf16,
}

impl Extension {
    /// Returns whether a kernel that uses this extension gains from VNNI.
    pub(super) const fn has_vnni(self) -> bool {
        !matches!(self, Extension::None)
    }

    /// Returns whether a kernel that uses this extension gains from BF16.
    #[cfg(target_arch = "x86_64")]
    pub(super) const fn has_bf16(self) -> bool {
        matches!(self, Extension::Bf16)
    }
}

/// Work that is compiled for every instruction set.
pub(crate) trait Kernel {
    /// The instructions that the kernel uses. It is not compiled again for sets that differ only in
    /// others, which saves most of the time that this crate takes to compile.
    const USES: Extension = Extension::Bf16;
    /// The result of the kernel.
    type Output;
    /// Runs the kernel. Implementations are `#[inline(always)]` wherever speed matters.
    ///
    /// # Safety
    /// The machine must have the instruction set `S`, and the pointers in the kernel must be valid.
    unsafe fn run<S: Simd>(self) -> Self::Output;
}

/// The most lanes that a vector of any instruction set has.
pub(crate) const LARGEST_LANES: usize = 16;

/// The registers of an instruction set: vectors of [`Lanes::LANES`] numbers.
///
/// # Safety
/// All functions of this trait's heirs require that the machine has the instruction set, and that
/// pointers are valid for `LANES` elements. Pointers need no alignment.
pub(crate) trait Lanes: Copy + 'static {
    /// A vector of f32 numbers.
    type V: Copy;
    /// A vector of as many 32-bit integers.
    type I: Copy;
    /// Number of lanes: a power of two, at most [`LARGEST_LANES`].
    const LANES: usize;
}

/// Loads and stores of vectors.
///
/// # Safety
/// As [`Lanes`] says.
#[allow(clippy::missing_safety_doc, reason = "the trait's documentation has one section for all functions")]
pub(crate) trait Memory: Lanes {
    unsafe fn load(p: *const f32) -> Self::V;
    unsafe fn load_f16(p: *const u16) -> Self::V;
    unsafe fn load_bf16(p: *const u16) -> Self::V;
    unsafe fn load_i8(p: *const i8) -> Self::V;
    /// Loads the first `n < LANES` numbers at `p`, followed by zeros.
    #[inline(always)]
    unsafe fn load_first(p: *const f32, n: usize) -> Self::V {
        let mut all = [0f32; 16];
        // SAFETY: the caller guarantees n elements at p, and n < LANES <= 16.
        unsafe {
            std::ptr::copy_nonoverlapping(p, all.as_mut_ptr(), n);
            Self::load(all.as_ptr())
        }
    }
    /// Loads the first `LANES` of the `n` numbers at `p`, or all of them, followed by zeros.
    #[inline(always)]
    unsafe fn load_up_to(p: *const f32, n: usize) -> Self::V {
        // SAFETY: the caller guarantees n elements at p.
        unsafe { if n >= Self::LANES { Self::load(p) } else { Self::load_first(p, n) } }
    }
    unsafe fn load_i(p: *const i32) -> Self::I;
    /// Loads `LANES` unsigned 16-bit integers.
    unsafe fn load_u16(p: *const u16) -> Self::I;
    /// Loads `LANES` signed bytes.
    unsafe fn widen_i8(p: *const i8) -> Self::I;
    unsafe fn store(p: *mut f32, v: Self::V);
    /// Stores the first `n < LANES` numbers.
    #[inline(always)]
    unsafe fn store_first(p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: the caller guarantees n elements at p, and n < LANES <= 16.
        unsafe {
            let all = Self::lanes(v);
            std::ptr::copy_nonoverlapping(all.as_ptr(), p, n);
        }
    }
    /// Stores the first `n` numbers, or all if there are no more than that.
    #[inline(always)]
    unsafe fn store_up_to(p: *mut f32, v: Self::V, n: usize) {
        // SAFETY: the caller guarantees n elements at p.
        unsafe { if n >= Self::LANES { Self::store(p, v) } else { Self::store_first(p, v, n) } }
    }
    /// Stores the nearest bf16 numbers; ties go to the even one. NaN stays NaN. An instruction may
    /// treat denormal numbers as zeros.
    #[inline(always)]
    unsafe fn store_bf16(p: *mut u16, v: Self::V) {
        // SAFETY: the caller guarantees what `Lanes` requires.
        let all = unsafe { Self::lanes(v) };
        let rounded = all.map(|x| {
            let bits = x.to_bits();
            let nearest = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
            (if x.is_nan() { bits >> 16 | 0x40 } else { nearest }) as u16
        });
        // SAFETY: as above.
        unsafe { std::ptr::copy_nonoverlapping(rounded.as_ptr(), p, Self::LANES) };
    }
    /// Stores the lowest byte of each lane, for lanes in -128..=127.
    unsafe fn store_i8(p: *mut i8, a: Self::I);
    /// Returns the numbers in the first `LANES` elements.
    #[inline(always)]
    unsafe fn lanes(v: Self::V) -> [f32; 16] {
        let mut all = [0.0; 16];
        // SAFETY: there are at most 16 lanes.
        unsafe { Self::store(all.as_mut_ptr(), v) };
        all
    }
    /// Prefetches the cache line at `p`, which need not be a valid address.
    unsafe fn prefetch(p: *const u8);
    /// Prefetches the cache line at `p` for a later use, to the L2 cache if that can be chosen.
    #[inline(always)]
    unsafe fn prefetch_later(p: *const u8) {
        // SAFETY: the caller guarantees what `Lanes` requires.
        unsafe { Self::prefetch(p) }
    }
}

/// Arithmetic of f32 numbers.
///
/// # Safety
/// As [`Lanes`] says.
#[allow(clippy::missing_safety_doc, reason = "the trait's documentation has one section for all functions")]
pub(crate) trait Floats: Memory {
    unsafe fn splat(x: f32) -> Self::V;
    unsafe fn add(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn sub(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn mul(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn div(a: Self::V, b: Self::V) -> Self::V;
    /// `a * b + c`.
    unsafe fn fma(a: Self::V, b: Self::V, c: Self::V) -> Self::V;
    /// `a * b + c`, rounded once in every instruction set.
    #[inline(always)]
    unsafe fn fma_once(a: Self::V, b: Self::V, c: Self::V) -> Self::V {
        // SAFETY: the caller guarantees what `Lanes` requires.
        unsafe { Self::fma(a, b, c) }
    }
    unsafe fn max(a: Self::V, b: Self::V) -> Self::V;
    unsafe fn min(a: Self::V, b: Self::V) -> Self::V;
    /// `a * 2^n` for integral n in -126..=127.
    unsafe fn scale(a: Self::V, n: Self::V) -> Self::V;
    /// Returns `a` where `x >= bound`, else 0.
    unsafe fn keep_at_least(x: Self::V, bound: Self::V, a: Self::V) -> Self::V;
    /// Returns the largest lane.
    unsafe fn greatest(v: Self::V) -> f32;
    /// Returns the sum of all lanes. The upper half is added to the lower half until one lane is
    /// left.
    #[inline(always)]
    unsafe fn sum(v: Self::V) -> f32 {
        // SAFETY: the caller guarantees what `Lanes` requires.
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
}

/// Arithmetic of 32-bit integers.
///
/// # Safety
/// As [`Lanes`] says.
#[allow(clippy::missing_safety_doc, reason = "the trait's documentation has one section for all functions")]
pub(crate) trait Integers: Lanes {
    unsafe fn splat_i(x: i32) -> Self::I;
    unsafe fn add_i(a: Self::I, b: Self::I) -> Self::I;
    /// Returns the lower 32 bits of the products.
    unsafe fn mul_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn and_i(a: Self::I, b: Self::I) -> Self::I;
    unsafe fn or_i(a: Self::I, b: Self::I) -> Self::I;
    /// Shifts each lane by the same number of bits, below 32.
    unsafe fn shift_left(a: Self::I, bits: i32) -> Self::I;
    /// As [`Integers::shift_left`], to lower bits. Zeros come in.
    unsafe fn shift_right(a: Self::I, bits: i32) -> Self::I;
    /// Returns the lower 4 bits of each byte.
    unsafe fn low_nibbles(a: Self::I) -> Self::I;
    /// Returns the upper 4 bits of each byte, shifted to the lower ones.
    unsafe fn high_nibbles(a: Self::I) -> Self::I;
}

/// From integers to f32 numbers and back.
///
/// # Safety
/// As [`Lanes`] says.
#[allow(clippy::missing_safety_doc, reason = "the trait's documentation has one section for all functions")]
pub(crate) trait Conversions: Memory {
    /// Returns lanes with the same bits.
    unsafe fn from_bits(a: Self::I) -> Self::V;
    /// As [`Conversions::from_bits`].
    unsafe fn to_bits(a: Self::V) -> Self::I;
    /// Returns the nearest f32 numbers; ties go to the even one.
    unsafe fn to_f32(a: Self::I) -> Self::V;
    /// Returns the nearest integers of magnitudes below 2^31; ties go to the even one.
    unsafe fn to_i(a: Self::V) -> Self::I;
    /// Replaces each lane by the number in the table at its lower 4 bits.
    #[inline(always)]
    unsafe fn lookup_f32(table: &[f32; 16], at: Self::I) -> Self::V {
        // SAFETY: the caller guarantees what `Lanes` requires.
        unsafe {
            let all = Self::lanes(Self::from_bits(at)).map(|x| table[x.to_bits() as usize & 15]);
            Self::load(all.as_ptr())
        }
    }
    /// Replaces both halves of each lane by the number in the table at their lower 4 bits.
    #[inline(always)]
    unsafe fn lookup_u16(table: &[u16; 16], at: Self::I) -> Self::I {
        let number = |at: u32| u32::from(table[at as usize & 15]);
        // SAFETY: the caller guarantees what `Lanes` requires.
        unsafe {
            let all = Self::lanes(Self::from_bits(at)).map(|x| {
                let bits = x.to_bits();
                (number(bits >> 16) << 16 | number(bits)).cast_signed()
            });
            Self::load_i(all.as_ptr())
        }
    }
}

/// An instruction set: everything that a kernel is written with, and the dot products that only
/// some sets have instructions for.
///
/// # Safety
/// As [`Lanes`] says.
#[allow(clippy::missing_safety_doc, reason = "the trait's documentation has one section for all functions")]
pub(crate) trait Simd: Floats + Integers + Conversions {
    /// Rows of the largest tile of the matrix product: as many as the registers hold with two
    /// vectors per row.
    const ROWS: usize;
    /// Whether [`Simd::dot_bf16`] is the fastest way to multiply by bf16 weights.
    const HAS_BF16: bool;

    /// Runs a kernel as a function of its own. Loops that exist once for each height of a tile are
    /// called like this, because compilers take very long for one function with all of them.
    unsafe fn call<K: Kernel>(kernel: K) -> K::Output;
    /// Adds to each lane of `acc` the two products of the bf16 numbers in the lower and upper half
    /// of the same lanes of `a` and `b`. The order and the rounding of the two sums are those of
    /// the instruction set.
    unsafe fn dot_bf16(acc: Self::V, a: Self::I, b: Self::I) -> Self::V;
    /// Adds to each lane of `acc` the four products of the unsigned bytes in the same lane of `u`
    /// and the signed bytes in that of `s`. The sum is exact if it fits 32 bits.
    unsafe fn dot_u8_i8(acc: Self::I, u: Self::I, s: Self::I) -> Self::I;
}
