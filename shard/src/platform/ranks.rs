//! How the cards of a group come to exchange activations: which ways there are, and which is faster for which message.
//!
//! All ranks take every decision together, because a collective that only some of them call would never end.

use std::fmt::Display;
use std::sync::Arc;
use std::time::Duration;

use millrace_kernels::cuda::nccl::{Communicator, Nccl};
use millrace_kernels::cuda::ranks::{Ranks, measure};
use millrace_kernels::cuda::{Device, Elem, Offer, Peers, SharedName};

use super::cuda::OnCards;
use crate::collective::{HostCollective, gather_bytes};
use crate::options::AllReduce;
use crate::{Bytes, Error};

/// The longest message over the cards' own memory, in bytes; longer ones are bound by the links, where NCCL is at its best.
const LONGEST: usize = 8 << 20;
/// The shortest message that is measured, in bytes: one token of a small model. Each further one is twice as long.
const SHORTEST_MEASURED: usize = 8 << 10;
/// How long the first message over another card's memory may take.
const FIRST_PATIENCE: Duration = Duration::from_secs(10);
/// Bytes of the name of an NCCL group.
const GROUP_NAME: usize = 128;
/// Bytes of a reason that ranks tell each other.
const REASON: usize = 300;

/// Connects the cards, and says how.
///
/// # Errors
/// If there is no way between the cards, or not the one that was asked for.
pub(super) fn connect(
    on: &OnCards,
    device: &Device,
    elem: Elem,
    host: &mut dyn HostCollective,
) -> Result<(Ranks, String), Error> {
    let peers = match (on.all_reduce, on.one_host) {
        (AllReduce::Nccl, _) => Err("--all-reduce nccl".to_owned()),
        (_, false) => Err("the ranks are on several machines".to_owned()),
        _ => over_memory(device, host, on.deadline)?,
    };
    let nccl = match on.all_reduce {
        AllReduce::Peer => Err("--all-reduce peer".to_owned()),
        _ => over_nccl(on, device, host)?,
    };
    match (peers, nccl) {
        (Ok(peers), Ok(nccl)) => {
            let most = faster_up_to(device, &peers, &nccl, elem, host)?;
            let said = match most {
                0 => "NCCL, which was faster than the cards' memory for every message".to_owned(),
                _ => format!(
                    "the cards' memory for messages of up to {}, and NCCL for longer ones",
                    Bytes(most)
                ),
            };
            Ok((Ranks::over_both(device, peers, nccl, most), said))
        }
        (Ok(peers), Err(why)) => {
            Ok((Ranks::over_peers(device, peers), format!("the cards' memory alone ({why})")))
        }
        (Err(why), Ok(nccl)) => Ok((Ranks::over_nccl(device, nccl), format!("NCCL alone ({why})"))),
        (Err(peers), Err(nccl)) => Err(Error::Unsupported(format!(
            "the cards cannot exchange activations, neither by NCCL ({nccl}) nor over each other's memory ({peers})"
        ))),
    }
}

/// What every rank has, if all have it; else the first reason why one has it not.
fn agree<T, E: Display>(
    host: &mut dyn HostCollective,
    mine: Result<T, E>,
) -> Result<Result<T, String>, Error> {
    let mut reason = mine.as_ref().err().map(|why| why.to_string().into_bytes()).unwrap_or_default();
    // Never empty, so that it cannot be taken for success.
    if mine.is_err() && reason.is_empty() {
        reason = b"no reason was given".to_vec();
    }
    reason.resize(REASON, 0);
    let all = gather_bytes(host, &reason)?;
    let refusal = all.iter().enumerate().find_map(|(rank, reason)| {
        let end = reason.iter().position(|&byte| byte == 0).unwrap_or(reason.len());
        (end > 0).then(|| format!("rank {rank}: {}", String::from_utf8_lossy(&reason[..end])))
    });
    Ok(match (mine, refusal) {
        (Ok(mine), None) => Ok(mine),
        (_, refusal) => Err(refusal.unwrap_or_default()),
    })
}

/// Opens the memory of the other ranks' cards and sees whether values get through.
fn over_memory(
    device: &Device,
    host: &mut dyn HostCollective,
    deadline: Duration,
) -> Result<Result<Peers, String>, Error> {
    let offer = match agree(host, Offer::new(device, LONGEST))? {
        Ok(offer) => offer,
        Err(why) => return Ok(Err(why)),
    };
    let names = gather_bytes(host, offer.name())?;
    let named =
        |name: &Vec<u8>| SharedName::try_from(name.as_slice()).expect("all are as long as this rank's");
    let names: Vec<SharedName> = names.iter().map(named).collect();
    let opened = offer.open(host.rank(), &names, deadline.min(FIRST_PATIENCE));
    let peers = match agree(host, opened)? {
        Ok(peers) => peers,
        Err(why) => return Ok(Err(why)),
    };
    let tried = peers.try_out();
    let agreed = agree(host, tried.map(|()| peers.with_patience(deadline)))?;
    Ok(agreed)
}

/// Forms a group of NCCL, under a name that rank 0 makes.
fn over_nccl(
    on: &OnCards,
    device: &Device,
    host: &mut dyn HostCollective,
) -> Result<Result<Communicator, String>, Error> {
    let nccl: Arc<Nccl> = match agree(host, (on.nccl)())? {
        Ok(nccl) => Arc::new(nccl),
        Err(why) => return Ok(Err(why)),
    };
    let mut name = if host.rank() == 0 { nccl.unique_id()? } else { vec![0; GROUP_NAME] };
    host.broadcast(&mut name)?;
    let formed = Communicator::form(nccl, device, &name, host.rank(), host.world_size(), on.deadline);
    agree(host, formed)
}

/// Bytes of the longest message that is faster over the cards' memory than by NCCL, as rank 0 has measured it.
fn faster_up_to(
    device: &Device,
    peers: &Peers,
    nccl: &Communicator,
    elem: Elem,
    host: &mut dyn HostCollective,
) -> Result<usize, Error> {
    let x = device.allocate(elem, LONGEST / elem.size())?;
    device.fill(x.view(elem), 0)?;
    let (mut most, mut bytes) = (0, SHORTEST_MEASURED);
    while bytes <= LONGEST {
        let (by_peers, by_nccl) = measure(device, peers, nccl, x.view(elem).slice(0..bytes / elem.size()))?;
        tracing::debug!("all-reduce of {}: {by_peers:.2e} s, by NCCL {by_nccl:.2e} s", Bytes(bytes));
        let mut faster = [u8::from(by_peers <= by_nccl)];
        host.broadcast(&mut faster)?;
        if faster == [0] {
            break;
        }
        most = bytes;
        bytes *= 2;
    }
    Ok(most)
}
