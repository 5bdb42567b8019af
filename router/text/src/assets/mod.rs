//! The facts about text in the files of a model: tokenizer, chat template, and the tokens that
//! begin and end a text.

use std::path::Path;

use millrace_formats::vocabulary::{TokenizerData, VocabularyError};
use serde::Deserialize;

mod added;
mod claims;
mod configuration;
mod error;
mod facts;
mod families;
mod files;
mod tokenizer_files;
mod vocabulary;
mod word_pieces;

pub use claims::{ClaimedIds, Claims};
pub use error::AssetError;
pub use files::ModelFiles;
pub use vocabulary::{SplitPattern, Substitution, TokenizerSource, Vocabulary, VocabularyTokens};

use configuration::{Ids, Templates, TokenIds, TokenText, TokenizerConfig};
use facts::ModelFacts;
use files::read_file;

/// The facts about text in the files of a model.
#[derive(Debug, Clone, Default)]
pub struct TextAssets {
    /// The tokenizer.
    pub tokenizer: TokenizerSource,
    /// The chat template, if the model has one.
    pub chat_template: Option<String>,
    /// The template for conversations with tools, if it differs.
    pub tool_template: Option<String>,
    /// The text of the token that begins a sequence.
    pub bos_token: Option<String>,
    /// The text of the token that ends a sequence.
    pub eos_token: Option<String>,
    /// The text of the padding token.
    pub pad_token: Option<String>,
    /// The text of the token for text that the vocabulary does not cover.
    pub unk_token: Option<String>,
    /// The class of the tokenizer in transformers.
    pub tokenizer_class: Option<String>,
    /// Whether `tokenizer_config.json` asks for the begin token in front of every prompt.
    pub add_bos_token: Option<bool>,
    /// Tokens that end a generation, from `generation_config.json` or else `config.json`. Empty if
    /// neither file names any.
    pub eos_ids: Vec<u32>,
    /// The id of the token that begins a sequence, from the configuration.
    pub bos_id: Option<u32>,
    /// Whether `tokenizer_config.json` asks for the end token after a text.
    pub add_eos_token: Option<bool>,
    /// Statements of several files about the same things, for warnings about contradictions.
    pub claims: Claims,
}

impl TextAssets {
    /// Reads the files from a folder.
    ///
    /// # Errors
    /// [`AssetError`] names the file and a remedy.
    pub fn from_dir(folder: &Path) -> Result<Self, AssetError> {
        Self::read(&ModelFiles::in_folder(folder), None)
    }

    /// Reads the files from memory.
    ///
    /// # Errors
    /// [`AssetError`] names the file and a remedy.
    pub fn from_files(files: &[(&str, &[u8])]) -> Result<Self, AssetError> {
        Self::read(&ModelFiles::in_memory(files), None)
    }

    /// Reads the files of a model. The tokenizer is `tokenizer.json`, or else `tokenizer`, which
    /// was in the model's file, or else that of another file.
    ///
    /// # Errors
    /// [`AssetError`] names the file and a remedy.
    pub fn read(files: &ModelFiles<'_>, tokenizer: Option<TokenizerData>) -> Result<Self, AssetError> {
        let inside = match tokenizer.map(of_model_file).transpose() {
            Ok(vocabulary) => vocabulary,
            // It matters only if there is no tokenizer beside the file.
            Err(_) if files.folder().is_some_and(|folder| folder.join("tokenizer.json").exists()) => None,
            Err(error) => return Err(AssetError::Vocabulary { file: "the model's file", error }),
        };
        Self::with_vocabulary(files, inside)
    }

    /// Replaces the chat template and the special tokens by those of another file in the format of
    /// `tokenizer_config.json`. Its template takes precedence over a template in a file of its own.
    ///
    /// # Errors
    /// [`AssetError`] names the file.
    pub fn with_tokenizer_config(mut self, path: &Path) -> Result<Self, AssetError> {
        let (file, bytes) = (path.display().to_string(), read_file(path)?);
        let config: TokenizerConfig =
            serde_json::from_slice(&bytes).map_err(|error| AssetError::Invalid { file, error })?;
        if let Some(templates) = config.chat_template {
            (self.chat_template, self.tool_template) = templates.split();
        }
        self.bos_token = config.bos_token.map(TokenText::into_text).or(self.bos_token);
        self.eos_token = config.eos_token.map(TokenText::into_text).or(self.eos_token);
        self.add_bos_token = config.add_bos_token.or(self.add_bos_token);
        self.add_eos_token = config.add_eos_token.or(self.add_eos_token);
        Ok(self)
    }

    fn with_vocabulary(files: &ModelFiles<'_>, inside: Option<TokenizerSource>) -> Result<Self, AssetError> {
        let json_tokenizer = files.read("tokenizer.json")?;
        let facts = ModelFacts::new(
            &files.origin(),
            files.json("config.json")?,
            files.json("tokenizer_config.json")?,
            files.json("generation_config.json")?,
        );
        let claims = Claims::collect(files, &facts, json_tokenizer.is_some())?;
        let tokenizer = match (json_tokenizer, inside) {
            (Some(json), _) => TokenizerSource::Json(json.into_owned()),
            (None, Some(inside)) => inside,
            (None, None) => vocabulary_file(files, &facts)?,
        };
        let config: TokenizerConfig = files.json("tokenizer_config.json")?;
        let generation: TokenIds = files.json("generation_config.json")?;
        let model: TokenIds = files.json("config.json")?;
        let ids = |first: Option<Ids>, second: Option<Ids>| {
            [first, second]
                .into_iter()
                .flatten()
                .map(Ids::list)
                .find(|ids| !ids.is_empty())
                .unwrap_or_default()
        };
        let (chat_template, tool_template) = chat_templates(files, config.chat_template)?;
        let mut eos_ids = ids(generation.eos_token_id, model.eos_token_id);
        let chat_template = match chat_template {
            Some(template) => Some(template),
            None => families::prompt_format(&facts, &tokenizer).map(|format| {
                eos_ids.extend(format.ends.iter().filter(|id| !eos_ids.contains(id)).collect::<Vec<_>>());
                format.template
            }),
        };
        let (bos, eos) = end_texts(&tokenizer);
        Ok(TextAssets {
            tokenizer,
            chat_template,
            tool_template,
            bos_token: config.bos_token.map(TokenText::into_text).or(bos),
            eos_token: config.eos_token.map(TokenText::into_text).or(eos),
            pad_token: config.pad_token.map(TokenText::into_text),
            unk_token: config.unk_token.map(TokenText::into_text),
            tokenizer_class: config.tokenizer_class,
            add_bos_token: config.add_bos_token,
            add_eos_token: config.add_eos_token,
            eos_ids,
            bos_id: ids(generation.bos_token_id, model.bos_token_id).first().copied(),
            claims,
        })
    }
}

/// Converts the tokenizer of a GGUF file.
fn of_model_file(data: TokenizerData) -> Result<TokenizerSource, VocabularyError> {
    match data.model.as_str() {
        "bert" => word_pieces::tokenizer_json_of_file(&data).map(TokenizerSource::Json),
        "t5" => data.unigram_json().map(|json| TokenizerSource::Json(json.into_bytes())),
        _ => Vocabulary::from_gguf(data).map(TokenizerSource::from),
    }
}

/// Returns the names of the files with tokenizers. The first one that exists is used.
pub fn tokenizer_files() -> impl Iterator<Item = &'static str> {
    let vocabularies = tokenizer_files::FILES.iter().map(|(name, _)| *name);
    std::iter::once("tokenizer.json").chain(vocabularies).chain([word_pieces::FILE])
}

/// Returns the vocabulary in the first file that exists.
fn vocabulary_file(files: &ModelFiles<'_>, facts: &ModelFacts) -> Result<TokenizerSource, AssetError> {
    for &(name, read) in tokenizer_files::FILES {
        if let Some(bytes) = files.read(name)? {
            let vocabulary =
                read(&bytes, facts).map_err(|error| AssetError::Vocabulary { file: name, error })?;
            return Ok(vocabulary.into());
        }
    }
    if let Some(bytes) = files.read(word_pieces::FILE)? {
        let json = word_pieces::tokenizer_json(&bytes, facts)
            .map_err(|error| AssetError::Vocabulary { file: word_pieces::FILE, error })?;
        return Ok(TokenizerSource::Json(json));
    }
    Err(AssetError::NoTokenizer(files.origin()))
}

/// Returns the texts of the tokens that begin and end a sequence, as the vocabulary names them.
fn end_texts(tokenizer: &TokenizerSource) -> (Option<String>, Option<String>) {
    let TokenizerSource::Vocabulary(vocabulary) = tokenizer else { return (None, None) };
    let text = |id: Option<u32>| vocabulary.text(id?).map(str::to_owned);
    let (bos, eos) = vocabulary.ends();
    (text(bos), text(eos))
}

/// The template for conversations with tools in the newest layout of transformers.
const TOOL_TEMPLATE: &str = "additional_chat_templates/tool_use.jinja";

/// Returns the templates from the newest layout that exists: a file of its own, then
/// `chat_template.json`, then the tokenizer's configuration. A template for tools in a file of its
/// own is combined with any of them.
fn chat_templates(
    files: &ModelFiles<'_>,
    configured: Option<Templates>,
) -> Result<(Option<String>, Option<String>), AssetError> {
    #[derive(Default, Deserialize)]
    #[serde(default)]
    struct File {
        chat_template: Option<Templates>,
    }
    let text = |name: &'static str| {
        let text = files.read(name)?.map(|bytes| String::from_utf8(bytes.into_owned()));
        text.transpose().map_err(|_| AssetError::NotText(name))
    };
    let tools = text(TOOL_TEMPLATE)?;
    if let Some(template) = text("chat_template.jinja")? {
        return Ok((Some(template), tools));
    }
    let separate: File = files.json("chat_template.json")?;
    let (template, named) = separate.chat_template.or(configured).map_or((None, None), Templates::split);
    Ok((template.or_else(|| tools.clone()), tools.or(named)))
}

#[cfg(test)]
mod tests {
    use super::files::{MAX_CONFIG, MAX_TOKENIZER};
    use super::*;

    #[test]
    fn a_missing_tokenizer_is_one_clear_error() {
        let error = TextAssets::from_dir(Path::new("/nowhere/at/all")).unwrap_err().to_string();
        assert!(error.starts_with("/nowhere/at/all: tokenizer.json is missing"), "{error}");
    }

    #[test]
    fn a_broken_file_is_named() {
        let files: &[(&str, &[u8])] = &[("tokenizer.json", b"{}"), ("generation_config.json", b"{")];
        let error = TextAssets::from_files(files).unwrap_err().to_string();
        assert!(error.starts_with("generation_config.json is not valid"), "{error}");
    }

    #[test]
    fn each_setting_comes_from_the_most_specific_file() {
        let files: &[(&str, &[u8])] = &[
            ("tokenizer.json", b"{}"),
            ("config.json", br#"{"eos_token_id": 7, "bos_token_id": 1}"#),
            (
                "tokenizer_config.json",
                br#"{"bos_token": {"content": "<s>"}, "eos_token": "</s>", "add_bos_token": true,
                     "chat_template": [{"name": "tool_use", "template": "T"}, {"name": "default", "template": "D"}]}"#,
            ),
        ];
        let assets = TextAssets::from_files(files).unwrap();
        assert_eq!((assets.eos_ids, assets.bos_id), (vec![7], Some(1)));
        assert_eq!(assets.bos_token.as_deref(), Some("<s>"));
        assert_eq!(assets.chat_template.as_deref(), Some("D"));
        assert_eq!(assets.tool_template.as_deref(), Some("T"));

        let more: &[(&str, &[u8])] = &[
            ("generation_config.json", br#"{"eos_token_id": [1, 2]}"#),
            ("chat_template.json", br#"{"chat_template": "J"}"#),
        ];
        let assets = TextAssets::from_files(&[files, more].concat()).unwrap();
        assert_eq!((assets.eos_ids, assets.chat_template.as_deref()), (vec![1, 2], Some("J")));

        let jinja: &[(&str, &[u8])] = &[("chat_template.jinja", b"X")];
        let assets = TextAssets::from_files(&[files, more, jinja].concat()).unwrap();
        assert_eq!(assets.chat_template.as_deref(), Some("X"));
    }

    #[test]
    fn a_template_for_tools_may_have_a_file_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| std::fs::write(folder.path().join(name), text).unwrap();
        std::fs::create_dir(folder.path().join("additional_chat_templates")).unwrap();
        write("tokenizer.json", "{}");
        write("additional_chat_templates/tool_use.jinja", "T");
        let templates = || {
            let assets = TextAssets::from_dir(folder.path()).unwrap();
            (assets.chat_template.unwrap(), assets.tool_template.unwrap())
        };
        assert_eq!(templates(), ("T".into(), "T".into()));
        let named = r#"{"chat_template": [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]}"#;
        write("tokenizer_config.json", named);
        assert_eq!(templates(), ("D".into(), "T".into()));
        write("chat_template.jinja", "X");
        assert_eq!(templates(), ("X".into(), "T".into()));
    }

    /// Tests a FIFO without a writer, a folder, and files that are too large.
    #[test]
    #[cfg(unix)]
    fn special_and_oversized_files_are_refused_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("tokenizer.json"), "{}").unwrap();
        let refusal = || TextAssets::from_dir(folder.path()).unwrap_err().to_string();

        let made = std::process::Command::new("mkfifo").arg(path("config.json")).status().unwrap();
        assert!(made.success());
        let (told, text) = std::sync::mpsc::channel();
        let reader = std::thread::scope(|scope| {
            scope.spawn(|| told.send(refusal()));
            let text =
                text.recv_timeout(millrace_test_patience::patience(std::time::Duration::from_secs(20)));
            if text.is_err() {
                // This ends the reader, so that the test fails instead of hanging.
                let _ = std::fs::OpenOptions::new().write(true).open(path("config.json"));
            }
            text
        });
        let text = reader.expect("a FIFO is not waited for");
        assert!(text.contains("config.json: it is not a regular file"), "{text}");
        std::fs::remove_file(path("config.json")).unwrap();

        std::fs::create_dir(path("generation_config.json")).unwrap();
        assert!(refusal().contains("generation_config.json: it is not a regular file"), "{}", refusal());
        std::fs::remove_dir(path("generation_config.json")).unwrap();

        for (name, bytes) in
            [("tokenizer_config.json", MAX_CONFIG + 1), ("tokenizer.json", MAX_TOKENIZER + 1)]
        {
            std::fs::File::create(path(name)).unwrap().set_len(bytes).unwrap();
            assert!(refusal().contains(&format!("{name}: it has {bytes} bytes, and")), "{}", refusal());
        }
    }

    #[test]
    fn another_tokenizer_config_overrides_the_fields_that_it_has() {
        let files: &[(&str, &[u8])] = &[
            ("tokenizer.json", b"{}"),
            ("chat_template.jinja", b"X"),
            ("tokenizer_config.json", br#"{"bos_token": "<s>", "eos_token": "</s>"}"#),
        ];
        let path = std::env::temp_dir().join(format!("millrace-tokenizer-config-{}", std::process::id()));
        let read = |text: &str| {
            std::fs::write(&path, text).unwrap();
            TextAssets::from_files(files).unwrap().with_tokenizer_config(&path)
        };
        let assets =
            read(r#"{"chat_template": [{"name": "default", "template": "D"}], "eos_token": "<end>"}"#)
                .unwrap();
        assert_eq!(
            (assets.chat_template.as_deref(), assets.eos_token.as_deref()),
            (Some("D"), Some("<end>"))
        );
        assert_eq!(assets.bos_token.as_deref(), Some("<s>"));
        assert_eq!(read("{}").unwrap().chat_template.as_deref(), Some("X"));
        let error = read("{").unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        std::fs::remove_file(&path).unwrap();
        assert!(matches!(
            TextAssets::from_files(files).unwrap().with_tokenizer_config(&path),
            Err(AssetError::Io { .. })
        ));
    }
}
