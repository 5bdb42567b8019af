//! Process 1 of a container.
//!
//! The kernel treats process 1 of a PID namespace unlike others: signals without a handler have no
//! effect on it, so that Ctrl-C would not end `millrace quantize`, and it inherits all orphans,
//! which stay as zombies until it waits for them. Therefore a program that finds itself to be
//! process 1 runs its command in a child, and only passes on signals and waits.

use std::io;
use std::mem::MaybeUninit;
use std::os::unix::process::CommandExt;
use std::process::Command;

use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait};

/// Whether this is process 1.
pub(crate) fn is_process_1() -> bool {
    std::process::id() == 1
}

/// Runs this program again as a child, with the same arguments, until that ends. Returns its exit
/// code, or 128 and the number of the signal that has ended it, as shells do.
///
/// # Errors
/// If the child cannot be started.
pub(crate) fn run() -> io::Result<u8> {
    // Signals wait from here on, so that none is lost while the child starts.
    let signals = all_signals();
    change_mask(libc::SIG_BLOCK, &signals)?;
    let mut arguments = std::env::args_os();
    let mut command = Command::new(std::env::current_exe()?);
    if let Some(name) = arguments.next() {
        command.arg0(name);
    }
    // SAFETY: the function only makes a system call, which is allowed after `fork`.
    unsafe { command.pre_exec(move || change_mask(libc::SIG_UNBLOCK, &signals)) };
    let child = Pid::from_child(&command.args(arguments).spawn()?);
    loop {
        match next_signal(&signals)? {
            Received { number: libc::SIGCHLD, .. } => {
                if let Some(status) = reap(child)? {
                    return Ok(exit_code(status));
                }
            }
            // The terminal has sent this signal to the child too: a second one would end a server
            // that is draining.
            Received { from_kernel: true, .. } => {}
            Received { number, .. } => {
                if let Some(signal) = Signal::from_named_raw(number) {
                    // The child may have ended; SIGCHLD follows.
                    let _ = kill_process(child, signal);
                }
            }
        }
    }
}

/// Waits for every child that has ended. Returns the status of `child` if it is one of them.
fn reap(child: Pid) -> io::Result<Option<WaitStatus>> {
    let mut own = None;
    loop {
        match wait(WaitOptions::NOHANG) {
            Ok(Some((pid, status))) if pid == child => own = Some(status),
            Ok(Some(_)) => {}
            Ok(None) | Err(rustix::io::Errno::CHILD) => return Ok(own),
            Err(error) => return Err(error.into()),
        }
    }
}

fn exit_code(status: WaitStatus) -> u8 {
    let code = status.exit_status().or_else(|| status.terminating_signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok()).unwrap_or(1)
}

/// A signal to this process.
struct Received {
    number: i32,
    /// Whether the kernel has made it, as it does for the keys of a terminal.
    from_kernel: bool,
}

fn all_signals() -> libc::sigset_t {
    let mut signals = MaybeUninit::uninit();
    // SAFETY: the call initializes the set that it is given, and always succeeds.
    unsafe {
        libc::sigfillset(signals.as_mut_ptr());
        signals.assume_init()
    }
}

/// Blocks or unblocks signals for this thread, the only one.
fn change_mask(how: i32, signals: &libc::sigset_t) -> io::Result<()> {
    // SAFETY: the call only reads the set, which is initialized.
    let failed = unsafe { libc::pthread_sigmask(how, signals, std::ptr::null_mut()) };
    if failed == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(failed)) }
}

/// Waits for the next of these signals.
fn next_signal(signals: &libc::sigset_t) -> io::Result<Received> {
    loop {
        let mut info = MaybeUninit::<libc::siginfo_t>::uninit();
        // SAFETY: both pointers are to objects of the right type, and the call writes the second.
        let number = unsafe { libc::sigwaitinfo(signals, info.as_mut_ptr()) };
        if number > 0 {
            // SAFETY: the call has succeeded, so it has written the whole structure.
            let code = unsafe { info.assume_init() }.si_code;
            return Ok(Received { number, from_kernel: code == libc::SI_KERNEL });
        }
        let error = io::Error::last_os_error();
        // A stop and its end interrupt the call.
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[allow(clippy::zombie_processes, reason = "`waitpid` waits for the children")]
    fn exit_codes_are_those_of_shells() {
        let status = |shell: &str| {
            let child = Command::new("sh").args(["-c", shell]).spawn().unwrap();
            let pid = Pid::from_child(&child);
            rustix::process::waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1
        };
        assert_eq!(exit_code(status("exit 0")), 0);
        assert_eq!(exit_code(status("exit 7")), 7);
        assert_eq!(exit_code(status("kill -TERM $$")), 143);
    }
}
