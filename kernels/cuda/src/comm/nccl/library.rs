//! The binding of NCCL: its C functions, and where the library is searched for.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;
use millrace_backend::{Error, Result};

/// The file name in NVIDIA's packages and wheels.
const NAME: &str = "libnccl.so.2";
/// The oldest supported version, 2.18: the first whose communicators do not block and can be
/// aborted while they form.
const OLDEST: i32 = 21800;

/// `ncclUniqueId`: the name of a group, which all of its ranks pass.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// `ncclConfig_t` as of version 2.18. Later versions accept the shorter struct by its version, and
/// set the rest themselves.
#[repr(C)]
pub(super) struct NcclConfig {
    size: usize,
    magic: u32,
    version: u32,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

impl NcclConfig {
    /// A configuration whose calls return at once; the caller polls for their end.
    pub(super) fn not_blocking() -> NcclConfig {
        /// `NCCL_CONFIG_UNDEF_INT`: the library chooses.
        const UNDEFINED: c_int = c_int::MIN;
        NcclConfig {
            size: size_of::<NcclConfig>(),
            magic: 0xcafe_beef,
            version: OLDEST as u32,
            blocking: 0,
            cga_cluster_size: UNDEFINED,
            min_ctas: UNDEFINED,
            max_ctas: UNDEFINED,
            net_name: std::ptr::null(),
            split_share: UNDEFINED,
        }
    }
}

/// `ncclComm_t`.
pub(super) type RawCommunicator = *mut c_void;

/// `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct NcclCode(pub(super) c_int);

impl NcclCode {
    pub(super) const SUCCESS: NcclCode = NcclCode(0);
    pub(super) const IN_PROGRESS: NcclCode = NcclCode(7);
}

/// `ncclDataType_t`.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(super) struct NcclDataType(pub(super) c_int);

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        /// NVIDIA's collective library, loaded.
        pub struct Nccl {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            path: String,
            // The last field, so that it is dropped after the functions.
            _library: Library,
        }

        impl Nccl {
            /// The names of the functions that are loaded from the library.
            pub const FUNCTIONS: &[&str] = &[$($symbol),*];

            /// # Safety
            /// The library is NCCL.
            unsafe fn bind(library: Library, path: String) -> std::result::Result<Nccl, libloading::Error> {
                Ok(Nccl {
                    // SAFETY: the names and signatures are those of NCCL's header.
                    $($field: *unsafe { library.get(concat!($symbol, "\0").as_bytes())? },)*
                    path,
                    _library: library,
                })
            }
        }
    };
}

functions! {
    get_version = "ncclGetVersion": fn(*mut c_int) -> NcclCode;
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> NcclCode;
    comm_init = "ncclCommInitRankConfig": fn(*mut RawCommunicator, c_int, UniqueId, c_int, *mut NcclConfig) -> NcclCode;
    comm_async_error = "ncclCommGetAsyncError": fn(RawCommunicator, *mut NcclCode) -> NcclCode;
    comm_abort = "ncclCommAbort": fn(RawCommunicator) -> NcclCode;
    all_reduce = "ncclAllReduce":
        fn(*const c_void, *mut c_void, usize, NcclDataType, c_int, RawCommunicator, *mut c_void) -> NcclCode;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, NcclDataType, RawCommunicator, *mut c_void) -> NcclCode;
    broadcast = "ncclBroadcast":
        fn(*const c_void, *mut c_void, usize, NcclDataType, c_int, RawCommunicator, *mut c_void) -> NcclCode;
    error_string = "ncclGetErrorString": fn(NcclCode) -> *const c_char;
    last_error = "ncclGetLastError": fn(RawCommunicator) -> *const c_char;
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nccl({})", self.path)
    }
}

impl Nccl {
    /// Opens the library: the file that `MILLRACE_NCCL_LIBRARY` names, or else `libnccl.so.2` as
    /// the loader finds it, or else one beside this program.
    ///
    /// # Errors
    /// [`Error::Device`] that says where it was searched for, or that it is too old.
    pub fn open() -> Result<Nccl> {
        Nccl::open_first(&candidates())
    }

    /// Opens the library in this file.
    ///
    /// # Errors
    /// As for [`Nccl::open`].
    pub fn open_file(path: &Path) -> Result<Nccl> {
        Nccl::open_first(&[path.to_owned()])
    }

    fn open_first(candidates: &[PathBuf]) -> Result<Nccl> {
        let mut tried = Vec::new();
        for path in candidates {
            // SAFETY: NCCL's constructors are sound; the user is responsible for another file of
            // this name.
            let bound = unsafe { Library::new(path).and_then(|l| Nccl::bind(l, path.display().to_string())) };
            match bound {
                Ok(nccl) => return nccl.check_version(),
                Err(e) => tried.push(failure(path, &cause(&e))),
            }
        }
        Err(Error::Device(format!(
            "NCCL was not found ({}). Install libnccl2 (or the nvidia-nccl wheel) and name the file in MILLRACE_NCCL_LIBRARY",
            tried.join("; ")
        )))
    }

    fn check_version(self) -> Result<Nccl> {
        match self.version()? {
            version if version >= OLDEST => Ok(self),
            version => Err(Error::Device(format!(
                "{} is NCCL {}; {} or later is needed",
                self.path,
                dotted(version),
                dotted(OLDEST)
            ))),
        }
    }

    /// The version, such as `2.30.7`.
    ///
    /// # Errors
    /// The library's error.
    pub fn version_name(&self) -> Result<String> {
        Ok(dotted(self.version()?))
    }

    /// Creates the name of a new group. Rank 0 calls this and sends the name to all ranks.
    ///
    /// # Errors
    /// The library's error.
    pub fn unique_id(&self) -> Result<Vec<u8>> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: the argument points to the result.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id.0.to_vec())
    }

    /// The version as one number: 2.18.3 is 21803.
    fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the argument points to the result.
        self.check("ncclGetVersion", unsafe { (self.get_version)(&mut version) })?;
        Ok(version)
    }

    /// The path of the library.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Converts a return code into an error with the library's message. A call in progress is no
    /// error.
    pub(super) fn check(&self, call: &str, code: NcclCode) -> Result<()> {
        if code == NcclCode::SUCCESS || code == NcclCode::IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the library returns static text for any code; the last error's text is copied at
        // once.
        let (what, last) =
            unsafe { (text((self.error_string)(code)), text((self.last_error)(std::ptr::null_mut()))) };
        let detail = if last.is_empty() { String::new() } else { format!(": {last}") };
        Err(Error::Device(format!("{call}: {what}{detail}")))
    }
}

/// The loader's message behind an error.
/// Says why a file was not opened. The loader begins most of its texts with the name of the file.
fn failure(path: &Path, cause: &str) -> String {
    let path = path.display().to_string();
    if cause.starts_with(&path) { cause.to_owned() } else { format!("{path}: {cause}") }
}

fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// # Safety
/// `message` is null or a C string that stays valid during the call.
unsafe fn text(message: *const c_char) -> String {
    if message.is_null() {
        return String::new();
    }
    // SAFETY: the caller guarantees it.
    unsafe { CStr::from_ptr(message) }.to_string_lossy().trim().to_owned()
}

/// Formats a version number: 21803 as 2.18.3.
fn dotted(version: i32) -> String {
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn candidates() -> Vec<PathBuf> {
    if let Some(named) = std::env::var_os("MILLRACE_NCCL_LIBRARY") {
        return vec![named.into()];
    }
    let beside = std::env::current_exe().ok().and_then(|exe| Some(exe.parent()?.join(NAME)));
    [PathBuf::from(NAME)].into_iter().chain(beside).collect()
}

#[cfg(test)]
mod tests {
    use super::dotted;

    #[test]
    fn version_numbers_are_formatted() {
        assert_eq!(dotted(21803), "2.18.3");
        assert_eq!(dotted(23007), "2.30.7");
    }
}
