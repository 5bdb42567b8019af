//! Connects the GPUs of a group: finds the methods that work between them, and measures which is
//! faster for which message size.
//!
//! All ranks take every decision together, because a collective that only some ranks call never
//! ends.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use millrace_cuda::nccl::{Communicator, Nccl};
use millrace_cuda::{
    Device, DeviceCollectives, Elem, PeerCollectives, PeerOffer, SharedName, measure_all_reduce,
};
use millrace_model::Bytes;

use crate::Error;
use crate::collective::HostCollective;
use crate::options::AllReduce;

/// The longest message over peer memory, in bytes. The links limit the speed of longer messages,
/// and NCCL uses the links best.
const LONGEST_MESSAGE: usize = 8 << 20;
/// The shortest message that is measured, in bytes: one token of a small model. Each further
/// message is twice as long.
const SHORTEST_MEASURED: usize = 8 << 10;
/// Time limit of the first message over peer memory.
const FIRST_MESSAGE_DEADLINE: Duration = Duration::from_secs(10);
/// Length of the unique id of an NCCL group, in bytes.
const NCCL_ID_BYTES: usize = 128;
/// Length of a reason that ranks send each other, in bytes.
const REASON_BYTES: usize = 300;

/// The options by which the GPUs of a group are connected.
pub(super) struct GpuLinkOptions {
    /// Opens the NCCL library.
    pub(super) nccl: fn() -> millrace_backend::Result<Nccl>,
    /// Time limit of a rank that waits for another.
    pub(super) deadline: Duration,
    /// The method that the operator asks for.
    pub(super) all_reduce: AllReduce,
    /// Whether all ranks are on this host.
    pub(super) is_one_host: bool,
}

/// Connects the GPUs. Also returns a description of the method for the operator.
///
/// # Errors
/// If no method works between the GPUs, or the one that the operator asked for does not.
pub(super) fn connect(
    options: &GpuLinkOptions,
    device: &Device,
    elem: Elem,
    host: &mut dyn HostCollective,
) -> Result<(DeviceCollectives, String), Error> {
    let peers = match (options.all_reduce, options.is_one_host) {
        (AllReduce::Nccl, _) => Err("--all-reduce nccl".to_owned()),
        (_, false) => Err("the ranks are on several machines".to_owned()),
        _ => connect_peer_memory(device, host, options.deadline)?,
    };
    let nccl = match options.all_reduce {
        AllReduce::Peer => Err("--all-reduce peer".to_owned()),
        _ => connect_nccl(options, device, host)?,
    };
    match (peers, nccl) {
        (Ok(peers), Ok(nccl)) => {
            let longest = longest_faster_message(device, &peers, &nccl, elem, host)?;
            let method = match longest {
                0 => "NCCL, which was faster than peer memory for every message".to_owned(),
                _ => {
                    format!("peer memory for messages of up to {}, and NCCL for longer ones", Bytes(longest))
                }
            };
            Ok((DeviceCollectives::over_both(device, peers, nccl, longest), method))
        }
        (Ok(peers), Err(why)) => {
            Ok((DeviceCollectives::over_peers(device, peers), format!("peer memory only ({why})")))
        }
        (Err(why), Ok(nccl)) => {
            Ok((DeviceCollectives::over_nccl(device, nccl), format!("NCCL only ({why})")))
        }
        (Err(peers), Err(nccl)) => Err(Error::Unsupported(format!(
            "the GPUs cannot exchange activations, neither by NCCL ({nccl}) nor over peer memory ({peers})"
        ))),
    }
}

/// Returns this rank's value if every rank has one, else the reason of the first rank that has
/// none.
fn agree<T, E: Display>(
    host: &mut dyn HostCollective,
    mine: Result<T, E>,
) -> Result<Result<T, String>, Error> {
    let all = host.all_gather_bytes(&Outcome::of(&mine).encode())?;
    let refusal = all.iter().enumerate().find_map(|(rank, bytes)| match Outcome::decode(bytes) {
        Outcome::Success => None,
        Outcome::Failure { reason } => Some(format!("rank {rank}: {reason}")),
    });
    Ok(match (mine, refusal) {
        (Ok(mine), None) => Ok(mine),
        (_, refusal) => Err(refusal.unwrap_or_default()),
    })
}

/// The outcome of an attempt on one rank, as the ranks send it to each other.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Success,
    Failure { reason: String },
}

impl Outcome {
    fn of<T, E: Display>(result: &Result<T, E>) -> Outcome {
        match result {
            Ok(_) => Outcome::Success,
            Err(why) => Outcome::Failure { reason: why.to_string() },
        }
    }

    /// Encodes the outcome: a byte that is 1 for a failure, then the reason, padded with zeros.
    fn encode(&self) -> [u8; 1 + REASON_BYTES] {
        let mut bytes = [0; 1 + REASON_BYTES];
        if let Outcome::Failure { reason } = self {
            bytes[0] = 1;
            let length = reason.len().min(REASON_BYTES);
            bytes[1..][..length].copy_from_slice(&reason.as_bytes()[..length]);
        }
        bytes
    }

    fn decode(bytes: &[u8]) -> Outcome {
        match bytes.split_first() {
            Some((0, _)) => Outcome::Success,
            _ => {
                let text = bytes.get(1..).unwrap_or_default();
                let end = text.iter().position(|&byte| byte == 0).unwrap_or(text.len());
                Outcome::Failure { reason: String::from_utf8_lossy(&text[..end]).into_owned() }
            }
        }
    }
}

/// Opens the memory of the other ranks' GPUs, and tests whether values arrive.
fn connect_peer_memory(
    device: &Device,
    host: &mut dyn HostCollective,
    deadline: Duration,
) -> Result<Result<PeerCollectives, String>, Error> {
    let offer = match agree(host, PeerOffer::new(device, LONGEST_MESSAGE))? {
        Ok(offer) => offer,
        Err(why) => return Ok(Err(why)),
    };
    let names = host.all_gather_bytes(offer.name())?;
    let named = |name: &Vec<u8>| {
        SharedName::try_from(name.as_slice()).expect("all parts that are gathered are as long as this rank's")
    };
    let names: Vec<SharedName> = names.iter().map(named).collect();
    let opened = offer.open(host.rank(), &names, deadline.min(FIRST_MESSAGE_DEADLINE));
    let peers = match agree(host, opened)? {
        Ok(peers) => peers,
        Err(why) => return Ok(Err(why)),
    };
    let tried = peers.self_test();
    agree(host, tried.map(|()| peers.with_timeout(deadline)))
}

/// Forms an NCCL group, under an id that rank 0 creates.
fn connect_nccl(
    options: &GpuLinkOptions,
    device: &Device,
    host: &mut dyn HostCollective,
) -> Result<Result<Communicator, String>, Error> {
    let nccl: Arc<Nccl> = match agree(host, (options.nccl)())? {
        Ok(nccl) => Arc::new(nccl),
        Err(why) => return Ok(Err(why)),
    };
    let mut id = if host.rank() == 0 { nccl.unique_id()? } else { vec![0; NCCL_ID_BYTES] };
    host.broadcast(&mut id)?;
    let formed = Communicator::form(nccl, device, &id, host.rank(), host.world_size(), options.deadline);
    agree(host, formed)
}

/// Returns the length in bytes of the longest message that is faster over peer memory than by NCCL,
/// as measured by rank 0.
fn longest_faster_message(
    device: &Device,
    peers: &PeerCollectives,
    nccl: &Communicator,
    elem: Elem,
    host: &mut dyn HostCollective,
) -> Result<usize, Error> {
    let x = device.allocate(elem, LONGEST_MESSAGE / elem.size())?;
    device.fill(x.view(elem), 0)?;
    let (mut longest, mut bytes) = (0, SHORTEST_MEASURED);
    while bytes <= LONGEST_MESSAGE {
        let (by_peers, by_nccl) =
            measure_all_reduce(device, peers, nccl, x.view(elem).slice(0..bytes / elem.size()))?;
        tracing::debug!(
            "all-reduce of {}: {by_peers:.2e} s over peer memory, {by_nccl:.2e} s by NCCL",
            Bytes(bytes)
        );
        let mut faster = [u8::from(by_peers <= by_nccl)];
        host.broadcast(&mut faster)?;
        if faster == [0] {
            break;
        }
        longest = bytes;
        bytes *= 2;
    }
    Ok(longest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_survive_encoding() {
        let failure = |reason: &str| Outcome::Failure { reason: reason.to_owned() };
        for outcome in [Outcome::Success, failure(""), failure("no NCCL")] {
            assert_eq!(Outcome::decode(&outcome.encode()), outcome);
        }
        let long = failure(&"x".repeat(2 * REASON_BYTES));
        assert_eq!(Outcome::decode(&long.encode()), failure(&"x".repeat(REASON_BYTES)));
    }
}
