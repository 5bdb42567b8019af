//! The choice of an instruction set at run time.

use millrace_backend::{Error, Result};

#[cfg(target_arch = "x86_64")]
use super::super::amx;
#[cfg(target_arch = "x86_64")]
use super::avx2::Avx2;
#[cfg(target_arch = "x86_64")]
use super::avx512::Avx512;
#[cfg(target_arch = "aarch64")]
use super::neon::Neon;
use super::portable::Portable;
use super::vector::{Kernel, Simd};

/// An instruction set that the CPU backend has kernels for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Isa {
    /// x86-64 with AVX-512 as below, and AMX for bf16 and bytes.
    Amx,
    /// x86-64 with AVX-512 F, BW, DQ, VL, VNNI and BF16.
    Avx512Bf16,
    /// x86-64 with AVX-512 F, BW, DQ, VL and VNNI.
    Avx512Vnni,
    /// x86-64 with AVX-512 F, BW, DQ and VL.
    Avx512,
    /// x86-64 with AVX2, AVX-VNNI, FMA and F16C.
    AvxVnni,
    /// x86-64 with AVX2, FMA and F16C.
    Avx2,
    /// 64-bit ARM with dot products of bytes (dotprod, i8mm) and of bf16.
    NeonBf16,
    /// 64-bit ARM with dot products of signed bytes (dotprod).
    NeonDot,
    /// 64-bit ARM.
    Neon,
    /// Any machine.
    Portable,
}

impl Isa {
    /// All instruction sets. Of those that a machine has, the fastest comes first.
    pub const ALL: [Isa; 10] = [
        Isa::Amx,
        Isa::Avx512Bf16,
        Isa::Avx512Vnni,
        Isa::Avx512,
        Isa::AvxVnni,
        Isa::Avx2,
        Isa::NeonBf16,
        Isa::NeonDot,
        Isa::Neon,
        Isa::Portable,
    ];

    /// Returns the instruction sets of this machine, fastest first. The list is never empty.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Returns the name for people.
    pub const fn name(self) -> &'static str {
        match self {
            Isa::Amx => "amx",
            Isa::Avx512Bf16 => "avx512-bf16",
            Isa::Avx512Vnni => "avx512-vnni",
            Isa::Avx512 => "avx512",
            Isa::AvxVnni => "avx-vnni",
            Isa::Avx2 => "avx2",
            Isa::NeonBf16 => "neon-bf16",
            Isa::NeonDot => "neon-dotprod",
            Isa::Neon => "neon",
            Isa::Portable => "portable",
        }
    }

    /// Returns whether this machine has the instruction set.
    pub(crate) fn is_available(self) -> bool {
        match self {
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512Bf16.is_available() && amx::is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Bf16 => is_x86_feature_detected!("avx512bf16") && Isa::Avx512Vnni.is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512Vnni => is_x86_feature_detected!("avx512vnni") && Isa::Avx512.is_available(),
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => is_x86_feature_detected!("avxvnni") && Isa::Avx2.is_available(),
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
            Isa::NeonBf16 => {
                std::arch::is_aarch64_feature_detected!("bf16")
                    && std::arch::is_aarch64_feature_detected!("i8mm")
                    && Isa::NeonDot.is_available()
            }
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => std::arch::is_aarch64_feature_detected!("dotprod") && Isa::Neon.is_available(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            Isa::Portable => true,
            #[allow(unreachable_patterns, reason = "which sets are left depends on the architecture")]
            _ => false,
        }
    }
}

/// An instruction set that this machine has.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Target(Isa);

impl Target {
    /// Returns the instruction set asked for, or the fastest one.
    pub(crate) fn new(isa: Option<Isa>) -> Result<Target> {
        let available = Isa::available();
        match isa {
            None => Ok(Target(available[0])), // the portable set is always available
            Some(isa) if available.contains(&isa) => Ok(Target(isa)),
            Some(isa) => Err(Error::Unsupported(format!("this machine has no {}", isa.name()))),
        }
    }

    pub(crate) fn isa(self) -> Isa {
        self.0
    }

    /// Runs `kernel` with this instruction set.
    pub(crate) fn dispatch<K: Kernel>(self, kernel: K) -> K::Output {
        // SAFETY: `new` found the instruction set on this machine. The creator of a kernel
        // guarantees everything else that the kernel requires.
        unsafe {
            match self.0 {
                #[cfg(target_arch = "x86_64")]
                Isa::Amx | Isa::Avx512Bf16 => Avx512::<true, true>::call(kernel),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512Vnni => Avx512::<true, false>::call(kernel),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx512 => Avx512::<false, false>::call(kernel),
                #[cfg(target_arch = "x86_64")]
                Isa::AvxVnni => Avx2::<true>::call(kernel),
                #[cfg(target_arch = "x86_64")]
                Isa::Avx2 => Avx2::<false>::call(kernel),
                #[cfg(target_arch = "aarch64")]
                Isa::NeonBf16 => Neon::<true, true>::call(kernel),
                #[cfg(target_arch = "aarch64")]
                Isa::NeonDot => Neon::<true, false>::call(kernel),
                #[cfg(target_arch = "aarch64")]
                Isa::Neon => Neon::<false, false>::call(kernel),
                _ => Portable::call(kernel),
            }
        }
    }

    /// Returns the rows of the largest tile of the matrix product.
    pub(crate) fn tile_rows(self) -> usize {
        struct Rows;
        impl Kernel for Rows {
            type Output = usize;
            unsafe fn run<S: Simd>(self) -> usize {
                S::ROWS
            }
        }
        self.dispatch(Rows)
    }

    /// Returns the outputs in one panel of a packed matrix.
    pub(crate) fn panel_width(self) -> usize {
        struct Width;
        impl Kernel for Width {
            type Output = usize;
            unsafe fn run<S: Simd>(self) -> usize {
                2 * S::LANES
            }
        }
        self.dispatch(Width)
    }

    /// Returns whether the instruction set includes a tile unit.
    #[cfg(target_arch = "x86_64")]
    pub(crate) fn has_tiles(self) -> bool {
        self.0 == Isa::Amx
    }

    /// Returns whether bf16 weights are multiplied in pairs.
    pub(crate) fn has_bf16(self) -> bool {
        struct HasBf16;
        impl Kernel for HasBf16 {
            type Output = bool;
            unsafe fn run<S: Simd>(self) -> bool {
                S::HAS_BF16
            }
        }
        self.dispatch(HasBf16)
    }
}
