//! What `--device auto` and a `--num-shard` that is not given come to on this machine.

use std::io::Read;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use millrace_shard::{families, split};

use crate::cli::{DeviceArg, EngineArgs, ModelArgs, own_executable};
use crate::model;

/// How long the driver may take to say which cards there are. With many of them, and no daemon that keeps it loaded, it takes seconds.
const ANSWERED_WITHIN: Duration = Duration::from_secs(60);
/// How often it is looked whether it has.
const POLL: Duration = Duration::from_millis(2);

/// Settles `engine.device` and `engine.num_shard` for a model on `nnodes` machines, of which this is one. Returns what there was to
/// decide, for the log.
///
/// # Errors
/// If there are not the cards that were asked for.
pub(crate) fn settle(engine: &mut EngineArgs, model: &ModelArgs, nnodes: usize) -> Result<Option<String>> {
    let decided = choose(engine, model, nnodes)?;
    ensure!(
        model.quantize.is_none() || !matches!(engine.device, DeviceArg::Cpu | DeviceArg::Null),
        "--quantize fp8 needs a card, and there is none to compute on{}",
        decided.map_or_else(String::new, |why| format!(" ({why})")),
    );
    Ok(decided)
}

fn choose(engine: &mut EngineArgs, model: &ModelArgs, nnodes: usize) -> Result<Option<String>> {
    let is_auto = engine.device == DeviceArg::Auto;
    if matches!(engine.device, DeviceArg::Cpu | DeviceArg::Null) {
        engine.num_shard.get_or_insert(1);
        return Ok(None);
    }
    let cards = match cards(engine) {
        Ok(cards) => cards,
        Err(why) if is_auto => {
            engine.device = DeviceArg::Cpu;
            engine.num_shard.get_or_insert(1);
            return Ok(Some(format!("computing on the processor: {why:#}")));
        }
        Err(why) => return Err(why.context("--device cuda")),
    };
    let room = cards * engine.ranks_per_card as usize;
    let shards = match engine.num_shard {
        Some(shards) => shards as usize,
        None => largest(room, nnodes, model)?,
    };
    let here = shards.div_ceil(nnodes);
    ensure!(
        here <= room,
        "--num-shard {shards}: each shard needs a card, {here} on this machine, and there {}; leave the flag out to use all \
         that there are, or give --device cpu",
        if cards == 1 { "is 1".to_owned() } else { format!("are {cards}") },
    );
    let is_short = engine.num_shard.is_none() && here < room;
    engine.num_shard = Some(shards as u32);
    let used = here.div_ceil(engine.ranks_per_card as usize);
    let why = if is_short { ": the model cannot be split evenly over all of them" } else { "" };
    Ok(Some(format!("computing on {used} of {cards} {}{why}", if cards == 1 { "card" } else { "cards" })))
}

/// How many cards there are, at least one. What `auto` finds is chosen.
fn cards(engine: &mut EngineArgs) -> Result<usize> {
    #[cfg(feature = "cpu-sim")]
    if let Some(cards) = simulated(engine)? {
        return Ok(cards);
    }
    let cards = ask_driver()?;
    engine.device = DeviceArg::Cuda;
    Ok(cards)
}

/// Simulated cards, for tests: as many as `MILLRACE_SIM_CARDS` says, else as many as shards are asked for.
#[cfg(feature = "cpu-sim")]
fn simulated(engine: &mut EngineArgs) -> Result<Option<usize>> {
    let there = std::env::var("MILLRACE_SIM_CARDS").ok().map(|text| text.parse());
    let there: Option<usize> = there.transpose().context("MILLRACE_SIM_CARDS is not a number")?;
    match (engine.device, there) {
        (DeviceArg::CudaSim, None) => Ok(Some(engine.num_shard.unwrap_or(1) as usize)),
        (DeviceArg::Cuda, _) | (_, None) => Ok(None),
        (_, Some(0)) => bail!("there is no simulated card"),
        (_, Some(cards)) => {
            engine.device = DeviceArg::CudaSim;
            Ok(Some(cards))
        }
    }
}

/// The most shards that a model can be split over on machines with room for `room` each.
fn largest(room: usize, nnodes: usize, model: &ModelArgs) -> Result<usize> {
    if room * nnodes == 1 {
        return Ok(1);
    }
    let sizes = split::sizes(&families::spec(&model::source(model)?)?);
    let fits = |size: &usize| *size <= room * nnodes && size.is_multiple_of(nnodes);
    // Where none is, the shards say which sizes are.
    Ok(sizes.into_iter().filter(fits).max().unwrap_or(nnodes))
}

/// Asks the driver in a process of its own (`millrace cards`): what it maps, starts or breaks there is gone with it.
fn ask_driver() -> Result<usize> {
    let mut asked = Command::new(own_executable()?)
        .arg("cards")
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
                bail!(
                    "the NVIDIA driver did not say within {} s which cards there are",
                    ANSWERED_WITHIN.as_secs()
                );
            }
        }
    };
    let mut said = String::new();
    if let Some(mut out) = asked.stdout.take() {
        out.read_to_string(&mut said).context("what the driver said")?;
    }
    match said.trim() {
        "" => bail!("asking the NVIDIA driver for cards ended with {status}"),
        said => said.parse().map_err(|_| anyhow!("{said}")),
    }
}
