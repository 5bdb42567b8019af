//! The operations, each in three parts: what it takes (checked), what it costs, and which kernel does it.
//!
//! Views are row-major and as long as the shapes say, or longer. Constants (norm weights, biases, tables) are f32; activations have the
//! model's type. Nothing here waits for the device.

pub mod activation;
pub mod allreduce;
pub mod attention;
pub mod columns;
pub mod decode;
pub mod embed;
pub mod fp8;
pub mod gemv;
pub mod grouped;
pub mod matmul;
pub mod moe;
pub mod norm;
pub mod paged;
pub mod prefill;
pub mod product;
pub mod prologue;
pub mod quant;
mod rowwise;
pub mod sample;
pub mod step;

use super::Elem;
use crate::{Error, Result};

/// The one of three kernels that works on activations of type `elem`.
///
/// # Errors
/// [`Error::Unsupported`] if there is none.
pub(crate) fn by_type(
    elem: Elem,
    f32: &'static str,
    f16: &'static str,
    bf16: &'static str,
) -> Result<&'static str> {
    match elem {
        Elem::F32 => Ok(f32),
        Elem::F16 => Ok(f16),
        Elem::BF16 => Ok(bf16),
        other => Err(Error::Unsupported(format!("activations of type {other:?}"))),
    }
}

/// The kernel `$name` for activations of type `$elem`: one of `$name_f32`, `$name_f16`, `$name_bf16`.
macro_rules! typed {
    ($elem:expr, $name:literal) => {
        $crate::cuda::ops::by_type(
            $elem,
            concat!($name, "_f32"),
            concat!($name, "_f16"),
            concat!($name, "_bf16"),
        )
    };
}
pub(crate) use typed;

/// Refuses what the kernels could not count in `int`.
///
/// # Errors
/// [`Error::Shape`] for a size above `i32::MAX`.
pub(crate) fn countable(sizes: &[usize]) -> Result<()> {
    match sizes.iter().find(|&&n| i32::try_from(n).is_err()) {
        Some(n) => Err(Error::Shape(format!("{n} is more than a kernel can count"))),
        None => Ok(()),
    }
}
