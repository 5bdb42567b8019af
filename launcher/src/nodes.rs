//! One model on several machines: the flags, and what this machine is among them.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use millrace_router::engine::OtherNodes;
use millrace_router::engine::node::Node;
use millrace_shard::Secret;
use tokio::time::{Instant, sleep};

/// The variable that holds the secret of the group.
pub(crate) const GROUP_SECRET: &str = "MILLRACE_GROUP_SECRET";

/// How long the leader waits until the name of its own machine is known: names of a new pod are late.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

/// Which machines compute the model together. The variables are those that LeaderWorkerSet sets in Kubernetes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several machines")]
pub(crate) struct NodesArgs {
    /// Machines that --num-shard is spread over; each runs the same command with its own --node-rank
    #[arg(long, env = "LWS_GROUP_SIZE", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    nnodes: Option<u32>,
    /// This machine among them. 0 is the leader, which serves HTTP; the others run their share of the shards for it
    #[arg(long, env = "LWS_WORKER_INDEX", default_value_t = 0, value_name = "K")]
    node_rank: u32,
    /// The leader's name or address, as the other machines reach it
    #[arg(long, env = "LWS_LEADER_ADDRESS", value_name = "HOST")]
    leader_address: Option<String>,
    /// Port of the leader that the shards of the other machines connect to
    #[arg(long, env = "LEADER_PORT", default_value_t = 29500, value_name = "PORT")]
    leader_port: u16,
    /// File with the secret that the machines know each other by, of 16 bytes or more; else the variable
    /// MILLRACE_GROUP_SECRET holds it
    #[arg(long, env = "GROUP_SECRET_FILE", value_name = "PATH")]
    group_secret_file: Option<PathBuf>,
}

/// What this machine is.
#[derive(Debug)]
pub(crate) enum Role {
    /// The only one.
    Alone,
    /// The first of several.
    Leader(Places),
    /// Another one.
    Worker(Worker),
}

/// What the leader is told, before names are looked up.
#[derive(Debug)]
pub(crate) struct Places {
    host: String,
    port: u16,
    local_ranks: usize,
    secret: Secret,
}

/// A machine that works for the leader.
pub(crate) struct Worker {
    /// Its ranks, and where they connect to.
    pub(crate) node: Node,
    /// The secret, for the environment of its shards.
    pub(crate) secret: OsString,
}

impl std::fmt::Debug for Worker {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.node.fmt(f)
    }
}

/// The leader, on an address of this machine.
#[derive(Debug)]
pub(crate) struct Leader(OtherNodes);

impl NodesArgs {
    /// How many machines there are.
    pub(crate) fn count(&self) -> usize {
        self.nnodes.unwrap_or(1) as usize
    }

    /// What this machine is, of a model on `num_shard` ranks.
    ///
    /// # Errors
    /// If flags are missing, or contradict each other.
    pub(crate) fn role(&self, num_shard: usize) -> Result<Role> {
        let NodesArgs { node_rank, leader_port: port, .. } = *self;
        let nnodes = self.nnodes.unwrap_or(1);
        ensure!(
            node_rank < nnodes,
            "--node-rank {node_rank}: with --nnodes {nnodes} the machines are 0 to {}",
            nnodes - 1
        );
        if nnodes == 1 {
            return Ok(Role::Alone);
        }
        let local_ranks = num_shard / nnodes as usize;
        ensure!(
            local_ranks > 0 && num_shard.is_multiple_of(nnodes as usize),
            "--num-shard {num_shard} is the number of shards on all machines together: give a multiple of --nnodes {nnodes}"
        );
        let Some(host) = self.leader_address.clone().filter(|host| !host.is_empty()) else {
            bail!("--nnodes {nnodes} needs --leader-address: the name or address of machine 0");
        };
        let everywhere = host.parse().is_ok_and(|ip: IpAddr| ip.is_unspecified());
        ensure!(
            !everywhere,
            "--leader-address {host}: other machines cannot reach this; name one address of machine 0"
        );
        let text = self.secret()?;
        let secret = Secret::new(text.as_encoded_bytes()).with_context(|| match &self.group_secret_file {
            Some(path) => format!("--group-secret-file {}", path.display()),
            None => GROUP_SECRET.to_owned(),
        })?;
        if node_rank == 0 {
            return Ok(Role::Leader(Places { host, port, local_ranks, secret }));
        }
        let first = node_rank as usize * local_ranks;
        let leader = with_port(&host, port);
        let node = Node { ranks: first..first + local_ranks, world_size: num_shard, leader };
        Ok(Role::Worker(Worker { node, secret: text }))
    }

    /// What is in the file, or else in the variable, without the end of its line.
    fn secret(&self) -> Result<OsString> {
        let text = match &self.group_secret_file {
            Some(path) => read(path)?,
            None => match std::env::var(GROUP_SECRET) {
                Ok(text) => text,
                Err(std::env::VarError::NotUnicode(_)) => bail!("{GROUP_SECRET} is not text"),
                Err(std::env::VarError::NotPresent) => bail!(
                    "--nnodes needs a secret that all machines share: --group-secret-file or {GROUP_SECRET}, of {} bytes or more",
                    Secret::SHORTEST
                ),
            },
        };
        Ok(text.trim_end().into())
    }
}

fn read(path: &Path) -> Result<String> {
    let about = || format!("--group-secret-file {}", path.display());
    let text = std::fs::read_to_string(path).with_context(about)?;
    // It also goes into the environment of processes.
    ensure!(!text.contains('\0'), "{}: not text", about());
    Ok(text)
}

/// The secret that a parent has put into this shard's environment.
///
/// # Errors
/// If it is too short.
pub(crate) fn secret_of_environment() -> Result<Option<Secret>> {
    let text = std::env::var_os(GROUP_SECRET);
    Ok(text.map(|text| Secret::new(text.as_encoded_bytes())).transpose()?)
}

/// `host:port`; an IPv6 address gets its brackets.
fn with_port(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

impl Places {
    /// Finds the address of this machine that the leader's name stands for.
    ///
    /// # Errors
    /// If the name stands for nothing, or for another machine.
    pub(crate) async fn listen(self) -> Result<Leader> {
        let Places { host, port, local_ranks, secret } = self;
        let mut told = false;
        let deadline = Instant::now() + NAMED_WITHIN;
        let listen = loop {
            match own_address(&host, port).await {
                Ok(address) => break address,
                Err(error) if Instant::now() >= deadline => {
                    return Err(error.context(format!("--leader-address {host}")));
                }
                Err(error) if !told => {
                    told = true;
                    tracing::info!("--leader-address {host}: {error:#}; trying again for a while");
                }
                Err(_) => {}
            }
            sleep(Duration::from_secs(1)).await;
        };
        Ok(Leader(OtherNodes { listen, secret, local_ranks }))
    }
}

/// The first address of `host` that belongs to this machine.
async fn own_address(host: &str, port: u16) -> Result<SocketAddr> {
    let mut found = Vec::new();
    for address in tokio::net::lookup_host(with_port(host, port)).await? {
        let ip = address.ip();
        // Only own addresses can be listened on.
        if std::net::TcpListener::bind((ip, 0)).is_ok() {
            return Ok(address);
        }
        found.push(ip.to_string());
    }
    bail!("this is machine 0, and {} is none of its addresses", found.join(", "))
}

impl Leader {
    /// What the ranks of this machine are told in addition.
    pub(crate) fn shard_flags(&self) -> Vec<OsString> {
        let OtherNodes { listen, local_ranks, .. } = &self.0;
        vec![format!("--wire=tcp:{}", listen.ip()).into(), format!("--host-ranks={local_ranks}").into()]
    }

    /// For the engine.
    pub(crate) fn others(self) -> OtherNodes {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn args(nnodes: Option<u32>, node_rank: u32) -> NodesArgs {
        let leader_address = Some("fe80::1".into());
        NodesArgs { nnodes, node_rank, leader_address, leader_port: 29500, group_secret_file: None }
    }

    fn with_secret(text: &str, args: NodesArgs, num_shard: usize) -> Result<Role> {
        let file =
            std::env::temp_dir().join(format!("millrace-secret-{}-{}", std::process::id(), text.len()));
        std::fs::write(&file, text).unwrap();
        let role = NodesArgs { group_secret_file: Some(file.clone()), ..args }.role(num_shard);
        std::fs::remove_file(file).unwrap();
        role
    }

    #[test]
    fn each_machine_has_its_ranks() {
        assert!(matches!(args(None, 0).role(4), Ok(Role::Alone)));
        assert!(matches!(args(Some(1), 0).role(4), Ok(Role::Alone)));
        let secret = "a secret of the right length\n";
        match with_secret(secret, args(Some(3), 2), 6).unwrap() {
            Role::Worker(Worker { node, secret }) => {
                assert_eq!((node.ranks, node.world_size), (4..6, 6));
                assert_eq!(node.leader, "[fe80::1]:29500");
                assert_eq!(secret, "a secret of the right length");
            }
            role => panic!("{role:?}"),
        }
        let leader = with_secret(&secret[1..], args(Some(2), 0), 6);
        assert!(matches!(leader, Ok(Role::Leader(Places { local_ranks: 3, .. }))), "{leader:?}");
    }

    #[test]
    fn flags_that_do_not_fit_are_refused_by_name() {
        let secret = "another secret, which is long enough";
        let at = |host: Option<&str>| NodesArgs { leader_address: host.map(Into::into), ..args(Some(2), 0) };
        for (outcome, text) in [
            (args(None, 1).role(4), "--node-rank 1: with --nnodes 1 the machines are 0 to 0"),
            (args(Some(2), 2).role(4), "--node-rank 2: with --nnodes 2 the machines are 0 to 1"),
            (args(Some(2), 0).role(3), "give a multiple of --nnodes 2"),
            (args(Some(2), 0).role(1), "give a multiple of --nnodes 2"),
            (with_secret(secret, at(None), 4), "--nnodes 2 needs --leader-address"),
            (with_secret(secret, at(Some("::")), 4), "--leader-address ::: other machines cannot reach this"),
            (with_secret("fifteen letters\n\n", args(Some(2), 0), 4), "has 15 bytes; at least 16"),
        ] {
            let error = format!("{:#}", outcome.unwrap_err());
            assert!(error.contains(text), "{error}");
        }
    }

    #[tokio::test]
    async fn the_leader_listens_on_an_address_of_its_own() {
        let own = own_address("localhost", 29500).await.unwrap();
        assert!(own.ip().is_loopback() && own.port() == 29500, "{own}");
        let other = own_address("192.0.2.1", 1).await.unwrap_err().to_string();
        assert!(other.contains("192.0.2.1 is none of its addresses"), "{other}");
    }
}
