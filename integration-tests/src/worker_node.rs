//! A node that runs shards for a leader on another machine.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crate::{shards_of, signal};

/// The time after which a test gives up waiting.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A running `millrace serve` without HTTP. It is killed when this is dropped.
pub struct WorkerNode {
    process: Child,
    log: Arc<Mutex<String>>,
}

impl WorkerNode {
    /// Starts this command, which becomes the worker node.
    pub fn start(command: &mut Command) -> WorkerNode {
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
        WorkerNode { process, log }
    }

    /// Returns the process ids of its shards.
    pub fn shards(&self) -> Vec<u32> {
        shards_of(self.process.id())
    }

    /// Returns the log so far.
    pub fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Polls until `holds` returns true. Panics with the log after a minute.
    pub fn wait_until(&self, what: &str, holds: impl Fn(&WorkerNode) -> bool) {
        let since = Instant::now();
        while !holds(self) {
            assert!(since.elapsed() < TIMEOUT, "timed out waiting until {what}:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Asks the process to end and waits for it.
    pub fn stop(mut self) -> ExitStatus {
        signal(self.process.id(), "TERM");
        let since = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().unwrap() {
                return status;
            }
            assert!(since.elapsed() < TIMEOUT, "the machine did not end:\n{}", self.log());
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

impl Drop for WorkerNode {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A file with a secret. It is removed when this is dropped.
pub struct SecretFile(PathBuf);

impl SecretFile {
    /// Writes a file. `name` must be unique within this process.
    pub fn new(name: &str, secret: &str) -> SecretFile {
        let path = std::env::temp_dir().join(format!("millrace-{name}-{}", std::process::id()));
        std::fs::write(&path, secret).unwrap();
        SecretFile(path)
    }

    /// Returns the path of the file.
    pub fn path(&self) -> &str {
        self.0.to_str().unwrap()
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}
