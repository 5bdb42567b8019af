//! Compiles the `.proto` contract with protox, so that no `protoc` has to be installed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!("cargo:rerun-if-changed=proto/shard.proto");
    let descriptors = protox::compile(["shard.proto"], ["proto"])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
