//! A private Docker engine, which changes nothing of this machine: its files are below target/, and
//! it makes no rules for packets.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Longest time until the engine answers, or has ended. Only an engine that hangs reaches it.
const PATIENCE: Duration = Duration::from_secs(300);

/// The network of the engine and its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Network {
    /// That of this machine, for builds with `--network=host`. There is no other.
    OfMachine,
    /// A new one, in which containers have the engine's usual bridge and publish ports, and from
    /// which nothing else can be reached.
    Private,
}

/// A running engine. It is ended when this is dropped.
pub(super) struct Engine {
    process: Child,
    socket: PathBuf,
}

impl Engine {
    /// Starts the engine with its files in `folder`, and waits until it answers.
    ///
    /// # Errors
    /// If it does not start. The message has the end of its log.
    pub(super) fn start(folder: &Path, network: Network) -> Result<Engine, String> {
        let socket = folder.join("docker.sock");
        let log = folder.join("dockerd.log");
        let output = File::create(&log).map_err(|e| format!("{}: {e}", log.display()))?;
        let errors = output.try_clone().map_err(|e| e.to_string())?;
        // The engine ends with this process, however that ends.
        let mut command = Command::new("setpriv");
        command.args(["--pdeathsig", "TERM"]);
        match network {
            Network::OfMachine => command.arg("dockerd"),
            Network::Private => command.args([
                "unshare",
                "--net",
                "sh",
                "-c",
                "ip link set lo up && exec dockerd \"$@\"",
                "sh",
            ]),
        };
        command.arg("-H").arg(format!("unix://{}", socket.display()));
        command.arg("--data-root").arg(folder.join("data"));
        command.arg("--exec-root").arg(folder.join("exec"));
        command.arg("--pidfile").arg(folder.join("dockerd.pid"));
        command.args(["--iptables=false", "--ip6tables=false", "--ip-masq=false", "--ip-forward=false"]);
        if network == Network::OfMachine {
            command.arg("--bridge=none");
        }
        eprintln!("$ {command:?}");
        let process = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn();
        let process = process.map_err(|e| format!("dockerd: {e}"))?;
        let mut engine = Engine { process, socket };
        let since = Instant::now();
        while !engine.answers() {
            let ended = engine.process.try_wait().is_ok_and(|status| status.is_some());
            if ended || since.elapsed() > PATIENCE {
                let text = std::fs::read_to_string(&log).unwrap_or_default();
                let lines: Vec<&str> = text.lines().collect();
                let end = lines[lines.len().saturating_sub(10)..].join("\n");
                return Err(format!("the engine does not start:\n{end}"));
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(engine)
    }

    fn answers(&self) -> bool {
        let mut version = self.docker();
        version.arg("version").stdout(Stdio::null()).stderr(Stdio::null());
        version.status().is_ok_and(|status| status.success())
    }

    /// Returns the address for `DOCKER_HOST`.
    pub(super) fn address(&self) -> String {
        format!("unix://{}", self.socket.display())
    }

    /// Returns a command of Debian's client for this engine. Another client in the path might not
    /// know this engine's version.
    pub(super) fn docker(&self) -> Command {
        let mut docker = Command::new("/usr/bin/docker");
        docker.env("DOCKER_HOST", self.address()).env("DOCKER_BUILDKIT", "1");
        docker
    }

    /// Returns a command that runs the program of its first argument in the engine's network.
    pub(super) fn inside(&self) -> Command {
        let mut nsenter = Command::new("nsenter");
        nsenter.arg("--target").arg(self.process.id().to_string()).args(["--net", "--"]);
        nsenter
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        // The engine ends its containers and its own containerd on SIGTERM.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let since = Instant::now();
        while since.elapsed() < PATIENCE {
            if self.process.try_wait().is_ok_and(|status| status.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        eprintln!("the engine, process {}, does not end", self.process.id());
    }
}
