//! The life of a shard process: connect to the router, load the model, and answer steps.

use millrace_model::AdapterLimits;
use millrace_proto::{Fault, from_shard};

use crate::Error;
use crate::null::{NullEngine, announcement};
use crate::options::{AdapterOptions, DeviceKind, NullOptions, RankPlacement, ShardOptions};
use crate::platform::{HostPlatform, Platform, cuda};
use crate::process::adapter_loads::AdapterLoads;
use crate::process::connect::connect;
use crate::process::connection::Connection;
use crate::process::host_share::open_cpu;
use crate::process::lifeline;
use crate::process::router_link::{RouterLink, is_hang_up};
use crate::process::startup::{self, OpenModel, OpenedModel, Started};
use crate::process::step_loop::answer_steps;

/// Runs a shard until the router asks it to stop or goes away.
///
/// `open` finds the model. It is called once the router is connected, so that the router learns of
/// its errors.
///
/// # Errors
/// If the model cannot be loaded, or a step cannot be run. The router has then been told.
pub fn run(placement: &RankPlacement, options: &ShardOptions, open: OpenModel<'_>) -> Result<(), Error> {
    if placement.lifeline {
        lifeline::watch_parent().map_err(Error::Lifeline)?;
    }
    let connection = connect(placement)?;
    match &options.device {
        DeviceKind::Null(null) => {
            report_to(&*connection, |router| serve_null(router, placement, options, null, open))
        }
        DeviceKind::Cpu => {
            let cpu = HostPlatform(|| open_cpu(placement, options));
            serve(&cpu, &*connection, placement, options, open)
        }
        DeviceKind::Cuda => serve(&cuda::gpus(placement, options), &*connection, placement, options, open),
        #[cfg(feature = "cpu-sim")]
        DeviceKind::CudaSim => {
            serve(&cuda::simulated(placement, options), &*connection, placement, options, open)
        }
    }
}

/// Runs a shard on a device of `platform` over a connection that exists.
///
/// # Errors
/// The same as [`run`].
pub fn serve<P: Platform>(
    platform: &P,
    connection: &(impl Connection + ?Sized),
    placement: &RankPlacement,
    options: &ShardOptions,
    open: OpenModel<'_>,
) -> Result<(), Error> {
    report_to(connection, |router| {
        let Started { mut worker, ready, mut adapters } =
            startup::start(platform, Some(router), placement, options, open)?;
        router.send(from_shard::Message::Ready(ready))?;
        answer_steps(router, placement.rank, &mut worker, &mut adapters)
    })
}

/// Announces the model without reading its weights, and answers each step with made-up tokens.
fn serve_null(
    router: &RouterLink,
    placement: &RankPlacement,
    options: &ShardOptions,
    null: &NullOptions,
    open: OpenModel<'_>,
) -> Result<(), Error> {
    let OpenedModel { model, .. } = open()?;
    let ready = announcement(&model, placement.world_size, options);
    // All ranks are given the same steps.
    let log = null.log.as_deref().filter(|_| placement.rank == 0);
    let mut engine = NullEngine::new(&model.spec, options.max_sequences, null.costs, log)?;
    router.send(from_shard::Message::Ready(ready))?;
    let AdapterOptions { ref folders, places, max_loaded, max_rank } = options.adapters;
    let limits = AdapterLimits { count: places, max_loaded, max_rank };
    let mut adapters = AdapterLoads::new(None, folders, limits);
    answer_steps(router, placement.rank, &mut engine, &mut adapters)
}

/// Runs `serve` and reports its error to the router. The end of the router itself is not an error.
fn report_to(
    connection: &(impl Connection + ?Sized),
    serve: impl FnOnce(&RouterLink) -> Result<(), Error>,
) -> Result<(), Error> {
    let router = RouterLink::new(connection)?;
    match serve(&router) {
        Err(error) if is_hang_up(&error) => Ok(()),
        Err(error) => {
            let fault = Fault { message: error.to_string(), lasting: error.is_lasting() };
            // The caller gets the error even if the router is gone.
            let _ = router.send(from_shard::Message::Fault(fault));
            Err(error)
        }
        Ok(()) => Ok(()),
    }
}
