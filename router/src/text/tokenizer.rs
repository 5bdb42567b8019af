//! The tokenizer, and a bounded way to run it.

use std::sync::Arc;

use tokenizers::Tokenizer as Library;
use tokio::sync::Semaphore;

use super::detokenize::Detokenizer;
use super::pieces::{Pieces, Start};
use crate::assets::Assets;

/// Token ids are below this. Tables by id are made for all of them.
const MAX_IDS: u32 = 1 << 24;

/// What can go wrong between text and token ids.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TextError {
    /// `tokenizer.json` cannot be read.
    #[error("tokenizer.json is not a tokenizer: {0}. Take the file from the model's repository again")]
    Tokenizer(String),
    /// The decoder in `tokenizer.json` is of an unknown kind.
    #[error(
        "the decoder in tokenizer.json is not supported: {0}. Supported are ByteLevel, Metaspace, and sequences of \
         Replace, ByteFallback, Fuse and Strip"
    )]
    Decoder(String),
    /// The text cannot be turned into tokens.
    #[error("tokenizer error {0}")]
    Encode(String),
}

/// Whether the tokens that begin (and end) a text are put around it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Specials {
    /// As the tokenizer's post-processor says; for raw prompts.
    Add,
    /// Not at all; for prompts from a chat template, which writes them itself.
    Omit,
}

/// A text as tokens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Encoded {
    /// Token ids.
    pub ids: Vec<u32>,
    /// For each token, the bytes of the text that it covers; empty at 0 for tokens that were put around it.
    pub offsets: Vec<(usize, usize)>,
}

/// Turns text into token ids and back. Clones are the same tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    library: Library,
    pieces: Pieces,
    longest: usize,
    /// For each id, whether it is a mark; looked at for every token.
    special: Vec<bool>,
    /// Put in front of raw prompts: the configuration asks for it and the post-processor does not do it.
    bos: Option<u32>,
    workers: Arc<Semaphore>,
}

impl Tokenizer {
    /// Reads the tokenizer of a model; at most `workers` texts are encoded at the same time.
    ///
    /// # Errors
    /// [`TextError`] names what is wrong with the file.
    pub fn new(assets: &Assets, workers: usize) -> Result<Self, TextError> {
        let mut library =
            Library::from_bytes(&assets.tokenizer).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        // Limits belong to the server, and a batch is never padded.
        library.with_truncation(None).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        library.with_padding(None);
        let added = library.get_added_tokens_decoder();
        let ids = library.get_vocab(true).into_values().chain(added.keys().copied());
        let highest = ids.max().unwrap_or(0);
        if highest >= MAX_IDS {
            return Err(TextError::Tokenizer(format!(
                "it has a token with the id {highest}, but ids must be below {MAX_IDS}"
            )));
        }
        let mut special = vec![false; highest as usize + 1];
        for (&id, _) in added.iter().filter(|(_, token)| token.special) {
            special.resize(special.len().max(id as usize + 1), false);
            special[id as usize] = true;
        }
        let source: serde_json::Value =
            serde_json::from_slice(&assets.tokenizer).map_err(|e| TextError::Tokenizer(e.to_string()))?;
        let pieces = Pieces::new(source.get("decoder"), highest + 1, |id| library.id_to_token(id))?;
        let bos = bos_to_add(assets, &library)?;
        Ok(Tokenizer(Arc::new(Inner {
            longest: pieces.longest(),
            library,
            pieces,
            special,
            bos,
            workers: Arc::new(Semaphore::new(workers.max(1))),
        })))
    }

    /// Encodes away from the async threads, when one of the workers is free.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub async fn encode(&self, text: String, specials: Specials) -> Result<Encoded, TextError> {
        let stopped = |_| TextError::Encode("worker has stopped".into());
        let permit =
            self.0.workers.clone().acquire_owned().await.map_err(|e| TextError::Encode(e.to_string()))?;
        let tokenizer = self.clone();
        tokio::task::spawn_blocking(move || {
            // Held by the work itself: a client that leaves does not free a worker that is still busy.
            let _permit = permit;
            tokenizer.encode_now(&text, specials)
        })
        .await
        .unwrap_or_else(|e| Err(stopped(e)))
    }

    /// Encodes on this thread.
    ///
    /// # Errors
    /// [`TextError::Encode`] if the tokenizer cannot represent the text.
    pub fn encode_now(&self, text: &str, specials: Specials) -> Result<Encoded, TextError> {
        let encoding = self
            .0
            .library
            .encode(text, specials == Specials::Add)
            .map_err(|e| TextError::Encode(e.to_string()))?;
        let mut encoded =
            Encoded { ids: encoding.get_ids().to_vec(), offsets: encoding.get_offsets().to_vec() };
        if let (Some(bos), Specials::Add) = (self.0.bos, specials) {
            encoded.ids.insert(0, bos);
            encoded.offsets.insert(0, (0, 0));
        }
        Ok(encoded)
    }

    /// A fresh detokenizer; one for a text that `continues` another keeps the space it starts with.
    pub fn detokenizer(&self, skip_special: bool, continues: bool) -> Detokenizer {
        Detokenizer::new(self.clone(), skip_special, continues)
    }

    /// The bytes that a token adds to a text; empty for an unknown id.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.0.pieces.get(id)
    }

    /// A token by itself as text; bytes that are no character are replaced.
    pub fn token_text(&self, id: u32) -> String {
        String::from_utf8_lossy(self.token_bytes(id)).into_owned()
    }

    /// The id of the token that is written like this in the vocabulary.
    pub fn token_id(&self, token: &str) -> Option<u32> {
        self.0.library.token_to_id(token)
    }

    /// How the vocabulary writes a token.
    pub fn vocabulary_text(&self, id: u32) -> Option<String> {
        self.0.library.id_to_token(id)
    }

    /// Whether the token is a mark that is no part of the text, such as the end of a turn.
    pub fn is_special(&self, id: u32) -> bool {
        self.0.special.get(id as usize).copied().unwrap_or(false)
    }

    /// Token ids are below this.
    pub fn size(&self) -> u32 {
        // It has as many entries as the highest id needs, which is a u32.
        self.0.special.len() as u32
    }

    /// Whether a text is what its tokens say one after the other, with nothing between them.
    pub fn is_plain(&self) -> bool {
        self.separator().is_empty()
    }

    /// The length of the longest token in bytes.
    pub fn longest_token(&self) -> usize {
        self.0.longest
    }

    pub(super) fn separator(&self) -> &'static str {
        self.0.pieces.separator
    }

    pub(super) fn start(&self) -> Start {
        self.0.pieces.start
    }

    /// What the library makes of a whole sequence: the reference in tests.
    #[cfg(test)]
    pub(crate) fn library_decode(&self, ids: &[u32], skip_special: bool) -> String {
        self.0.library.decode(ids, skip_special).unwrap()
    }
}

fn bos_to_add(assets: &Assets, library: &Library) -> Result<Option<u32>, TextError> {
    let (Some(true), Some(bos)) = (assets.add_bos_token, &assets.bos_token) else { return Ok(None) };
    let Some(bos) = library.token_to_id(bos) else { return Ok(None) };
    let probe = library.encode("a", true).map_err(|e| TextError::Encode(e.to_string()))?;
    Ok((probe.get_ids().first() != Some(&bos)).then_some(bos))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::test_support;

    fn refusal(change: impl FnOnce(&mut Value)) -> String {
        let mut assets = test_support::assets();
        let mut file: Value = serde_json::from_slice(&assets.tokenizer).unwrap();
        change(&mut file);
        assets.tokenizer = serde_json::to_vec(&file).unwrap();
        Tokenizer::new(&assets, 1).unwrap_err().to_string()
    }

    #[test]
    fn ids_that_no_table_could_hold_are_refused() {
        for id in [u32::MAX, u32::MAX - 1, MAX_IDS] {
            let in_vocabulary = refusal(|file| file["model"]["vocab"]["far"] = json!(id));
            let added = refusal(|file| {
                let mut token = file["added_tokens"][0].clone();
                (token["id"], token["content"]) = (json!(id), json!("<far>"));
                // As the library wants them: known to the model too.
                file["model"]["vocab"]["<far>"] = json!(id);
                file["added_tokens"].as_array_mut().unwrap().push(token);
            });
            for text in [in_vocabulary, added] {
                assert!(text.contains(&format!("a token with the id {id}, but ids must be below")), "{text}");
            }
        }
    }
}
