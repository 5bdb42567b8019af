//! Compiles kernels at run time with NVRTC, NVIDIA's compiler library, for GPUs that the embedded
//! machine code does not fit.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::sys;
use millrace_backend::{Error, Result};
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::embedded;

/// The most bytes of the compiler's log that an error repeats.
const LOG: usize = 2000;

/// The NVRTC library, which was found on this machine.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nvrtc {
    version: (c_int, c_int),
}

/// A program of NVRTC; destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Nvrtc {
    /// Opens the library.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if this machine does not have it.
    pub(crate) fn open() -> Result<Nvrtc> {
        // SAFETY: the call only tries to open the library, whose constructors are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Device("NVRTC was not found (libnvrtc.so)".to_owned()));
        }
        let mut version = (0, 0);
        // SAFETY: both arguments point to integers.
        unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) }
            .result()
            .map_err(|e| failed("nvrtcVersion", e))?;
        Ok(Nvrtc { version })
    }

    /// Returns the machine code of `module` for GPUs of this compute capability, from the cache if
    /// it is there.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no such module, [`Error::Device`] with the compiler's log
    /// if it does not compile.
    pub(crate) fn machine_code(self, module: &str, capability: (u32, u32), cache: &Cache) -> Result<Vec<u8>> {
        let source = embedded::find(embedded::SOURCES, module)
            .ok_or_else(|| Error::Unsupported(format!("no source {module}.cu")))?;
        let architecture = architecture(capability);
        let key = self.key(source, &architecture);
        if let Some(code) = cache.get(module, &key) {
            return Ok(code);
        }
        let code = compile(module, source, &architecture)?;
        cache.put(module, &key, &code);
        Ok(code)
    }

    /// The cache key: names the target, the compiler and the sources.
    fn key(self, source: &str, architecture: &str) -> String {
        let mut hash = Sha256::new();
        for text in embedded::HEADERS.iter().flat_map(|(name, text)| [*name, *text]).chain([source]) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let digest: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let (major, minor) = self.version;
        format!("{architecture}-nvrtc{major}.{minor}-{digest}")
    }
}

/// The compile target. It includes the architecture-specific instructions of Hopper and Blackwell,
/// which the kernels may use there.
fn architecture((major, minor): (u32, u32)) -> String {
    match major {
        9 => format!("sm_9{minor}a"),
        10 => format!("sm_10{minor}f"),
        _ => format!("sm_{major}{minor}"),
    }
}

fn compile(module: &str, source: &str, architecture: &str) -> Result<Vec<u8>> {
    let text = |s: &str| CString::new(s).map_err(|e| Error::Unsupported(format!("{module}.cu: {e}")));
    let (source, name) = (text(source)?, text(&format!("{module}.cu"))?);
    let headers = embedded::HEADERS.iter().map(|(_, body)| text(body)).collect::<Result<Vec<_>>>()?;
    let names = embedded::HEADERS.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>>>()?;
    // There is no place in a lambda for `__device__` that every compiler accepts.
    let options =
        [&format!("--gpu-architecture={architecture}"), "--std=c++17", "--device-as-default-execution-space"];
    let options = options.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<*const c_char>>();

    let mut program = ptr::null_mut();
    // SAFETY: all strings are zero-terminated and live to the end of this function, as the program
    // does; the arrays are as long as their counts say.
    unsafe {
        sys::nvrtcCreateProgram(
            &mut program,
            source.as_ptr(),
            name.as_ptr(),
            headers.len() as c_int,
            pointers(&headers).as_ptr(),
            pointers(&names).as_ptr(),
        )
    }
    .result()
    .map_err(|e| failed("nvrtcCreateProgram", e))?;
    let program = Program(program);
    // SAFETY: the program was made above; every option is zero-terminated.
    unsafe { sys::nvrtcCompileProgram(program.0, options.len() as c_int, pointers(&options).as_ptr()) }
        .result()
        .map_err(|e| {
            Error::Device(format!(
                "NVRTC on {module}.cu for {architecture}: {}\n{}",
                message(e),
                program.log()
            ))
        })?;
    program.cubin().map_err(|e| failed("nvrtcGetCUBIN", e))
}

impl Program {
    fn cubin(&self) -> std::result::Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program has been compiled, and the buffer has the size that NVRTC reported.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut bytes).result()?;
            let mut code = vec![0u8; bytes];
            sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()).result()?;
            Ok(code)
        }
    }

    /// The compiler's log, or nothing.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program exists, and the buffer has the size that NVRTC reported.
        let log = unsafe {
            if sys::nvrtcGetProgramLogSize(self.0, &mut bytes).result().is_err() {
                return String::new();
            }
            let mut log = vec![0u8; bytes];
            if sys::nvrtcGetProgramLog(self.0, log.as_mut_ptr().cast()).result().is_err() {
                return String::new();
            }
            log
        };
        String::from_utf8_lossy(&log[..log.len().min(LOG)]).trim_end_matches('\0').to_owned()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: the program is not used again. A failure would only leak it.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn message(error: NvrtcError) -> String {
    // SAFETY: the function accepts all codes and returns static strings.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(error.0)) };
    text.to_string_lossy().into_owned()
}

fn failed(call: &str, error: NvrtcError) -> Error {
    Error::Device(format!("{call}: {}", message(error)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// Opens NVRTC. Tests that need it are skipped with a note if it is missing, unless
    /// `MILLRACE_TEST_NVRTC` is set.
    fn nvrtc() -> Option<Nvrtc> {
        let found = Nvrtc::open();
        if let Err(why) = &found {
            assert!(std::env::var_os("MILLRACE_TEST_NVRTC").is_none(), "{why}");
            eprintln!("skipped: {why}");
        }
        found.ok()
    }

    /// Whether the bytes are an ELF file for an NVIDIA GPU.
    fn is_machine_code(code: &[u8]) -> bool {
        code.starts_with(b"\x7fELF") && code[18..20] == 190u16.to_le_bytes()
    }

    #[test]
    fn every_module_compiles() {
        let Some(nvrtc) = nvrtc() else { return };
        let left = Mutex::new(embedded::SOURCES.iter());
        let next = || left.lock().unwrap().next();
        let compile = || {
            while let Some((module, _)) = next() {
                let code = nvrtc.machine_code(module, (9, 0), &Cache::none()).unwrap();
                assert!(is_machine_code(&code), "{module}");
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..std::thread::available_parallelism().unwrap().get() {
                scope.spawn(compile);
            }
        });
    }

    #[test]
    fn machine_code_is_cached() {
        let Some(nvrtc) = nvrtc() else { return };
        let folder = std::env::temp_dir().join(format!("millrace-nvrtc-{}", std::process::id()));
        let cache = Cache::at(folder.clone());
        let code = nvrtc.machine_code("norm", (8, 6), &cache).unwrap();
        assert!(is_machine_code(&code));
        let entry = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
        assert!(entry.file_name().to_string_lossy().starts_with("norm-sm_86-nvrtc"));
        // Only the cache can return these bytes.
        let key = nvrtc.key(embedded::find(embedded::SOURCES, "norm").unwrap(), "sm_86");
        cache.put("norm", &key, b"planted");
        assert_eq!(nvrtc.machine_code("norm", (8, 6), &cache).unwrap(), b"planted");
        std::fs::write(entry.path(), b"broken").unwrap();
        assert_eq!(nvrtc.machine_code("norm", (8, 6), &cache).unwrap(), code);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn errors_contain_the_compilers_log() {
        if nvrtc().is_none() {
            return;
        }
        let said = compile("broken", "int x = nothing;", "sm_80").unwrap_err().to_string();
        assert!(said.contains("broken.cu") && said.contains("\"nothing\" is undefined"), "{said}");
    }

    #[test]
    fn the_cache_key_depends_on_compiler_source_and_target() {
        let old = Nvrtc { version: (12, 9) };
        let new = Nvrtc { version: (13, 0) };
        let keys =
            [old.key("a", "sm_80"), new.key("a", "sm_80"), old.key("b", "sm_80"), old.key("a", "sm_90a")];
        for (i, key) in keys.iter().enumerate() {
            assert!(keys[i + 1..].iter().all(|other| other != key), "{key}");
        }
        assert_eq!(architecture((9, 0)), "sm_90a");
        assert_eq!(architecture((10, 3)), "sm_103f");
        assert_eq!(architecture((12, 0)), "sm_120");
    }
}
