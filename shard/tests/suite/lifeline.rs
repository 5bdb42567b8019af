//! Tests that a shard ends with its parent.

use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use millrace_shard::{RankPlacement, RouterAddress, ShardOptions, run};
use millrace_test_patience::patience;

/// Variable that passes the path of the socket to the child.
const SOCKET: &str = "MILLRACE_TEST_LIFELINE_SOCKET";

/// The name of the test that is the body of that process.
const CHILD: &str = "lifeline::child";

/// The body of the process that the other test starts. Its model never finishes loading.
#[test]
fn child() {
    let Some(socket) = std::env::var_os(SOCKET) else { return };
    let placement = RankPlacement {
        address: RouterAddress::Unix(socket.into()),
        secret: None,
        rank: 0,
        world_size: 1,
        previous_pool: None,
        lifeline: true,
    };
    let options =
        ShardOptions { max_step_tokens: 8, max_sequences: 1, threads: Some(1), ..ShardOptions::default() };
    let forever = || {
        loop {
            thread::sleep(Duration::from_secs(60));
        }
    };
    run(&placement, &options, Box::new(forever)).unwrap();
}

#[test]
fn a_closed_standard_input_ends_a_busy_shard() {
    let socket = std::env::temp_dir().join(format!("millrace-lifeline-{}.sock", std::process::id()));
    let listener = UnixListener::bind(&socket).unwrap();
    let mut shard = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", CHILD, "--nocapture"])
        .env(SOCKET, &socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The thread of the lifeline runs before the connection is opened.
    let connection = listener.accept().unwrap();
    std::fs::remove_file(&socket).unwrap();
    assert_eq!(shard.try_wait().unwrap(), None);

    drop(shard.stdin.take());
    let since = Instant::now();
    let status = loop {
        if let Some(status) = shard.try_wait().unwrap() {
            break status;
        }
        if since.elapsed() > patience(Duration::from_secs(120)) {
            shard.kill().unwrap();
            panic!("the shard has outlived its parent");
        }
        thread::sleep(Duration::from_millis(5));
    };
    assert_eq!(status.code(), Some(1));
    drop(connection);
}
