//! Facts that a binary states about itself.

use std::fs;
use std::path::Path;

/// An architecture that there are releases for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Architecture {
    /// Intel and AMD.
    X86_64,
    /// 64-bit ARM.
    Aarch64,
}

impl Architecture {
    /// Returns the name in Rust.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64",
            Architecture::Aarch64 => "aarch64",
        }
    }

    /// Returns the name in Debian.
    pub(super) const fn debian(self) -> &'static str {
        match self {
            Architecture::X86_64 => "amd64",
            Architecture::Aarch64 => "arm64",
        }
    }

    /// Returns the target of Rust.
    pub(super) const fn target(self) -> &'static str {
        match self {
            Architecture::X86_64 => "x86_64-unknown-linux-gnu",
            Architecture::Aarch64 => "aarch64-unknown-linux-gnu",
        }
    }
}

/// A binary.
pub(super) struct Elf {
    pub(super) architecture: Architecture,
    /// The newest version of glibc that it has symbols of.
    pub(super) glibc: String,
}

/// Reads a binary.
///
/// # Errors
/// If it is not an ELF binary of a known architecture, or does not use glibc.
pub(super) fn read(path: &Path) -> Result<Elf, String> {
    let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
    parse(&bytes).map_err(|why| format!("{}: {why}", path.display()))
}

fn parse(bytes: &[u8]) -> Result<Elf, String> {
    let architecture = match (bytes.get(..5), bytes.get(18..20)) {
        (Some(b"\x7fELF\x02"), Some([62, 0])) => Architecture::X86_64,
        (Some(b"\x7fELF\x02"), Some([183, 0])) => Architecture::Aarch64,
        _ => return Err("not a binary for x86-64 or 64-bit ARM".to_owned()),
    };
    // The names of versions are in the table of dynamic strings, each with a zero after it.
    const NAME: &[u8] = b"\0GLIBC_2.";
    let mut minor = None;
    for at in (0..bytes.len()).filter(|&at| bytes[at] == 0 && bytes[at..].starts_with(NAME)) {
        let digits = bytes[at + NAME.len()..].iter().take_while(|byte| byte.is_ascii_digit());
        let number = digits.take(3).fold(0, |number, digit| 10 * number + u32::from(digit - b'0'));
        minor = minor.max(Some(number));
    }
    let minor = minor.ok_or("it does not use glibc")?;
    Ok(Elf { architecture, glibc: format!("2.{minor}") })
}

#[cfg(test)]
mod tests {
    use super::{Architecture, parse};

    #[test]
    fn the_newest_version_is_found() {
        let mut bytes = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\xb7\0".to_vec();
        assert!(parse(&bytes).is_err_and(|why| why.contains("glibc")));
        bytes.extend(b"\0GLIBC_2.17\0GLIBC_2.34\0GLIBC_2.9\0");
        let elf = parse(&bytes).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!((elf.architecture, &*elf.glibc), (Architecture::Aarch64, "2.34"));
        bytes[18] = 40;
        assert!(parse(&bytes).is_err_and(|why| why.contains("64-bit ARM")));
    }
}
