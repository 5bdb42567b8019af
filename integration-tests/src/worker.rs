//! A machine that computes for a leader elsewhere.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::{shards_of, signal};

/// How long anything may take before a test gives up on it.
const PATIENCE: Duration = Duration::from_secs(60);

/// A running `millrace serve` that serves no HTTP, killed when dropped.
pub struct Worker {
    process: Child,
    log: Arc<Mutex<String>>,
}

impl Worker {
    /// Starts this command, which becomes the server.
    pub fn start(command: &mut Command) -> Worker {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.env_remove("MODEL_ID").spawn().unwrap();
        let log = Arc::new(Mutex::new(String::new()));
        let (lines, sink) = (BufReader::new(process.stderr.take().unwrap()), log.clone());
        std::thread::spawn(move || {
            for line in lines.lines().map_while(Result::ok) {
                let mut log = sink.lock().unwrap();
                log.push_str(&line);
                log.push('\n');
            }
        });
        Worker { process, log }
    }

    /// Process ids of its shards.
    pub fn shards(&self) -> Vec<u32> {
        shards_of(self.process.id())
    }

    /// What it has logged so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Polls until `holds`; panics with the log after a minute.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&Worker) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < PATIENCE, "waited in vain until {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks it to end, and waits for that.
    pub fn stop(mut self) -> ExitStatus {
        signal(self.process.id(), "TERM");
        let since = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < PATIENCE, "the machine did not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A file with a secret in it, removed when dropped.
pub struct SecretFile(PathBuf);

impl SecretFile {
    /// Writes a file; `name` is told apart within this process only.
    pub fn new(name: &str, secret: &str) -> SecretFile {
        let path = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        std::fs::write(&path, secret).unwrap();
        SecretFile(path)
    }

    /// Its path.
    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// A port that nobody listens on.
pub fn free_port() -> String {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port().to_string()
}
