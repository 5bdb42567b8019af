//! `millrace restart-groups`: restarts the groups of shards of a server, one after the other.

use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::health::{SHOWN, cause, with_path};
use crate::cli::RestartGroupsArgs;

/// The answer of the server.
#[derive(Debug, Deserialize)]
struct Restarted {
    /// The time that each group took.
    seconds: Vec<f64>,
}

/// Asks the server to restart its groups, waits for the end, and prints the time of each.
pub(crate) fn run(args: &RestartGroupsArgs) -> Result<()> {
    let url = with_path(&args.url, "/v1/restart_groups")?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let Restarted { seconds } = runtime.block_on(ask(&url, args))?;
    for (group, time) in (1..).zip(&seconds) {
        println!("group {group} of {}: ready after {time:.2} s", seconds.len());
    }
    Ok(())
}

async fn ask(url: &str, args: &RestartGroupsArgs) -> Result<Restarted> {
    let client = reqwest::Client::builder()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(Duration::from_secs_f64(args.timeout))
        .build()?;
    let sent = client.post(url).bearer_auth(&args.admin_key).send().await;
    let answer = sent.map_err(|error| anyhow::anyhow!("{url}: {}", cause(&error)))?;
    let status = answer.status();
    let text = answer.text().await.unwrap_or_default();
    if !status.is_success() {
        let text: String = text.lines().next().unwrap_or_default().chars().take(SHOWN).collect();
        bail!("{url}: {} {text}", status.as_u16());
    }
    serde_json::from_str(&text)
        .with_context(|| format!("{url}: the answer is not of a server of this version"))
}
