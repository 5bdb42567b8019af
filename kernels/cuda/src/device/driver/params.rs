//! The parameters of kernels.
//!
//! Each kernel takes one struct by value. The struct is declared in the kernel's CUDA source;
//! `build/shared.rs` generates the Rust struct of the same layout and its [`KernelParams`], which
//! names the kernels that take it. [`Kernel::new`] compares a kernel's name with these names at
//! compile time.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use super::launch::KernelName;

/// An address in device memory, as kernels take it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct DevicePtr(u64);

impl DevicePtr {
    /// The null pointer, for operands that are absent.
    pub const NULL: DevicePtr = DevicePtr(0);

    /// The pointer to this address.
    pub(in crate::device) const fn new(address: u64) -> DevicePtr {
        DevicePtr(address)
    }
}

/// A pointer field in a struct of parameters.
#[derive(Debug, Clone, Copy)]
pub struct PointerField {
    /// The field's name, as in `part.pointer` if it is in a part of the struct.
    pub name: &'static CStr,
    /// Bytes from the start of the struct to the pointer.
    pub offset: usize,
}

/// The memory layout of a struct of parameters.
#[derive(Debug, Clone, Copy)]
pub struct ParamsLayout {
    /// The struct's name, without the arguments of a template.
    pub name: &'static CStr,
    /// Bytes of the struct.
    pub bytes: usize,
    /// All pointers in the struct.
    pub pointers: &'static [PointerField],
}

/// A struct of parameters.
///
/// # Safety
/// The struct has the layout of the CUDA struct of the same name, and the kernels take that struct.
pub unsafe trait KernelParams: Copy {
    /// The struct's memory layout.
    const LAYOUT: &'static ParamsLayout;
    /// The kernels that take the struct, as `MODULE/NAME`; a name may end in `*`.
    const KERNELS: &'static [&'static str];
}

/// A kernel that takes a `P`.
#[derive(Debug)]
pub struct Kernel<P> {
    function: KernelName,
    params: PhantomData<fn(P)>,
}

impl<P> Clone for Kernel<P> {
    fn clone(&self) -> Kernel<P> {
        *self
    }
}

impl<P> Copy for Kernel<P> {}

impl<P: KernelParams> Kernel<P> {
    /// The kernel `name` of the module `module`. Call it in a `const` block, so that a wrong name
    /// does not compile.
    ///
    /// # Panics
    /// If `P` does not list the kernel.
    pub const fn new(module: &'static str, name: &'static str) -> Kernel<P> {
        let mut i = 0;
        while i < P::KERNELS.len() {
            if lists(P::KERNELS[i].as_bytes(), module.as_bytes(), name.as_bytes()) {
                return Kernel { function: KernelName { module, name }, params: PhantomData };
            }
            i += 1;
        }
        panic!("the kernel takes other parameters")
    }

    /// The kernel's module and name.
    pub fn function(&self) -> KernelName {
        self.function
    }
}

/// Whether `pattern`, `MODULE/NAME` or `MODULE/NAME*`, lists the kernel.
const fn lists(pattern: &[u8], module: &[u8], name: &[u8]) -> bool {
    let start = module.len() + 1;
    if pattern.len() <= start || !begins_with(pattern, 0, module) || pattern[module.len()] != b'/' {
        return false;
    }
    let is_prefix = pattern[pattern.len() - 1] == b'*';
    let end = if is_prefix { pattern.len() - 1 } else { pattern.len() };
    if name.len() < end - start || (!is_prefix && name.len() != end - start) {
        return false;
    }
    let mut i = start;
    while i < end {
        if pattern[i] != name[i - start] {
            return false;
        }
        i += 1;
    }
    true
}

const fn begins_with(text: &[u8], at: usize, part: &[u8]) -> bool {
    let mut i = 0;
    while i < part.len() {
        if at + i >= text.len() || text[at + i] != part[i] {
            return false;
        }
        i += 1;
    }
    true
}

/// A reference to parameters of any kernel.
#[derive(Debug, Clone, Copy)]
pub struct LaunchParams<'a> {
    layout: &'static ParamsLayout,
    at: *const c_void,
    params: PhantomData<&'a ()>,
}

impl<'a, P: KernelParams> From<&'a P> for LaunchParams<'a> {
    fn from(params: &'a P) -> LaunchParams<'a> {
        LaunchParams { layout: P::LAYOUT, at: std::ptr::from_ref(params).cast(), params: PhantomData }
    }
}

impl LaunchParams<'_> {
    /// The parameters' memory layout.
    pub fn layout(&self) -> &'static ParamsLayout {
        self.layout
    }

    /// The address of the parameters, valid for [`ParamsLayout::bytes`] bytes. Padding between
    /// fields is not initialized.
    pub fn as_ptr(&self) -> *const c_void {
        self.at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_list_kernels_of_their_module() {
        let lists = |pattern: &str, module: &str, name: &str| {
            super::lists(pattern.as_bytes(), module.as_bytes(), name.as_bytes())
        };
        assert!(lists("norm/rms_norm_*", "norm", "rms_norm_f32"));
        assert!(lists("moe/moe_sort_256", "moe", "moe_sort_256"));
        assert!(!lists("moe/moe_sort_256", "moe", "moe_sort_2567"));
        assert!(!lists("moe/moe_sort_256", "moe", "moe_sort_25"));
        assert!(!lists("norm/rms_norm_*", "norm", "add_rms_norm_f32"));
        assert!(!lists("norm/rms_norm_*", "nor", "rms_norm_f32"));
        assert!(!lists("norm/rms_norm_*", "norm/", "rms_norm_f32"));
    }

    #[test]
    fn absent_operands_are_null() {
        assert_eq!(DevicePtr::from(None), DevicePtr::NULL);
    }
}
