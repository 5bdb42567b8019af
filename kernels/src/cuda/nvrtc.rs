//! Machine code for a card that the build has none for: NVRTC, NVIDIA's compiler as a library, opened at run time.

use std::ffi::{CStr, CString, c_char, c_int};
use std::ptr;

use cudarc::nvrtc::result::NvrtcError;
use cudarc::nvrtc::sys;
use sha2::{Digest, Sha256};

use super::cache::Cache;
use super::modules;
use crate::{Error, Result};

/// The most of a compiler's complaints that an error repeats, in bytes.
const LOG: usize = 2000;

/// NVRTC, which is there.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Nvrtc {
    version: (c_int, c_int),
}

/// A program; destroyed when dropped.
struct Program(sys::nvrtcProgram);

impl Nvrtc {
    /// The library, if this machine has it.
    ///
    /// # Errors
    /// [`Error::Unsupported`] with one sentence if not.
    pub(crate) fn open() -> Result<Nvrtc> {
        // SAFETY: the call only tries to open the library, whose constructors are NVIDIA's.
        if !unsafe { sys::is_culib_present() } {
            return Err(Error::Unsupported("there is no NVRTC (libnvrtc.so) on this machine".to_owned()));
        }
        let mut version = (0, 0);
        // SAFETY: both are places for a number.
        unsafe { sys::nvrtcVersion(&mut version.0, &mut version.1) }
            .result()
            .map_err(|e| failed("nvrtcVersion", e))?;
        Ok(Nvrtc { version })
    }

    /// Machine code of `module` for cards of this compute capability, from the cache if it is there.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if there is no such module, [`Error::Device`] with the compiler's words if it does not compile.
    pub(crate) fn machine_code(self, module: &str, capability: (u32, u32), cache: &Cache) -> Result<Vec<u8>> {
        let source = modules::find(modules::SOURCES, module)
            .ok_or_else(|| Error::Unsupported(format!("there is no {module}.cu")))?;
        let architecture = architecture(capability);
        let key = self.key(source, &architecture);
        if let Some(code) = cache.get(module, &key) {
            return Ok(code);
        }
        let code = compile(module, source, &architecture)?;
        cache.put(module, &key, &code);
        Ok(code)
    }

    /// Names what the machine code is made of and by.
    fn key(self, source: &str, architecture: &str) -> String {
        let mut hash = Sha256::new();
        for text in modules::HEADERS.iter().flat_map(|(name, text)| [*name, *text]).chain([source]) {
            hash.update((text.len() as u64).to_le_bytes());
            hash.update(text);
        }
        let digest: String = hash.finalize().iter().take(16).map(|byte| format!("{byte:02x}")).collect();
        let (major, minor) = self.version;
        format!("{architecture}-nvrtc{major}.{minor}-{digest}")
    }
}

/// The target with the instructions that the kernels may use there: all of Hopper's and Blackwell's own.
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
    let headers = modules::HEADERS.iter().map(|(_, body)| text(body)).collect::<Result<Vec<_>>>()?;
    let names = modules::HEADERS.iter().map(|(name, _)| text(name)).collect::<Result<Vec<_>>>()?;
    // Lambdas have no place for `__device__` that every compiler takes.
    let options =
        [&format!("--gpu-architecture={architecture}"), "--std=c++17", "--device-as-default-execution-space"];
    let options = options.into_iter().map(text).collect::<Result<Vec<_>>>()?;
    let pointers = |all: &[CString]| all.iter().map(|s| s.as_ptr()).collect::<Vec<*const c_char>>();

    let mut program = ptr::null_mut();
    // SAFETY: all texts end in a zero and live to the end of this function, as the program does; the arrays are as long as said.
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
    // SAFETY: the program was made above; the options end in a zero each.
    unsafe { sys::nvrtcCompileProgram(program.0, options.len() as c_int, pointers(&options).as_ptr()) }
        .result()
        .map_err(|e| {
            Error::Device(format!("NVRTC on {module}.cu for {architecture}: {}\n{}", words(e), program.log()))
        })?;
    program.cubin().map_err(|e| failed("nvrtcGetCUBIN", e))
}

impl Program {
    fn cubin(&self) -> std::result::Result<Vec<u8>, NvrtcError> {
        let mut bytes = 0;
        // SAFETY: the program has been compiled, and the buffer is as long as it says.
        unsafe {
            sys::nvrtcGetCUBINSize(self.0, &mut bytes).result()?;
            let mut code = vec![0u8; bytes];
            sys::nvrtcGetCUBIN(self.0, code.as_mut_ptr().cast()).result()?;
            Ok(code)
        }
    }

    /// What the compiler has said, or nothing.
    fn log(&self) -> String {
        let mut bytes = 0;
        // SAFETY: the program is there, and the buffer is as long as it says.
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
        // SAFETY: the program is not used again. That it cannot be destroyed would change nothing.
        let _ = unsafe { sys::nvrtcDestroyProgram(&mut self.0) };
    }
}

fn words(error: NvrtcError) -> String {
    // SAFETY: the function knows all codes and gives texts that live for ever.
    let text = unsafe { CStr::from_ptr(sys::nvrtcGetErrorString(error.0)) };
    text.to_string_lossy().into_owned()
}

fn failed(call: &str, error: NvrtcError) -> Error {
    Error::Device(format!("{call}: {}", words(error)))
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    /// NVRTC, or a word that the test was skipped; with `MILLRACE_TEST_NVRTC` in the environment it must be there.
    fn nvrtc() -> Option<Nvrtc> {
        let found = Nvrtc::open();
        if let Err(why) = &found {
            assert!(std::env::var_os("MILLRACE_TEST_NVRTC").is_none(), "{why}");
            eprintln!("skipped: {why}");
        }
        found.ok()
    }

    /// An ELF file for an NVIDIA card.
    fn is_machine_code(code: &[u8]) -> bool {
        code.starts_with(b"\x7fELF") && code[18..20] == 190u16.to_le_bytes()
    }

    #[test]
    fn every_module_compiles() {
        let Some(nvrtc) = nvrtc() else { return };
        let left = Mutex::new(modules::SOURCES.iter());
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
    fn machine_code_is_kept() {
        let Some(nvrtc) = nvrtc() else { return };
        let folder = std::env::temp_dir().join(format!("millrace-nvrtc-{}", std::process::id()));
        let cache = Cache::at(folder.clone());
        let code = nvrtc.machine_code("norm", (8, 6), &cache).unwrap();
        assert!(is_machine_code(&code));
        let entry = std::fs::read_dir(&folder).unwrap().next().unwrap().unwrap();
        assert!(entry.file_name().to_string_lossy().starts_with("norm-sm_86-nvrtc"));
        // Only the cache can give this.
        let key = nvrtc.key(modules::find(modules::SOURCES, "norm").unwrap(), "sm_86");
        cache.put("norm", &key, b"planted");
        assert_eq!(nvrtc.machine_code("norm", (8, 6), &cache).unwrap(), b"planted");
        std::fs::write(entry.path(), b"broken").unwrap();
        assert_eq!(nvrtc.machine_code("norm", (8, 6), &cache).unwrap(), code);
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn errors_speak_with_the_compilers_words() {
        if nvrtc().is_none() {
            return;
        }
        let said = compile("broken", "int x = nothing;", "sm_80").unwrap_err().to_string();
        assert!(said.contains("broken.cu") && said.contains("\"nothing\" is undefined"), "{said}");
    }

    #[test]
    fn a_key_names_what_the_code_depends_on() {
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
