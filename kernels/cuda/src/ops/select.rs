//! The choice of a kernel by the type of its activations.

use millrace_backend::{Error, Result};

use crate::Elem;
use crate::params::{Kernel, KernelParams};

/// The kernel `$name` of the module `$module`, which takes `$params`. A wrong name does not
/// compile.
macro_rules! kernel {
    ($params:ty, $module:literal, $name:expr) => {
        const { $crate::params::Kernel::<$params>::new($module, $name) }
    };
}
pub(super) use kernel;

/// The kernel for activations of type `$elem`: one of `$name_f32`, `$name_f16` and `$name_bf16`.
macro_rules! typed {
    ($params:ty, $module:literal, $name:literal, $elem:expr) => {
        $crate::ops::select::by_type(
            $elem,
            $crate::ops::select::kernel!($params, $module, concat!($name, "_f32")),
            $crate::ops::select::kernel!($params, $module, concat!($name, "_f16")),
            $crate::ops::select::kernel!($params, $module, concat!($name, "_bf16")),
        )
    };
}
pub(super) use typed;

/// The kernel for activations of 16 bits: `$name_bf16` or `$name_f16`.
macro_rules! halved {
    ($params:ty, $module:literal, $name:literal, $elem:expr) => {
        $crate::ops::select::by_half(
            $elem,
            $crate::ops::select::kernel!($params, $module, concat!($name, "_f16")),
            $crate::ops::select::kernel!($params, $module, concat!($name, "_bf16")),
        )
    };
}
pub(super) use halved;

/// The kernel among three that works on activations of type `elem`.
///
/// # Errors
/// [`Error::Unsupported`] if there is none.
pub(super) fn by_type<P: KernelParams>(
    elem: Elem,
    f32: Kernel<P>,
    f16: Kernel<P>,
    bf16: Kernel<P>,
) -> Result<Kernel<P>> {
    match elem {
        Elem::F32 => Ok(f32),
        Elem::F16 => Ok(f16),
        Elem::BF16 => Ok(bf16),
        other => Err(Error::Unsupported(format!("activations of type {other:?}"))),
    }
}

/// The kernel among two that works on activations of type `elem` on tensor cores.
///
/// # Errors
/// [`Error::Unsupported`] if there is none.
pub(super) fn by_half<P: KernelParams>(elem: Elem, f16: Kernel<P>, bf16: Kernel<P>) -> Result<Kernel<P>> {
    match elem {
        Elem::F16 => Ok(f16),
        Elem::BF16 => Ok(bf16),
        other => Err(Error::Unsupported(format!("activations of type {other:?} on tensor cores"))),
    }
}
