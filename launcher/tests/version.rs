//! The binary itself. (A test of this package has cargo build it together with the tests of the
//! workspace.)

use std::process::Command;

#[test]
fn says_its_version() {
    let done = Command::new(env!("CARGO_BIN_EXE_millrace")).arg("--version").output().unwrap();
    assert!(done.status.success());
    let version = format!("millrace {}", env!("CARGO_PKG_VERSION"));
    assert!(String::from_utf8_lossy(&done.stdout).starts_with(&version));
}

#[test]
fn refuses_a_misspelt_flag_by_the_nearest_name() {
    let done =
        Command::new(env!("CARGO_BIN_EXE_millrace")).args(["serve", "--num-shards", "2"]).output().unwrap();
    assert_eq!(done.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&done.stderr).contains("--num-shard"));
}
