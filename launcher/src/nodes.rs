//! One model on several machines: the flags, and the role of this machine.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use clap::Args;
use millrace_formats::regular_file;
use millrace_router::engine::OtherNodes;
use millrace_router::engine::node::Node;
use millrace_shard::Secret;
use millrace_shard::collective::Transport;
use tokio::time::{Instant, sleep};

/// Environment variable with the secret of the group.
pub(crate) const GROUP_SECRET: &str = "MILLRACE_GROUP_SECRET";

/// Longest time that the leader waits until its own name resolves. The names of a new pod appear
/// late.
const NAMED_WITHIN: Duration = Duration::from_secs(30);

/// Flags for a model on several machines. LeaderWorkerSet sets the variables in Kubernetes.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Several machines")]
pub(crate) struct NodesArgs {
    /// Number of machines that share the shards; each runs the same command with its own
    /// --node-rank
    #[arg(long, env = "LWS_GROUP_SIZE", value_name = "N", value_parser = clap::value_parser!(u32).range(1..=64))]
    nnodes: Option<u32>,
    /// Number of this machine. 0 is the leader, which serves HTTP; the others run shards for it
    #[arg(long, env = "LWS_WORKER_INDEX", default_value_t = 0, value_name = "K")]
    node_rank: u32,
    /// Name or address of the leader, as the other machines reach it
    #[arg(long, env = "LWS_LEADER_ADDRESS", value_name = "HOST")]
    leader_address: Option<String>,
    /// Port of the leader for the shards of the other machines
    #[arg(long, env = "LEADER_PORT", default_value_t = 29500, value_name = "PORT")]
    leader_port: u16,
    /// File with the secret that the machines share, at least 16 bytes; if absent, the variable
    /// MILLRACE_GROUP_SECRET
    #[arg(long, env = "GROUP_SECRET_FILE", value_name = "PATH")]
    group_secret_file: Option<PathBuf>,
}

/// Role of this machine.
#[derive(Debug)]
pub(crate) enum Role {
    /// The only machine.
    Alone,
    /// The first of several machines.
    Leader(LeaderOptions),
    /// A machine that runs shards for the leader.
    Worker(WorkerNode),
}

/// Options of the leader, before its name is resolved.
#[derive(Debug)]
pub(crate) struct LeaderOptions {
    host: String,
    port: u16,
    local_ranks: usize,
    secret: Secret,
}

/// A machine that runs shards for the leader.
pub(crate) struct WorkerNode {
    /// Its ranks, and the address that they connect to.
    pub(crate) node: Node,
    /// The secret of the group, for the environment of its shards.
    pub(crate) secret: OsString,
}

impl std::fmt::Debug for WorkerNode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.node.fmt(f)
    }
}

/// The leader, with an address of this machine.
#[derive(Debug)]
pub(crate) struct Leader(OtherNodes);

/// The ranks of this machine, and their way to each other.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LocalRanks {
    /// Number of ranks on this machine.
    pub(crate) count: usize,
    /// Transport of the collectives over host memory. Only rank 0 uses it.
    pub(crate) transport: Transport,
}

impl NodesArgs {
    /// Returns the number of machines.
    pub(crate) fn count(&self) -> usize {
        self.nnodes.unwrap_or(1) as usize
    }

    /// Returns whether this machine computes for a leader, and serves no HTTP.
    pub(crate) fn is_worker(&self) -> bool {
        self.count() > 1 && self.node_rank > 0
    }

    /// Returns the role of this machine for a model on `num_shard` ranks.
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
            "--num-shard {num_shard} is the number of shards on all machines together: give a multiple of --nnodes \
             {nnodes}"
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
            return Ok(Role::Leader(LeaderOptions { host, port, local_ranks, secret }));
        }
        let first = node_rank as usize * local_ranks;
        let leader = with_port(&host, port);
        let node = Node { ranks: first..first + local_ranks, world_size: num_shard, leader };
        Ok(Role::Worker(WorkerNode { node, secret: text }))
    }

    /// Reads the secret from the file or the variable, without the end of its line.
    fn secret(&self) -> Result<OsString> {
        let text = match &self.group_secret_file {
            Some(path) => read(path)?,
            None => match std::env::var(GROUP_SECRET) {
                Ok(text) => text,
                Err(std::env::VarError::NotUnicode(_)) => bail!("{GROUP_SECRET} is not text"),
                Err(std::env::VarError::NotPresent) => bail!(
                    "--nnodes needs a secret that all machines share: --group-secret-file or {GROUP_SECRET}, of {} bytes or more",
                    Secret::MIN_LENGTH
                ),
            },
        };
        Ok(text.trim_end().into())
    }
}

/// The maximum number of bytes of the file with the secret.
const MAX_SECRET: u64 = 64 << 10;

fn read(path: &Path) -> Result<String> {
    let about = || format!("--group-secret-file {}", path.display());
    let text = regular_file::read_text(path, MAX_SECRET).with_context(about)?;
    // The secret is also passed on in an environment variable, which cannot hold NUL.
    ensure!(!text.contains('\0'), "{}: not text", about());
    Ok(text)
}

/// Reads the secret from the environment of this shard.
///
/// # Errors
/// If it is too short.
pub(crate) fn secret_of_environment() -> Result<Option<Secret>> {
    let text = std::env::var_os(GROUP_SECRET);
    Ok(text.map(|text| Secret::new(text.as_encoded_bytes())).transpose()?)
}

/// Formats `host:port`, with brackets around an IPv6 address.
fn with_port(host: &str, port: u16) -> String {
    match host.parse() {
        Ok(IpAddr::V6(ip)) => format!("[{ip}]:{port}"),
        _ => format!("{host}:{port}"),
    }
}

impl LeaderOptions {
    /// Resolves the leader's name to an address of this machine.
    ///
    /// # Errors
    /// If the name does not resolve, or resolves to another machine.
    pub(crate) async fn listen(self) -> Result<Leader> {
        let LeaderOptions { host, port, local_ranks, secret } = self;
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
        // A process can only listen on addresses of its own machine.
        if std::net::TcpListener::bind((ip, 0)).is_ok() {
            return Ok(address);
        }
        found.push(ip.to_string());
    }
    bail!("this is machine 0, and {} is not one of its addresses", found.join(", "))
}

impl Leader {
    /// The ranks of this machine, which reach those of the other machines by TCP.
    pub(crate) fn local_ranks(&self) -> LocalRanks {
        let OtherNodes { listen, local_ranks, .. } = &self.0;
        LocalRanks { count: *local_ranks, transport: Transport::Tcp(listen.ip()) }
    }

    /// Returns the options for the engine.
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
            Role::Worker(WorkerNode { node, secret }) => {
                assert_eq!((node.ranks, node.world_size), (4..6, 6));
                assert_eq!(node.leader, "[fe80::1]:29500");
                assert_eq!(secret, "a secret of the right length");
            }
            role => panic!("{role:?}"),
        }
        let leader = with_secret(&secret[1..], args(Some(2), 0), 6);
        assert!(matches!(leader, Ok(Role::Leader(LeaderOptions { local_ranks: 3, .. }))), "{leader:?}");
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
        assert!(other.contains("192.0.2.1 is not one of its addresses"), "{other}");
    }
}
