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

/// Failures after which no more requests are started. A server that refuses all of them would get
/// as many as this machine can send.
const MAX_FAILURES: usize = 10_000;

/// Measures and prints a table or JSON.
pub(crate) fn run(args: BenchHttpArgs) -> Result<()> {
    tokio::runtime::Runtime::new()?.block_on(async {
        let mut prompts = Prompts::new(&args)?;
        let client = Arc::new(Client::new(&args).await?);
        for number in 0..args.warmup {
            let sample = client.ask(prompts.next(), None).await;
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
        if runs.iter().all(Run::has_failed) {
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
    let (open, rounds) = match load {
        BenchLoad::Concurrency(n) => (n, n.saturating_mul(ROUNDS)),
        BenchLoad::Rate(_) => (args.max_concurrency, AT_RATE),
    };
    let count = if args.duration.is_some() { u32::MAX } else { args.requests.unwrap_or(rounds) };
    let places = Arc::new(Semaphore::new(open as usize));
    let mut starts = Starts { load, random: StdRng::seed_from_u64(args.seed), next: Instant::now() };
    let mut asked: JoinSet<Sample> = JoinSet::new();
    let mut samples: Vec<Sample> = Vec::new();
    let mut failures = 0;
    let begin = Instant::now();
    let until = args.duration.map(|seconds| begin + Duration::from_secs_f64(seconds));
    for _ in 0..count {
        let place = async {
            starts.wait().await;
            places.clone().acquire_owned().await
        };
        let place = match until {
            None => place.await,
            Some(until) => match tokio::time::timeout_at(until.into(), place).await {
                // A place that the end freed has no time left for its request.
                Ok(place) if Instant::now() < until => place,
                _ => break,
            },
        };
        while let Some(sample) = asked.try_join_next() {
            let sample = sample?;
            failures += usize::from(sample.error.is_some());
            samples.push(sample);
        }
        if failures >= MAX_FAILURES {
            break;
        }
        let (client, prompt, place) = (client.clone(), prompts.next(), place?);
        asked.spawn(async move {
            let sample = client.ask(prompt, until).await;
            drop(place);
            sample
        });
    }
    samples.extend(asked.join_all().await);
    Ok(Run { load, wall: begin.elapsed(), samples })
}

/// The times at which requests start.
struct Starts {
    load: BenchLoad,
    random: StdRng,
    next: Instant,
}

impl Starts {
    /// Waits until the next request may start; with a constant concurrency, not at all.
    async fn wait(&mut self) {
        if let BenchLoad::Rate(rate) = self.load {
            tokio::time::sleep_until(self.next.into()).await;
            // Times between the events of a Poisson process are exponentially distributed.
            self.next += Duration::from_secs_f64(-(1.0 - self.random.random::<f64>()).ln() / rate);
        }
    }
}
