//! Chooses the device and the number of shards for `--device auto` and an absent `--num-shard`.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use millrace_model::{families, split};

use crate::cli::{ActivationsArg, DeviceArg, EngineArgs, KvCacheArg, ModelArgs, own_executable};
use crate::model;

/// Longest time that the driver may take to list the GPUs. It takes seconds on machines with many
/// GPUs and without a persistence daemon.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// Time between two checks whether the driver has answered.
const POLL: Duration = Duration::from_millis(2);

/// Sets `engine.device` and `engine.num_shard` for a model on `nnodes` machines, of which this is
/// one. Returns a description of the choice for the log, if there was one to make.
///
/// # Errors
/// If the requested GPUs are not available.
pub(crate) fn settle(engine: &mut EngineArgs, model: &ModelArgs, nnodes: usize) -> Result<Option<String>> {
    let decided = choose(engine, model, nnodes)?;
    if let Some(quantize) = model.quantize {
        let (name, on_cpu) = (quantize.name(), matches!(engine.device, DeviceArg::Cpu | DeviceArg::Null));
        ensure!(
            on_cpu || !quantize.needs_cpu(),
            "--quantize {name} needs the CPU; give --device cpu as well"
        );
    }
    let on_cpu = matches!(engine.device, DeviceArg::Cpu | DeviceArg::Null);
    ensure!(
        on_cpu || model.activations == ActivationsArg::Rounded,
        "--activations exact needs the CPU; GPUs multiply in the element type of the weights"
    );
    ensure!(
        !on_cpu || engine.gpu_memory.is_none(),
        "--gpu-memory needs a GPU, and this server uses the CPU; omit the flag"
    );
    ensure!(
        !on_cpu || engine.kv_host_memory.is_none(),
        "--kv-host-memory needs a GPU: on the CPU, the KV cache is in the memory of the host, and \
         --max-batch-total-tokens makes it larger"
    );
    ensure!(
        engine.kv_host_memory.is_none() || engine.prefix_caching,
        "--kv-host-memory needs the prefix cache, which --prefix-caching=false turns off"
    );
    ensure!(
        engine.kv_host_memory.is_none() || engine.gpu_memory.is_none(),
        "--kv-host-memory and --gpu-memory cannot be combined; omit one of them"
    );
    ensure!(
        engine.kv_host_memory.is_none() || nnodes == 1,
        "--kv-host-memory and --nnodes cannot be combined; omit one of them"
    );
    ensure!(
        on_cpu || model.kv_cache_dtype != Some(KvCacheArg::Int8),
        "--kv-cache-dtype int8 needs the CPU; give --device cpu as well",
    );
    Ok(decided)
}

fn choose(engine: &mut EngineArgs, model: &ModelArgs, nnodes: usize) -> Result<Option<String>> {
    let is_auto = engine.device == DeviceArg::Auto;
    let replicas = engine.replicas();
    ensure!(
        replicas == 1 || nnodes == 1,
        "--replicas and --nnodes cannot be combined; omit one of them, or run a server on each machine"
    );
    if let Some(ranks) = engine.pipeline_parallel.filter(|&ranks| ranks > 1) {
        ensure!(
            engine.num_shard.is_none_or(|shards| shards == 1),
            "--pipeline-parallel {ranks} and --num-shard cannot be combined; omit one of them"
        );
        engine.num_shard = Some(ranks);
    }
    if engine.gpu_memory.is_some() {
        ensure!(replicas == 1, "--gpu-memory and --replicas cannot be combined; omit one of them");
        // The layers are split between one GPU and the CPU.
        let shards = *engine.num_shard.get_or_insert(1);
        ensure!(
            shards == 1 && nnodes == 1,
            "--gpu-memory and {} cannot be combined; omit one of them",
            match (nnodes, engine.is_pipeline()) {
                (1, true) => "--pipeline-parallel".to_owned(),
                (1, false) => format!("--num-shard {shards}"),
                _ => "--nnodes".to_owned(),
            }
        );
    }
    if matches!(engine.device, DeviceArg::Cpu | DeviceArg::Null) {
        engine.num_shard.get_or_insert(nnodes as u32);
        return Ok(None);
    }
    let gpus = match gpus(engine) {
        Ok(gpus) => gpus,
        Err(why) if is_auto => {
            engine.device = DeviceArg::Cpu;
            engine.num_shard.get_or_insert(nnodes as u32);
            return Ok(Some(format!("using the CPU: {why:#}")));
        }
        Err(why) => return Err(why.context("--device cuda")),
    };
    // Each group has as many as the others.
    let capacity = gpus * engine.ranks_per_gpu as usize / replicas;
    ensure!(
        capacity > 0,
        "--replicas {replicas}: each group needs a GPU, and there {}; lower it, or give --device cpu",
        if gpus == 1 { "is 1".to_owned() } else { format!("are {gpus}") },
    );
    let shards = match engine.num_shard {
        Some(shards) => shards as usize,
        None => largest(capacity, nnodes, model)?,
    };
    let of_group = shards.div_ceil(nnodes);
    let here = of_group * replicas;
    ensure!(
        of_group <= capacity,
        "--num-shard {shards}: each shard needs a GPU, {here} on this machine, and there {}; omit the flag to use all \
         GPUs, or give --device cpu",
        if gpus == 1 { "is 1".to_owned() } else { format!("are {gpus}") },
    );
    let is_short = engine.num_shard.is_none() && of_group < capacity;
    engine.num_shard = Some(shards as u32);
    let used = here.div_ceil(engine.ranks_per_gpu as usize);
    let why = if is_short { ": the model cannot be split evenly over all of them" } else { "" };
    Ok(Some(format!("using {used} of {gpus} {}{why}", if gpus == 1 { "GPU" } else { "GPUs" })))
}

/// Counts the GPUs, of which there is at least one, and replaces `auto` by the device found.
fn gpus(engine: &mut EngineArgs) -> Result<usize> {
    #[cfg(feature = "cpu-sim")]
    if let Some(gpus) = simulated(engine)? {
        return Ok(gpus);
    }
    let gpus = ask_driver()?;
    engine.device = DeviceArg::Cuda;
    Ok(gpus)
}

/// Counts simulated GPUs, for tests: `MILLRACE_SIM_GPUS`, or the number of shards of all
/// groups without it.
#[cfg(feature = "cpu-sim")]
fn simulated(engine: &mut EngineArgs) -> Result<Option<usize>> {
    let there = std::env::var("MILLRACE_SIM_GPUS").ok().map(|text| text.parse());
    let there: Option<usize> = there.transpose().context("MILLRACE_SIM_GPUS is not a number")?;
    match (engine.device, there) {
        (DeviceArg::CudaSim, None) => Ok(Some(engine.num_shard.unwrap_or(1) as usize * engine.replicas())),
        (DeviceArg::Cuda, _) | (_, None) => Ok(None),
        (_, Some(0)) => bail!("there is no simulated GPU"),
        (_, Some(gpus)) => {
            engine.device = DeviceArg::CudaSim;
            Ok(Some(gpus))
        }
    }
}

/// Returns the largest number of shards that the model can be split over on `nnodes` machines with
/// `capacity` shards each.
fn largest(capacity: usize, nnodes: usize, model: &ModelArgs) -> Result<usize> {
    if capacity * nnodes == 1 {
        return Ok(1);
    }
    let sizes = split::sizes(&families::spec(&model::source(model)?)?);
    let fits = |size: &usize| *size <= capacity * nnodes && size.is_multiple_of(nnodes);
    // If no size fits, the shards report the sizes that the model allows.
    Ok(sizes.into_iter().filter(fits).max().unwrap_or(nnodes))
}

/// Counts the GPUs in a separate process (`millrace gpus`), so that memory and threads of the
/// driver, and a crash in it, do not stay in this one.
fn ask_driver() -> Result<usize> {
    let mut asked = Command::new(own_executable()?)
        .arg("gpus")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .context("cannot start a process that asks the driver")?;
    let deadline = Instant::now() + ANSWERED_WITHIN;
    let status = loop {
        match asked.try_wait().context("cannot wait for the process that asks the driver")? {
            Some(status) => break status,
            None if Instant::now() < deadline => thread::sleep(POLL),
            None => {
                let _ = asked.kill();
                let _ = asked.wait();
                bail!("the NVIDIA driver did not list the GPUs within {} s", ANSWERED_WITHIN.as_secs());
            }
        }
    };
    let mut said = String::new();
    if let Some(mut out) = asked.stdout.take() {
        out.read_to_string(&mut said).context("cannot read the number of GPUs")?;
    }
    match said.trim() {
        "" => bail!("the process that counts GPUs ended with {status}"),
        said => said.parse().map_err(|_| anyhow!("{said}")),
    }
}
