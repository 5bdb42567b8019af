//! A node that runs shards for a leader on another machine.

use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};

use crate::limits::heartbeat_timeout;
use crate::{seconds, shards_of, signal, wait_until};

/// A running `millrace serve` without HTTP. It is killed when this is dropped.
pub struct WorkerNode {
    process: Child,
    log: Arc<Mutex<String>>,
}

impl WorkerNode {
    /// Starts this command, which becomes the worker node.
    pub fn start(command: &mut Command) -> WorkerNode {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.env_remove("MODEL_ID").env("HEARTBEAT_TIMEOUT", seconds(heartbeat_timeout()));
        let mut process = command.spawn().unwrap();
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

    /// Polls until `holds` returns true. Panics with the log after
    /// [`wait_limit`](crate::wait_limit).
    pub fn wait_until(&self, what: &str, holds: impl Fn(&WorkerNode) -> bool) {
        wait_until(what, || holds(self), || self.log());
    }

    /// Asks the process to end and waits for it.
    pub fn stop(mut self) -> ExitStatus {
        signal(self.process.id(), "TERM");
        let (process, log) = (&mut self.process, &self.log);
        let ended = || process.try_wait().unwrap().is_some();
        wait_until("the machine has ended", ended, || log.lock().unwrap().clone());
        self.process.wait().unwrap()
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
