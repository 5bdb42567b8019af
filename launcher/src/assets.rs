//! Loads what a model's files say about text.

use std::path::Path;

use anyhow::Result;
use millrace_formats::Source;
use millrace_router::assets::Assets;

use crate::cli::LoadFormat;
use crate::model::{self, Location};

/// Loads the tokenizer and configuration. Dummy weights need only a `config.json`: they use the
/// tokenizer of the demo model if they have none.
pub(crate) fn assets(location: &Location, format: LoadFormat) -> Result<Assets> {
    match location {
        Location::Demo => Ok(Assets::from_files(model::DEMO)?),
        Location::Folder(folder)
            if format == LoadFormat::Dummy
                && !millrace_text::assets::tokenizer_files().any(|name| folder.join(name).exists()) =>
        {
            tracing::warn!(
                "there is no tokenizer beside the dummy weights: using the tokenizer of the demo model"
            );
            Ok(Assets::from_files(model::DEMO)?)
        }
        Location::Folder(folder) => Ok(Assets::from_dir(folder)?),
        Location::File(file) => model_file_assets(file),
    }
}

/// Loads the tokenizer and configuration of a file with a whole model. A `tokenizer.json` beside
/// the file takes precedence over the tokenizer in it.
fn model_file_assets(file: &Path) -> Result<Assets> {
    let source = Source::File(file.to_owned());
    let mut inside = vec![("config.json", source.config()?)];
    let mut data = source.tokenizer_data()?.unwrap_or_default();
    let folder = file.parent().unwrap_or(Path::new(""));
    if let Some(tokenizer) = data.huggingface_json.take()
        && !folder.join("tokenizer.json").exists()
    {
        inside.push(("tokenizer.json", tokenizer.into_bytes()));
    }
    let tokenizer = (!data.tokens.is_empty()).then(|| data.clone());
    let mut assets = Assets::from_model_file(folder, &inside, tokenizer)?;
    let known = &mut assets.text;
    if known.chat_template.is_none() {
        let tools = data.named_templates.into_iter().find(|(name, _)| name == "tool_use");
        known.chat_template = data.chat_template;
        known.tool_template = tools.map(|(_, template)| template);
    }
    let text = |id: Option<u32>| id.and_then(|id| data.tokens.get(id as usize).cloned());
    known.bos_token = known.bos_token.take().or_else(|| text(data.special.bos));
    known.eos_token = known.eos_token.take().or_else(|| text(data.special.eos));
    known.pad_token = known.pad_token.take().or_else(|| text(data.special.padding));
    known.unk_token = known.unk_token.take().or_else(|| text(data.special.unknown));
    known.add_bos_token = known.add_bos_token.or(data.add_bos);
    known.add_eos_token = known.add_eos_token.or(data.add_eos);
    Ok(assets)
}
