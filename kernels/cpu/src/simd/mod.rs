//! Vectors of f32 numbers: one implementation per instruction set, chosen at run time.
//!
//! A [`Kernel`] is written once over [`Simd`] and compiled once per instruction set.
//! [`Target::dispatch`] calls a function with the `target_feature` attributes of the set, into
//! which the whole kernel is inlined.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod element;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
mod target;
#[cfg(test)]
mod tests;
mod vector;

pub(super) use element::Element;
pub use target::Isa;
pub(super) use target::Target;
pub(super) use vector::{Extension, Kernel, LARGEST_LANES, Simd};
