//! `millrace bench-http`: a load test of any server with OpenAI's API.
//!
//! Every request streams its answer, and times are measured as events arrive.

mod client;
mod prompts;
mod report;

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use self::client::{Client, Sample};
use self::prompts::Prompts;
use self::report::{BenchLoad, Run};
use crate::cli::BenchHttpArgs;

/// Requests per concurrent request, if `--requests` is absent.
const ROUNDS: u32 = 4;

/// Requests at a given rate, if `--requests` is absent.
const AT_RATE: u32 = 100;

/// Limit of open requests at a given rate, so that a slow server does not exhaust this machine.
const MAX_OPEN: usize = 10_000;

/// Measures and prints a table or JSON.
pub(crate) fn run(args: BenchHttpArgs) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let mut prompts = Prompts::new(&args)?;
        let client = Arc::new(Client::new(&args).await?);
        for number in 0..args.warmup {
            let sample = client.ask(prompts.next()).await;
            if let (0, Some(error)) = (number, &sample.error) {
                bail!("the server does not answer: {error}");
            }
        }
        let loads: Vec<BenchLoad> = match args.rate {
            Some(rate) => vec![BenchLoad::Rate(rate)],
            None => args.concurrency.iter().map(|&n| BenchLoad::Concurrency(n)).collect(),
        };
        let quiet = args.json.as_deref().is_some_and(|path| path.as_os_str() == "-");
        if !quiet {
            println!("{}", report::heading(client.model(), &args.url));
        }
        let mut runs = Vec::new();
        for load in loads {
            let run = measure(load, &args, &client, &mut prompts).await?;
            if !quiet {
                println!("{run}");
            }
            runs.push(run);
        }
        let whole = report::json(client.model(), &args, &runs);
        match &args.json {
            Some(_) if quiet => println!("{whole:#}"),
            Some(path) => {
                std::fs::write(path, format!("{whole:#}\n"))
                    .with_context(|| format!("--json {}", path.display()))?;
            }
            None => {}
        }
        if runs.iter().all(|run| run.succeeded() == 0) {
            bail!("no request was answered");
        }
        Ok(())
    })
}

async fn measure(
    load: BenchLoad,
    args: &BenchHttpArgs,
    client: &Arc<Client>,
    prompts: &mut Prompts,
) -> Result<Run> {
    let (open, count) = match load {
        BenchLoad::Concurrency(n) => (n as usize, args.requests.unwrap_or(n.saturating_mul(ROUNDS))),
        BenchLoad::Rate(_) => (MAX_OPEN, args.requests.unwrap_or(AT_RATE)),
    };
    let places = Arc::new(Semaphore::new(open));
    let mut random = StdRng::seed_from_u64(args.seed);
    let mut asked: JoinSet<Sample> = JoinSet::new();
    let begin = Instant::now();
    let mut next = Duration::ZERO;
    for _ in 0..count {
        if let BenchLoad::Rate(rate) = load {
            tokio::time::sleep_until((begin + next).into()).await;
            // Times between the events of a Poisson process are exponentially distributed.
            next += Duration::from_secs_f64(-(1.0 - random.random::<f64>()).ln() / rate);
        }
        let place = places.clone().acquire_owned().await?;
        let (client, prompt) = (client.clone(), prompts.next());
        asked.spawn(async move {
            let sample = client.ask(prompt).await;
            drop(place);
            sample
        });
    }
    let samples = asked.join_all().await;
    Ok(Run { load, wall: begin.elapsed(), samples })
}
