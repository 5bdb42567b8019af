//! Finds the draft model that the command line names.

use anyhow::{Context, Result, ensure};
use millrace_text::Tokenizer;

use crate::assets::assets;
use crate::cli::{DeviceArg, DraftModelName, EngineArgs, LoadFormat, ModelArgs};
use crate::model::{Location, WantedModel, download_weights};

/// The flag in messages.
const FLAG: &str = "--draft-model";

/// The largest share of tokens in which the two vocabularies may differ. Models of one family have
/// the same tokens, but perhaps some special tokens of their own.
const MAX_DIFFERENCE: f64 = 0.01;

/// Downloads what is missing of a draft model of the hub, and replaces its name by the folder of
/// its snapshot. The progress is shown on standard error. Without a draft model, nothing happens.
///
/// # Errors
/// If it can neither be downloaded nor is in the cache.
pub(crate) fn settle(engine: &mut EngineArgs, model: &ModelArgs, json: bool) -> Result<()> {
    let about_head = "--speculative-config with the method mtp";
    if engine.uses_mtp() {
        ensure!(engine.drafts() > 0, "{about_head} guesses nothing with num_speculative_tokens 0");
        ensure_device(engine, about_head)?;
    }
    let Some(named) = engine.draft_model() else { return Ok(()) };
    ensure!(engine.drafts() > 0, "{FLAG} guesses nothing with --speculate 0; omit one of them");
    ensure_device(engine, FLAG)?;
    let about = || format!("{FLAG} {}", named.name);
    if let Some(fetched) = wanted(&named, model).fetch().with_context(about)? {
        if let Some(weights) = fetched.weights {
            download_weights(weights, json).with_context(about)?;
        }
        let folder = fetched.folder.into_os_string().into_string();
        let path =
            folder.map_err(|folder| anyhow::anyhow!("the path {} is not valid UTF-8", folder.display()))?;
        engine.set_draft_model(path);
    }
    Ok(())
}

/// Checks that there is a device, for a flag that needs one.
fn ensure_device(engine: &EngineArgs, flag: &str) -> Result<()> {
    ensure!(
        engine.device != DeviceArg::Null,
        "{flag} needs a device; --device null computes nothing, so omit the flag"
    );
    Ok(())
}

/// Finds the draft model of these flags, if there is one.
///
/// # Errors
/// If there are no such files.
pub(crate) fn locate(engine: &EngineArgs, model: &ModelArgs) -> Result<Option<Location>> {
    let Some(named) = engine.draft_model() else { return Ok(None) };
    wanted(&named, model).locate().map(Some).with_context(|| format!("{FLAG} {}", named.name))
}

/// The files that are looked for. The cache of the hub and the format are those of the model.
fn wanted<'a>(named: &'a DraftModelName, model: &'a ModelArgs) -> WantedModel<'a> {
    WantedModel {
        name: &named.name,
        revision: &named.revision,
        hub_cache: model.hub_cache(),
        needs_weights: model.load_format == LoadFormat::Auto,
    }
}

/// Checks that the draft model has the tokens of the model. Without a tokenizer of its own, it is
/// taken to have them.
///
/// # Errors
/// If its tokenizer cannot be read, or has other tokens.
pub(crate) fn check_tokens(draft: &Location, format: LoadFormat, tokenizer: &Tokenizer) -> Result<()> {
    if let Location::Folder(folder) = draft
        && !millrace_text::assets::tokenizer_files().any(|name| folder.join(name).exists())
    {
        tracing::warn!("the draft model has no tokenizer, so its tokens are not compared with the model's");
        return Ok(());
    }
    let files = assets(draft, format).context(FLAG)?;
    let others = Tokenizer::new(&files.text).context(FLAG)?;
    let common = tokenizer.size().min(others.size());
    let differing = (0..common).filter(|&id| tokenizer.token_bytes(id) != others.token_bytes(id));
    let (count, first) = (differing.clone().count(), differing.clone().next());
    let Some(id) = first else { return Ok(()) };
    let (own, other) = (tokenizer.token_text(id), others.token_text(id));
    let text = format!(
        "the draft model has {count} other tokens than the model: token {id} is {other:?} and not {own:?}"
    );
    ensure!(
        count as f64 <= MAX_DIFFERENCE * f64::from(common),
        "{FLAG}: {text}; a draft model needs the tokens of the model"
    );
    tracing::warn!("{text}");
    Ok(())
}
