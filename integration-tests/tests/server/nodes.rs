//! Tests one model on two machines: two servers on one address, and two network namespaces.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Instant;

use millrace_integration_tests::{
    SecretFile, Server, WorkerNode, binary, free_port, long_generation, shards_of, signal, wait_for_end_of,
};

const SECRET: &str = "a secret that only the machines of this test know\n";

/// float32, because sums over shards are rounded differently, which would be visible in half
/// precision.
const MODEL: [&str; 4] = ["--model-id", "demo", "--dtype", "float32"];

/// Returns the text of one shard on one machine.
fn expected() -> String {
    long_generation(&Server::start(&MODEL), || {})
}

/// Returns the flags of two machines with this port.
fn pair<'a>(port: &'a str, secret: &'a SecretFile) -> Vec<&'a str> {
    let nodes = ["--num-shard", "2", "--nnodes", "2", "--leader-address", "127.0.0.1"];
    [&MODEL[..], &nodes, &["--leader-port", port, "--group-secret-file", secret.path()]].concat()
}

fn worker_node(flags: &[&str]) -> WorkerNode {
    WorkerNode::start(Command::new(binary()).args(["serve", "--node-rank", "1"]).args(flags))
}

fn is_gone(pid: u32) -> bool {
    !Path::new(&format!("/proc/{pid}")).exists()
}

fn all_end(server: Server, worker_node: WorkerNode) {
    let shards = [shards_of(server.pid()), worker_node.shards()].concat();
    assert_eq!(shards.len(), 2);
    server.signal("TERM");
    assert_eq!(server.wait().code(), Some(0));
    let started_again = worker_node.shards();
    assert_eq!(worker_node.stop().code(), Some(0));
    wait_for_end_of(&[shards, started_again].concat());
}

#[test]
fn two_machines_match_one_shard_through_losses_on_both() {
    let expected = expected();
    let (port, secret) = (free_port(), SecretFile::new("nodes-losses", SECRET));
    let flags = pair(&port, &secret);
    let worker_node = worker_node(&flags);
    let server = Server::start(&flags);
    assert_eq!((shards_of(server.pid()).len(), worker_node.shards().len()), (1, 1));
    assert_eq!(long_generation(&server, || {}), expected);

    let shards = || [shards_of(server.pid())[0], worker_node.shards()[0]];
    for (restarts, (machine, name)) in (0..).zip([(1, "KILL"), (0, "KILL"), (1, "STOP")]) {
        let before = shards();
        assert_eq!(
            long_generation(&server, || signal(before[machine], name)),
            expected,
            "{name} on {machine}"
        );
        server.wait_for_restarts(restarts + 1);
        worker_node.wait_until("the old shards are gone", |_| before.iter().all(|&pid| is_gone(pid)));
    }
    all_end(server, worker_node);
}

#[test]
fn a_leader_that_dies_is_waited_for() {
    let (port, secret) = (free_port(), SecretFile::new("nodes-leader", SECRET));
    let flags = pair(&port, &secret);
    let worker_node = worker_node(&flags);
    for _ in 0..2 {
        let server = Server::start(&flags);
        let shard = worker_node.shards()[0];
        server.signal("KILL");
        let _ = server.wait();
        worker_node.wait_until("its shard has ended", |worker_node| {
            worker_node.shards().first().is_some_and(|&now| now != shard)
        });
    }
    all_end(Server::start(&flags), worker_node);
}

#[test]
fn a_node_with_a_wrong_secret_is_refused_and_both_log_it() {
    let port = free_port();
    let (right, wrong) = (
        SecretFile::new("nodes-right", SECRET),
        SecretFile::new("nodes-wrong", "not the secret of this test"),
    );
    let server = Server::start_loading(&pair(&port, &right));
    let other = worker_node(&pair(&port, &wrong));
    let refusal = "the two sides have different secrets";
    server.wait_until("the leader says so", |server| server.log().contains(refusal));
    other.wait_until("the other machine says so", |other| other.log().contains(refusal));
    // The node does not give up, because the error may be corrected.
    other.wait_until("it tries again", |other| other.log().matches(refusal).count() > 2);
    assert_eq!(server.get("/ready").0, 503);
    assert_eq!(other.stop().code(), Some(0));

    // With four shards on two machines, ranks 2 and 3 join.
    let mut flags = pair(&port, &right);
    flags[5] = "4";
    let other = worker_node(&flags);
    other.wait_until("the sizes differ", |other| other.log().contains("has 2 ranks, and the rank expects 4"));
    server.wait_for_log("has 2 ranks, and the rank expects 4");
    drop(other);

    let worker_node = worker_node(&pair(&port, &right));
    server.wait_until("the right one is let in", |server| server.get("/ready").0 == 200);
    all_end(server, worker_node);
}

#[test]
fn flags_are_checked_before_anything_is_started() {
    let short = SecretFile::new("nodes-short", "too short");
    let several = ["--num-shard", "2", "--nnodes", "2", "--leader-address", "127.0.0.1"];
    for (flags, wanted) in [
        (&several[..], "--nnodes needs a secret that all machines share"),
        (&[&several[..], &["--group-secret-file", short.path()]].concat(), "at least 16"),
        (&["--num-shard", "3", "--nnodes", "2"], "give a multiple of --nnodes 2"),
        (&["--num-shard", "2", "--nnodes", "2"], "--nnodes 2 needs --leader-address"),
        // On CPUs there is one shard for each machine.
        (&["--device", "cpu", "--nnodes", "2"], "--nnodes 2 needs --leader-address"),
        (&["--node-rank", "1"], "--node-rank 1: with --nnodes 1"),
    ] {
        let refused = Command::new(binary())
            .args(["serve", "--port", "0"])
            .args(flags)
            .env_remove("MILLRACE_GROUP_SECRET")
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let error = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(1), "{error}");
        assert!(error.contains(wanted), "{error}");
    }
}

/// Two machines as network namespaces, connected by a pair of virtual interfaces.
struct Machines {
    names: [String; 2],
}

const ADDRESSES: [&str; 2] = ["10.207.41.1", "10.207.41.2"];

/// The environment variable with the namespace of the second machine, for the test inside the
/// first.
const OTHER: &str = "MILLRACE_TEST_OTHER_MACHINE";

fn ip(arguments: &str) -> Result<(), String> {
    let output = Command::new("ip").args(arguments.split(' ')).output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(format!("ip {arguments}: {}", String::from_utf8_lossy(&output.stderr).trim())),
    }
}

impl Machines {
    fn new() -> Result<Machines, String> {
        let names = [0, 1].map(|n| format!("millrace-{}-{n}", std::process::id()));
        // The namespaces are also removed if one of these commands fails.
        let machines = Machines { names };
        let [one, other] = &machines.names;
        ip(&format!("netns add {one}"))?;
        ip(&format!("netns add {other}"))?;
        ip(&format!("-n {one} link add cable type veth peer name cable netns {other}"))?;
        for (name, address) in machines.names.iter().zip(ADDRESSES) {
            ip(&format!("-n {name} addr add {address}/24 dev cable"))?;
            ip(&format!("-n {name} link set cable up"))?;
            ip(&format!("-n {name} link set lo up"))?;
        }
        Ok(machines)
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        // The link is removed with its ends.
        self.names.iter().for_each(|name| drop(ip(&format!("netns del {name}"))));
    }
}

#[test]
fn two_network_namespaces_are_two_machines() {
    let machines = match Machines::new() {
        Ok(machines) => machines,
        Err(why) => return eprintln!("skipped: no network namespaces here: {why}"),
    };
    let [one, other] = &machines.names;
    let inside = Command::new("ip")
        .args(["netns", "exec", one])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "nodes::inside_the_leaders_machine", "--nocapture"])
        .env(OTHER, other)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let said = [inside.stdout, inside.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert!(inside.status.success(), "{}", said.join("\n"));
}

/// The part of the test above that runs inside the first namespace. It does nothing on its own.
#[test]
fn inside_the_leaders_machine() {
    let Ok(other) = std::env::var(OTHER) else { return };
    let expected = expected();
    let secret = SecretFile::new("nodes-namespaces", SECRET);
    let flags = [
        "--num-shard",
        "2",
        "--nnodes",
        "2",
        "--leader-address",
        ADDRESSES[0],
        "--group-secret-file",
        secret.path(),
    ];
    // The second machine is configured in the way of LeaderWorkerSet.
    let worker_node = WorkerNode::start(
        Command::new("ip")
            .args(["netns", "exec", &other])
            .arg(binary())
            .args([&["serve", "--num-shard", "2"], &MODEL[..]].concat())
            .envs([("LWS_GROUP_SIZE", "2"), ("LWS_WORKER_INDEX", "1"), ("LWS_LEADER_ADDRESS", ADDRESSES[0])])
            .env("MILLRACE_GROUP_SECRET", SECRET.trim_end()),
    );
    let server = Server::start(&[&MODEL[..], &flags].concat());
    server.wait_for_log(&format!("rank 1 has connected from {}", ADDRESSES[1]));
    assert_eq!(long_generation(&server, || {}), expected);

    let shard = worker_node.shards()[0];
    assert_eq!(long_generation(&server, || signal(shard, "KILL")), expected);
    worker_node.wait_until("the next shard is there", |worker_node| worker_node.shards().len() == 1);

    // The link goes down. Neither side is notified, and each detects it by itself.
    let shard = worker_node.shards()[0];
    let through = long_generation(&server, || {
        ip("link set cable down").unwrap();
        let since = Instant::now();
        worker_node.wait_until("the rank behind the cable has ended", |_| is_gone(shard));
        eprintln!("the rank ended after {:.1} s without a cable", since.elapsed().as_secs_f64());
        ip("link set cable up").unwrap();
    });
    assert_eq!(through, expected);
    all_end(server, worker_node);
}
