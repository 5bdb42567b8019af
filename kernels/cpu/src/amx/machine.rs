//! Whether this machine has the tile unit.

use std::sync::LazyLock;

/// Returns whether this machine has AMX for bf16 and bytes, and the system lets this process use
/// it.
pub(crate) fn is_available() -> bool {
    static AVAILABLE: LazyLock<bool> = LazyLock::new(|| has_instructions() && is_permitted());
    *AVAILABLE
}

fn has_instructions() -> bool {
    use std::arch::x86_64::{__cpuid, __cpuid_count};
    const NEEDED: u32 = 1 << 22 | 1 << 24 | 1 << 25; // AMX-BF16, AMX-TILE, AMX-INT8
    __cpuid(0).eax >= 7 && __cpuid_count(7, 0).edx & NEEDED == NEEDED
}

/// Asks Linux for the permission to use the tile registers, which holds for all threads of the
/// process. Systems that do not manage these registers refuse.
fn is_permitted() -> bool {
    #[cfg(target_os = "linux")]
    {
        const ARCH_REQ_XCOMP_PERM: libc::c_int = 0x1023;
        const XFEATURE_XTILEDATA: libc::c_ulong = 18;
        // SAFETY: the call has no effects on memory.
        unsafe { libc::syscall(libc::SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0 }
    }
    #[cfg(not(target_os = "linux"))]
    false
}
