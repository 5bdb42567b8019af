//! Starts and stops the real binary.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, OnceLock};

use crate::limits::{heartbeat_timeout, is_running};
use crate::{seconds, wait_limit, wait_until};

/// Returns the path of the `millrace` binary of this build. The first use builds it unless
/// `MILLRACE_BINARY_IS_BUILT` is set.
pub fn binary() -> &'static Path {
    static BINARY: OnceLock<PathBuf> = OnceLock::new();
    BINARY.get_or_init(|| {
        // target/PROFILE/deps/test-binary -> target/PROFILE/millrace
        let test = std::env::current_exe().unwrap();
        let folder = test.parent().and_then(Path::parent).unwrap();
        if std::env::var_os("MILLRACE_BINARY_IS_BUILT").is_some() {
            return folder.join("millrace");
        }
        let mut build = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
        // The folder of a profile has its name, except that of `dev`.
        let profile = folder.file_name().and_then(|name| name.to_str()).unwrap_or("debug");
        if profile != "debug" {
            build.args(["build", "--quiet", "--package", "millrace", "--bin", "millrace"]);
            build.args(["--profile", profile]);
        } else {
            // The same packages and features as `cargo xtask test`, because Cargo would build every
            // crate again for others. The test `version` makes Cargo build the binary.
            let features = "--features=millrace/cpu-sim,millrace-router/fuzz";
            build.args(["test", "--quiet", "--workspace", features, "--test", "version", "--no-run"]);
        }
        assert!(build.status().unwrap().success(), "cannot build the millrace binary");
        folder.join("millrace")
    })
}

/// A running `millrace serve`. It is killed when this is dropped.
pub struct Server {
    process: Child,
    address: String,
    log: Arc<Mutex<String>>,
}

impl Server {
    /// Starts the server with these flags on a free port and waits until it is ready.
    pub fn start(flags: &[&str]) -> Server {
        Server::start_with_env(&[], flags)
    }

    /// Starts the server with these environment variables and flags, and waits until it is ready.
    pub fn start_with_env(variables: &[(&str, &str)], flags: &[&str]) -> Server {
        let server = Server::spawn(variables, flags);
        server.wait_until_ready();
        server
    }

    /// Starts the server of another binary than this build's with these flags on a free port, and
    /// waits until it is ready.
    pub fn start_binary(binary: &Path, flags: &[&str]) -> Server {
        let server = Server::listening(arguments(Command::new(binary), "0", &[], flags));
        server.wait_until_ready();
        server
    }

    /// Starts the server and returns as soon as its port is open. The model may still be loading.
    pub fn start_loading(flags: &[&str]) -> Server {
        Server::spawn(&[], flags)
    }

    /// Starts the server with these environment variables and flags, and returns as soon as its
    /// port is open. The model may still be loading.
    pub fn start_loading_with_env(variables: &[(&str, &str)], flags: &[&str]) -> Server {
        Server::spawn(variables, flags)
    }

    /// Starts the server like [`start`](Self::start), with a limit in bytes on the writable memory
    /// of each of its processes. A process that needs more fails, and so does the test.
    pub fn start_with_memory_limit(memory: u64, flags: &[&str]) -> Server {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("ulimit -d {} && exec \"$0\" \"$@\"", memory >> 10)]).arg(binary());
        let server = Server::listening(arguments(shell, "0", &[], flags));
        server.wait_until_ready();
        server
    }

    /// Starts the server like [`start`](Self::start), with a limit on the size of files that can be
    /// set later and does not end the process that exceeds it: see
    /// [`fill_disks`](Self::fill_disks).
    pub fn start_with_full_disks_to_come(flags: &[&str]) -> Server {
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ && exec \"$0\" \"$@\""]).arg(binary());
        let server = Server::listening(arguments(shell, "0", &[], flags));
        server.wait_until_ready();
        server
    }

    /// Lets every write of the shards to a file fail behind its first `bytes`, as on a full disk.
    pub fn fill_disks(&self, bytes: u64) {
        for shard in shards_of(self.pid()) {
            let mut limit = Command::new("prlimit");
            let limit = limit.args(["--pid", &shard.to_string(), &format!("--fsize={bytes}")]);
            assert!(limit.status().unwrap().success(), "{limit:?}");
        }
    }

    /// Starts the server with a log that goes to `stderr` and cannot be read by the test, and waits
    /// until it is ready.
    pub fn start_with_stderr(stderr: Stdio, variables: &[(&str, &str)], flags: &[&str]) -> Server {
        // The log with the port cannot be read.
        let port = free_port();
        let process = command(&port, variables, flags).stderr(stderr).spawn().unwrap();
        let server = Server { process, address: format!("127.0.0.1:{port}"), log: Arc::default() };
        server.wait_until_ready();
        server
    }

    fn spawn(variables: &[(&str, &str)], flags: &[&str]) -> Server {
        Server::listening(command("0", variables, flags))
    }

    /// Starts a server and reads its address from its log.
    fn listening(mut server: Command) -> Server {
        let mut process = server.stderr(Stdio::piped()).spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let lines = BufReader::new(process.stderr.take().unwrap());
        let (found, address) = std::sync::mpsc::channel();
        let sink = log.clone();
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let url = line.split_once("listening on http").map(|(_, rest)| rest.trim_start_matches('s'));
                if let Some(address) = url.and_then(|url| url.strip_prefix("://")) {
                    // In a JSON log, more text follows the address.
                    let address = address.split('"').next().unwrap_or_default();
                    let _ = found.send(address.trim().to_owned());
                }
                let mut log = sink.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        match address.recv_timeout(wait_limit()) {
            Ok(address) => Server { process, address, log },
            Err(_) => {
                let _ = process.kill();
                panic!("the server did not say where it listens:\n{}", log.lock().unwrap())
            }
        }
    }

    /// Returns `http://host:port` + `path`.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Returns `host:port`.
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Returns the status and the body of a GET request.
    pub fn get(&self, path: &str) -> (u16, String) {
        crate::client::get(&self.url(path))
    }

    /// Returns the value of an unlabeled metric, or 0 before its first use.
    pub fn metric(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse().ok()).unwrap_or(0.0)
    }

    /// Returns the sum of a metric over all its labels, or 0 before its first use.
    pub fn metric_of_all(&self, name: &str) -> f64 {
        let (_, text) = self.get("/metrics");
        let series =
            text.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix('{')?.split_once("} "));
        series.filter_map(|(_, value)| value.parse::<f64>().ok()).sum()
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log contains this text. A separate thread writes the log shortly after the
    /// events.
    pub fn wait_for_log(&self, text: &str) {
        self.wait_until(&format!("the log says `{text}`"), |server| server.log().contains(text));
    }

    /// Returns the log of a process that has ended, with its last lines.
    pub(crate) fn whole_log(&self) -> String {
        // The thread that writes the log holds it until the process has closed it.
        self.wait_until("the log ends", |server| Arc::strong_count(&server.log) == 1);
        self.log()
    }

    /// Returns the process id.
    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Sends a signal by name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        signal(self.pid(), name);
    }

    /// Waits for the end of the process.
    pub fn wait(mut self) -> ExitStatus {
        let (process, log) = (&mut self.process, &self.log);
        let ended = || process.try_wait().unwrap().is_some();
        wait_until("the server has ended", ended, || log.lock().unwrap().clone());
        self.process.wait().unwrap()
    }

    /// Polls until `holds` returns true. Panics with the log after [`wait_limit`].
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Server) -> bool) {
        wait_until(what, || holds(self), || self.log());
    }

    /// Waits until the model is loaded. A server that has ended instead fails the test at once.
    pub fn wait_until_ready(&self) {
        self.wait_until("it is ready", |server| {
            let is_ready = server.get("/ready").0 == 200;
            assert!(is_ready || is_running(server.pid()), "the server has ended:\n{}", server.whole_log());
            is_ready
        });
    }

    /// Waits until the shards have been replaced `count` times, and checks that they were not
    /// replaced more often. The metric counts new shards only when they are ready.
    pub fn wait_for_restarts(&self, count: u32) {
        let restarts = || self.metric("millrace_shard_restarts_total");
        self.wait_until("the shards are replaced", |_| restarts() >= f64::from(count));
        assert_eq!(restarts(), f64::from(count), "{}", self.log());
    }

    /// Sends a signal by name to all shards. A shard may have ended by itself.
    pub fn signal_shards(&self, name: &str) {
        for shard in shards_of(self.pid()) {
            try_signal(shard, name);
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn command(port: &str, variables: &[(&str, &str)], flags: &[&str]) -> Command {
    arguments(Command::new(binary()), port, variables, flags)
}

/// Adds the arguments of `millrace serve` to a program that passes them on.
fn arguments(mut program: Command, port: &str, variables: &[(&str, &str)], flags: &[&str]) -> Command {
    program
        .args(["serve", "--port", port])
        .args(flags)
        .env_remove("MODEL_ID")
        .env("HEARTBEAT_TIMEOUT", seconds(heartbeat_timeout()))
        .envs(variables.iter().copied())
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    program
}

/// Sends a signal to a process.
pub fn signal(pid: u32, name: &str) {
    assert!(try_signal(pid, name), "cannot signal process {pid}");
}

/// Sends a signal to a process. Returns false if there is no such process any more.
pub fn try_signal(pid: u32, name: &str) -> bool {
    let mut kill = Command::new("kill");
    kill.arg(format!("-{name}")).arg(pid.to_string()).stderr(Stdio::null()).status().unwrap().success()
}

/// Returns the process ids of the shards that the server `pid` has started.
pub fn shards_of(pid: u32) -> Vec<u32> {
    children_of(pid, "shard")
}

/// Returns the process ids of the grammar workers of the server `pid`.
pub fn grammar_workers_of(pid: u32) -> Vec<u32> {
    children_of(pid, "grammar-worker")
}

/// Returns the process ids of the children that run this subcommand of the binary.
fn children_of(pid: u32, command: &str) -> Vec<u32> {
    let children =
        Command::new("ps").args(["-ww", "-o", "pid=,args=", "--ppid", &pid.to_string()]).output().unwrap();
    let of_line = |line: &str| {
        let mut words = line.split_whitespace();
        let pid = words.next()?.parse().ok()?;
        (words.nth(1) == Some(command)).then_some(pid)
    };
    String::from_utf8_lossy(&children.stdout).lines().filter_map(of_line).collect()
}

/// Returns the names of shared memory that shards have left or that is in use. Other programs of
/// the machine do not count.
pub fn named_shared_memory() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/dev/shm") else { return Vec::new() };
    let names = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    names.filter(|name| name.contains("millrace") || name.contains("nccl")).collect()
}

/// Returns the user and system time of a process in seconds.
pub fn cpu_seconds(pid: u32) -> f64 {
    // utime and stime.
    seconds_in_stat(pid, 11..13)
}

/// Returns the user and system time of the children that a process has waited for, in seconds.
pub fn cpu_seconds_of_ended_children(pid: u32) -> f64 {
    // cutime and cstime.
    seconds_in_stat(pid, 13..15)
}

/// Returns the sum of fields of `/proc/PID/stat`, which are ticks of 1/100 s. Field 0 is the first
/// one after the name.
fn seconds_in_stat(pid: u32, fields: Range<usize>) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let after_name = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let times = after_name.skip(fields.start).take(fields.len());
    times.filter_map(|ticks| ticks.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// Returns the memory in bytes that a process has written and that no file backs. Unlike the whole
/// resident memory, it does not depend on how much of the binary and of mapped files the system
/// keeps in memory.
pub fn private_bytes(pid: u32) -> u64 {
    bytes_in_status(pid, "RssAnon:")
}

/// Returns the resident memory of a process in bytes, for benchmarks.
pub fn resident_bytes(pid: u32) -> u64 {
    bytes_in_status(pid, "VmRSS:")
}

fn bytes_in_status(pid: u32, field: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let line = status.lines().find(|line| line.starts_with(field)).unwrap_or_default();
    line.split_whitespace().nth(1).and_then(|kib| kib.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Ports below those that Linux gives to outgoing connections and to listeners on port 0.
const FIRST_PORT: u32 = 12_000;
const LAST_PORT: u32 = 32_000;

/// Returns a port that no process listens on, for programs that must be told a port. Other tests
/// read the port from the log of a server that was started with port 0.
///
/// The system chooses no such port by itself, and a process returns each port once, so that nobody
/// takes the port before the test uses it.
pub fn free_port() -> String {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    loop {
        // Test processes that run at the same time begin at different ports.
        let number = std::process::id().wrapping_mul(37).wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed));
        let port = (FIRST_PORT + number % (LAST_PORT - FIRST_PORT)) as u16;
        if TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port.to_string();
        }
    }
}
