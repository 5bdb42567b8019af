//! The dynamic shared memory that launches of a kernel may ask for.
//!
//! A block has 48 KiB of shared memory without asking, and the kernel's static shared memory is a
//! part of it. A kernel may have more, up to the GPU's limit, once the function attribute
//! `MAX_DYNAMIC_SHARED_SIZE_BYTES` says so (CUDA driver API, `cuFuncSetAttribute`).

use millrace_backend::Result;

/// Bytes of static and dynamic shared memory that a block has without asking.
pub(in crate::device) const DEFAULT_SHARED: usize = 48 << 10;

/// A loaded kernel, as far as its shared memory is concerned.
pub(in crate::device) trait SharedAttributes {
    /// Bytes of the kernel's static shared memory.
    ///
    /// # Errors
    /// The driver's error.
    fn static_shared(&self) -> Result<usize>;
    /// Allows launches with up to `bytes` bytes of dynamic shared memory.
    ///
    /// # Errors
    /// The driver's error, for example if a block of this GPU cannot have that much.
    fn allow_dynamic_shared(&self, bytes: usize) -> Result<()>;
}

/// Bytes of dynamic shared memory that launches of one kernel may ask for so far.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::device) struct SharedAllowance(usize);

impl SharedAllowance {
    /// The bytes that a newly loaded kernel may ask for.
    ///
    /// # Errors
    /// The driver's error.
    pub(in crate::device) fn of(kernel: &impl SharedAttributes) -> Result<SharedAllowance> {
        Ok(SharedAllowance(DEFAULT_SHARED.saturating_sub(kernel.static_shared()?)))
    }

    /// Whether launches may ask for this many bytes.
    pub(in crate::device) fn covers(self, bytes: usize) -> bool {
        bytes <= self.0
    }

    /// Asks the driver for more if launches with `bytes` bytes need it.
    ///
    /// # Errors
    /// The driver's error. The allowance stays as it is then.
    pub(in crate::device) fn raise_to(&mut self, bytes: usize, kernel: &impl SharedAttributes) -> Result<()> {
        if !self.covers(bytes) {
            kernel.allow_dynamic_shared(bytes)?;
            self.0 = bytes;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use super::*;
    use millrace_backend::Error;

    /// A kernel that records what was allowed, on a GPU whose blocks have 99 KiB.
    struct FakeKernel {
        static_shared: usize,
        allowed: RefCell<Vec<usize>>,
    }

    impl SharedAttributes for FakeKernel {
        fn static_shared(&self) -> Result<usize> {
            Ok(self.static_shared)
        }

        fn allow_dynamic_shared(&self, bytes: usize) -> Result<()> {
            if self.static_shared + bytes > 99 << 10 {
                return Err(Error::Device("invalid argument".to_owned()));
            }
            self.allowed.borrow_mut().push(bytes);
            Ok(())
        }
    }

    #[test]
    fn static_shared_memory_counts_towards_the_default() {
        let kernel = FakeKernel { static_shared: 16, allowed: RefCell::default() };
        let mut allowance = SharedAllowance::of(&kernel).unwrap();
        allowance.raise_to((48 << 10) - 16, &kernel).unwrap();
        assert!(kernel.allowed.borrow().is_empty(), "it fits beside the static memory");
        allowance.raise_to(48 << 10, &kernel).unwrap();
        assert_eq!(*kernel.allowed.borrow(), [48 << 10]);
        allowance.raise_to(1 << 10, &kernel).unwrap();
        assert_eq!(kernel.allowed.borrow().len(), 1, "less was allowed before");
        assert!(allowance.raise_to(99 << 10, &kernel).is_err());
        assert!(!allowance.covers(99 << 10) && allowance.covers(48 << 10));
    }
}
