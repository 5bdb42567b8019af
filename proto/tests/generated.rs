//! Compares the committed code of the messages with what prost-build makes of `proto/shard.proto`.
//!
//! The code is committed so that a build of Millrace needs neither prost-build nor protox, which
//! compiles the contract without an installed `protoc`.

use std::path::Path;

/// The environment variable that makes the test write the code instead of comparing it.
const WRITE: &str = "MILLRACE_WRITE_PROTO";

/// The lines before the code.
const HEADER: &str = "\
// This file is made from proto/shard.proto. Do not edit it. This command makes it again:
// MILLRACE_WRITE_PROTO=1 cargo test --package millrace-proto --test generated

";

#[test]
fn the_committed_code_is_that_of_the_contract() {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    let folder = tempfile::tempdir().unwrap();
    let descriptors = protox::compile(["shard.proto"], [package.join("proto")]).unwrap();
    prost_build::Config::new().out_dir(folder.path()).compile_fds(descriptors).unwrap();
    let code = std::fs::read_to_string(folder.path().join("millrace.shard.v1.rs")).unwrap();
    let fresh = format!("{HEADER}{code}");
    let committed = package.join("src/generated.rs");
    if std::env::var_os(WRITE).is_some() {
        std::fs::write(&committed, &fresh).unwrap();
    }
    let committed = std::fs::read_to_string(&committed).unwrap();
    assert!(
        committed == fresh,
        "proto/src/generated.rs does not match proto/proto/shard.proto; \
         write it again with {WRITE}=1 cargo test --package millrace-proto --test generated"
    );
}
