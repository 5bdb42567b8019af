//! Keeps the process alive when a mapped file becomes shorter than its mapping.
//!
//! Reading a page that its file no longer has, or that its disk cannot deliver, raises SIGBUS,
//! which ends the process without a message. While a [`Guard`] exists, the signal handler replaces
//! the rest of the mapping by zeros and records the failure. The reader of the mapping must check
//! [`Guard::has_failed`] before it uses the numbers.

#[cfg(target_os = "linux")]
pub(crate) use linux::Guard;
#[cfg(not(target_os = "linux"))]
pub(crate) use other::Guard;

#[cfg(target_os = "linux")]
mod linux {
    use std::ffi::c_int;
    use std::io;
    use std::ptr;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

    /// A mapping as the signal handler sees it. Regions are never freed, because the handler may
    /// read them at any time. They are reused.
    struct Region {
        taken: AtomicBool,
        /// First byte of the mapping.
        start: AtomicUsize,
        /// Length of the mapping in bytes. It is 0 while the region is unused.
        len: AtomicUsize,
        failed: AtomicBool,
        /// The next region in the list. It never changes once the region is in the list.
        next: AtomicPtr<Region>,
    }

    /// The list of all regions.
    static REGIONS: AtomicPtr<Region> = AtomicPtr::new(ptr::null_mut());

    /// Size of a page in bytes. It is 0 until the handler is installed.
    static PAGE: AtomicUsize = AtomicUsize::new(0);

    /// The action of the signal before the handler was installed.
    static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

    /// Guards one mapping until it is dropped.
    #[derive(Debug)]
    pub(crate) struct Guard(Option<&'static Region>);

    impl std::fmt::Debug for Region {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            f.debug_struct("Region").field("failed", &self.failed).finish_non_exhaustive()
        }
    }

    impl Guard {
        /// Guards `map`, which begins at a page boundary and must outlive the guard.
        ///
        /// # Errors
        /// If the handler cannot be installed.
        pub(crate) fn new(map: &[u8]) -> io::Result<Self> {
            if map.is_empty() {
                return Ok(Guard(None));
            }
            install()?;
            let region = free_region();
            region.failed.store(false, Ordering::Relaxed);
            region.start.store(map.as_ptr().addr(), Ordering::Relaxed);
            // The handler reads the length first.
            region.len.store(map.len(), Ordering::Release);
            Ok(Guard(Some(region)))
        }

        /// Returns whether a part of the mapping could not be read and has been replaced by zeros.
        pub(crate) fn has_failed(&self) -> bool {
            self.0.is_some_and(|region| region.failed.load(Ordering::Acquire))
        }
    }

    impl Drop for Guard {
        fn drop(&mut self) {
            if let Some(region) = self.0 {
                region.len.store(0, Ordering::Release);
                region.taken.store(false, Ordering::Release);
            }
        }
    }

    /// Returns all regions, beginning with the one that was added last.
    fn regions() -> impl Iterator<Item = &'static Region> {
        let mut at = REGIONS.load(Ordering::Acquire);
        std::iter::from_fn(move || {
            // SAFETY: the pointers in the list are null or come from `Box::leak`, so that they are
            // valid forever.
            let region: Option<&'static Region> = unsafe { at.as_ref() };
            at = region?.next.load(Ordering::Acquire);
            region
        })
    }

    /// Returns an unused region.
    fn free_region() -> &'static Region {
        let free = regions().find(|region| !region.taken.swap(true, Ordering::AcqRel));
        free.unwrap_or_else(|| {
            let region: &'static Region = Box::leak(Box::new(Region {
                taken: AtomicBool::new(true),
                start: AtomicUsize::new(0),
                len: AtomicUsize::new(0),
                failed: AtomicBool::new(false),
                next: AtomicPtr::new(ptr::null_mut()),
            }));
            let add = |first: *mut Region| {
                region.next.store(first, Ordering::Relaxed);
                Some(ptr::from_ref(region).cast_mut())
            };
            // The closure never returns `None`, so this cannot fail.
            let _ = REGIONS.fetch_update(Ordering::AcqRel, Ordering::Acquire, add);
            region
        })
    }

    /// Installs the handler once.
    fn install() -> io::Result<()> {
        static RESULT: OnceLock<Result<(), i32>> = OnceLock::new();
        let result = RESULT.get_or_init(|| {
            // SAFETY: sysconf has no preconditions.
            let page = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
            PAGE.store(usize::try_from(page).unwrap_or(4096), Ordering::Release);
            // SAFETY: all zeros is a valid sigaction: no flags, an empty mask, the default action.
            let (mut action, mut before): (libc::sigaction, libc::sigaction) = unsafe { std::mem::zeroed() };
            let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) = on_bus_error;
            action.sa_sigaction = handler as usize;
            action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
            // SAFETY: both structures live during the call, and the handler only calls functions
            // that are safe in a handler.
            if unsafe { libc::sigaction(libc::SIGBUS, &raw const action, &raw mut before) } != 0 {
                return Err(io::Error::last_os_error().raw_os_error().unwrap_or_default());
            }
            let _ = BEFORE.set(before);
            Ok(())
        });
        result.map_err(io::Error::from_raw_os_error)
    }

    /// Replaces the unreadable part of a guarded mapping by zeros. For any other address, the
    /// handler restores the previous action. The instruction is then repeated and raises the signal
    /// again.
    ///
    /// It calls nothing but mmap and sigaction, neither of which takes a lock of this process or
    /// allocates from its heap.
    extern "C" fn on_bus_error(_: c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: errno is this thread's; the system hands a valid `info` to a handler with
        // SA_SIGINFO, and si_addr is set for SIGBUS.
        let (errno, address) = unsafe { (*libc::__errno_location(), (*info).si_addr().addr()) };
        if !regions().any(|region| replace(region, address)) {
            // SAFETY: all zeros is the default action.
            let default = || unsafe { std::mem::zeroed() };
            let before = BEFORE.get().copied().unwrap_or_else(default);
            // SAFETY: the structure lives during the call.
            unsafe { libc::sigaction(libc::SIGBUS, &raw const before, ptr::null_mut()) };
        }
        // SAFETY: as above.
        unsafe { *libc::__errno_location() = errno };
    }

    /// Replaces the mapping of `region` by zeros from the page of `address` on. Returns false if
    /// `address` is not in the mapping.
    fn replace(region: &Region, address: usize) -> bool {
        let len = region.len.load(Ordering::Acquire);
        let (start, page) = (region.start.load(Ordering::Relaxed), PAGE.load(Ordering::Acquire));
        if len == 0 || !(start..start + len).contains(&address) {
            return false;
        }
        let from = address - address % page;
        let bytes = (start + len - from).next_multiple_of(page);
        // This comes first, so that no reader sees zeros without the record of the failure.
        region.failed.store(true, Ordering::Release);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
        // SAFETY: the pages from `from` on belong to the guarded mapping, which is there until its
        // guard is dropped and is only ever read, as bytes that may have any value.
        let zeros =
            unsafe { libc::mmap(ptr::without_provenance_mut(from), bytes, libc::PROT_READ, flags, -1, 0) };
        zeros != libc::MAP_FAILED
    }
}

#[cfg(not(target_os = "linux"))]
mod other {
    use std::io;

    /// Does nothing on systems other than Linux.
    #[derive(Debug)]
    pub(crate) struct Guard;

    impl Guard {
        pub(crate) fn new(_map: &[u8]) -> io::Result<Self> {
            Ok(Guard)
        }

        pub(crate) fn has_failed(&self) -> bool {
            false
        }
    }
}
