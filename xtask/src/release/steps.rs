//! Steps that the parts of a release share: commands, and files with their modes.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs a command and returns what it prints.
pub(super) fn output(command: &mut Command) -> Result<String, String> {
    let done = command.output().map_err(|e| format!("{command:?}: {e}"))?;
    if !done.status.success() {
        return Err(format!("{command:?} failed: {}", String::from_utf8_lossy(&done.stderr)));
    }
    Ok(String::from_utf8_lossy(&done.stdout).into_owned())
}

/// Writes a file, and makes its folder.
pub(super) fn write(path: &Path, contents: impl AsRef<[u8]>) -> Result<(), String> {
    let about = |e: std::io::Error| format!("{}: {e}", path.display());
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(about)?;
    fs::write(path, contents).map_err(about)
}

/// Removes a folder that may not exist.
pub(super) fn remove(folder: &Path) -> Result<(), String> {
    match fs::remove_dir_all(folder) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(format!("{}: {e}", folder.display())),
        _ => Ok(()),
    }
}

/// Makes folders and programs readable and executable for everyone, and other files readable,
/// whatever the user's mask is.
pub(super) fn modes(path: &Path) -> Result<(), String> {
    let about = |e: std::io::Error| format!("{}: {e}", path.display());
    let is_folder = path.is_dir();
    let is_program =
        path.parent().is_some_and(|folder| folder.ends_with("bin") || folder.ends_with("DEBIAN"))
            && path.file_name().is_some_and(|name| name != "control" && name != "conffiles");
    let mode = if is_folder || is_program { 0o755 } else { 0o644 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).map_err(about)?;
    if is_folder {
        for entry in fs::read_dir(path).map_err(about)? {
            modes(&entry.map_err(about)?.path())?;
        }
    }
    Ok(())
}
