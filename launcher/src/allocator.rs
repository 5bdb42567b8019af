//! Settings of the C library's memory allocator.

/// Size in bytes from which an allocation is returned to the operating system as soon as it is
/// freed.
#[cfg(all(target_os = "linux", target_env = "gnu"))]
const LARGE: libc::c_int = 1 << 20;

/// Makes the allocator return freed memory early. Call this before the process starts threads.
///
/// By default glibc raises its threshold for memory that it returns (up to 32 MiB) whenever a large
/// allocation is freed, and each thread then keeps up to twice that in an arena of its own. A
/// server that has answered a few requests with long texts would hold hundreds of megabytes that it
/// does not use, and reach the memory limit of its container. A fixed threshold turns that off.
pub(crate) fn return_freed_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for parameter in [libc::M_MMAP_THRESHOLD, libc::M_TRIM_THRESHOLD] {
        // SAFETY: mallopt takes two integers, and no other thread allocates memory yet. It fails
        // only for values that are out of range, and then nothing has changed.
        unsafe { libc::mallopt(parameter, LARGE) };
    }
}
