//! NVIDIA's collective library, opened at run time: its C functions and where the library is looked for.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::Library;

use crate::{Error, Result};

/// The name that NVIDIA's packages and wheels have.
const NAME: &str = "libnccl.so.2";
/// The oldest version with communicators that do not block and can be aborted while they form: 2.18.
const OLDEST: i32 = 21800;

/// `ncclUniqueId`: what the ranks of a group have in common.
#[derive(Clone, Copy)]
#[repr(C)]
pub(super) struct UniqueId(pub(super) [u8; UniqueId::BYTES]);

impl UniqueId {
    pub(super) const BYTES: usize = 128;
}

/// `ncclConfig_t` as of version 2.18; later versions take the shorter form and its version, and set the rest themselves.
#[repr(C)]
pub(super) struct Config {
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

impl Config {
    /// Calls return at once, and progress is asked for.
    pub(super) fn not_blocking() -> Config {
        /// `NCCL_CONFIG_UNDEF_INT`: the library chooses.
        const UNDEFINED: c_int = c_int::MIN;
        Config {
            size: size_of::<Config>(),
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
pub(super) type Comm = *mut c_void;

/// `ncclResult_t`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(transparent)]
pub(super) struct Code(pub(super) c_int);

impl Code {
    pub(super) const SUCCESS: Code = Code(0);
    pub(super) const IN_PROGRESS: Code = Code(7);
}

/// Elements on the wire, `ncclDataType_t`.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub(super) struct DataType(pub(super) c_int);

macro_rules! functions {
    ($($field:ident = $symbol:literal: fn($($argument:ty),* $(,)?) -> $result:ty;)*) => {
        /// NVIDIA's collective library, opened.
        pub struct Nccl {
            $(pub(super) $field: unsafe extern "C" fn($($argument),*) -> $result,)*
            path: String,
            // Last, so that it outlives the functions.
            _library: Library,
        }

        impl Nccl {
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
    get_version = "ncclGetVersion": fn(*mut c_int) -> Code;
    get_unique_id = "ncclGetUniqueId": fn(*mut UniqueId) -> Code;
    comm_init = "ncclCommInitRankConfig": fn(*mut Comm, c_int, UniqueId, c_int, *mut Config) -> Code;
    comm_async_error = "ncclCommGetAsyncError": fn(Comm, *mut Code) -> Code;
    comm_abort = "ncclCommAbort": fn(Comm) -> Code;
    all_reduce = "ncclAllReduce":
        fn(*const c_void, *mut c_void, usize, DataType, c_int, Comm, *mut c_void) -> Code;
    all_gather = "ncclAllGather": fn(*const c_void, *mut c_void, usize, DataType, Comm, *mut c_void) -> Code;
    broadcast = "ncclBroadcast":
        fn(*const c_void, *mut c_void, usize, DataType, c_int, Comm, *mut c_void) -> Code;
    error_string = "ncclGetErrorString": fn(Code) -> *const c_char;
    last_error = "ncclGetLastError": fn(Comm) -> *const c_char;
}

impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Nccl({})", self.path)
    }
}

impl Nccl {
    /// Opens the library: the file that `MILLRACE_NCCL_LIBRARY` names; else `libnccl.so.2` as the loader finds it; else one
    /// beside this program.
    ///
    /// # Errors
    /// [`Error::Device`] that says where it was looked for, or that it is too old.
    pub fn open() -> Result<Nccl> {
        Nccl::open_first(&candidates())
    }

    /// Opens this file.
    ///
    /// # Errors
    /// As for [`Nccl::open`].
    pub fn open_file(path: &Path) -> Result<Nccl> {
        Nccl::open_first(&[path.to_owned()])
    }

    fn open_first(candidates: &[PathBuf]) -> Result<Nccl> {
        let mut tried = Vec::new();
        for path in candidates {
            // SAFETY: NCCL's constructors are sound; another file of this name would be the user's doing.
            let bound = unsafe { Library::new(path).and_then(|l| Nccl::bind(l, path.display().to_string())) };
            match bound {
                Ok(nccl) => return nccl.check_version(),
                Err(e) => tried.push(format!("{}: {}", path.display(), cause(&e))),
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

    /// The version as people write it, such as 2.30.7.
    ///
    /// # Errors
    /// What the library fails with.
    pub fn version_name(&self) -> Result<String> {
        Ok(dotted(self.version()?))
    }

    /// The name of a new group, which rank 0 makes and all ranks need.
    ///
    /// # Errors
    /// What the library fails with.
    pub fn unique_id(&self) -> Result<Vec<u8>> {
        let mut id = UniqueId([0; UniqueId::BYTES]);
        // SAFETY: the argument is where the answer goes.
        self.check("ncclGetUniqueId", unsafe { (self.get_unique_id)(&mut id) })?;
        Ok(id.0.to_vec())
    }

    /// As one number: 2.18.3 is 21803.
    fn version(&self) -> Result<i32> {
        let mut version = 0;
        // SAFETY: the argument is where the answer goes.
        self.check("ncclGetVersion", unsafe { (self.get_version)(&mut version) })?;
        Ok(version)
    }

    /// The file that was opened.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// Success or a call under way; anything else by the library's own words.
    pub(super) fn check(&self, call: &str, code: Code) -> Result<()> {
        if code == Code::SUCCESS || code == Code::IN_PROGRESS {
            return Ok(());
        }
        // SAFETY: the library answers with static text for any code; the last error's text is copied at once.
        let (what, last) =
            unsafe { (text((self.error_string)(code)), text((self.last_error)(std::ptr::null_mut()))) };
        let detail = if last.is_empty() { String::new() } else { format!(": {last}") };
        Err(Error::Device(format!("{call}: {what}{detail}")))
    }
}

/// What lies behind an error: the loader's own words.
fn cause(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// # Safety
/// `words` is null or a string that stays for the duration of the call.
unsafe fn text(words: *const c_char) -> String {
    if words.is_null() {
        return String::new();
    }
    // SAFETY: as the caller says.
    unsafe { CStr::from_ptr(words) }.to_string_lossy().trim().to_owned()
}

/// 21803 as 2.18.3.
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
    fn versions_read_as_people_write_them() {
        assert_eq!(dotted(21803), "2.18.3");
        assert_eq!(dotted(23007), "2.30.7");
    }
}
