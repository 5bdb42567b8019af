//! Contradictions between the files of a model folder. Each is a warning that names both files, and
//! says which of them is used. `docs/serve-your-model.md` has the table of all of them.

use millrace_text::assets::TextAssets;
use millrace_text::{SpecialTokens, Tokenizer};

/// The most tokens that one warning names.
const MAX_NAMED: usize = 3;

/// Returns a warning for each contradiction between the files of a folder.
pub(super) fn warnings(assets: &TextAssets, tokenizer: &Tokenizer) -> Vec<String> {
    let mut found = Vec::new();
    claimed_ids(assets, tokenizer, &mut found);
    named_tokens(assets, tokenizer, &mut found);
    added_tokens(assets, tokenizer, &mut found);
    added_ends(assets, tokenizer, &mut found);
    if let Some((used, others)) = &assets.claims.templates {
        found.extend(
            others.iter().map(|other| {
                format!("{other}: its chat template differs from that of {used}, which is used")
            }),
        );
    }
    found
}

/// Compares the ids of `generation_config.json` and `config.json` with each other and with the
/// vocabulary.
fn claimed_ids(assets: &TextAssets, tokenizer: &Tokenizer, found: &mut Vec<String>) {
    let claims = &assets.claims.ids;
    for (index, used) in claims.iter().enumerate() {
        let size = tokenizer.size();
        if let Some(id) = used.ids.iter().find(|id| **id >= size) {
            found.push(format!(
                "{}: `{}` names the token {id}, but the tokenizer has only {size} tokens; the id is kept",
                used.file, used.key
            ));
        }
        for other in claims[index + 1..].iter().filter(|other| other.key == used.key) {
            let is_equal = other.ids.iter().all(|id| used.ids.contains(id));
            if !is_equal {
                found.push(format!(
                    "{}: `{}` is {:?}, but {} has {:?}, which is used",
                    other.file, other.key, other.ids, used.file, used.ids
                ));
            }
        }
    }
}

/// Compares the texts of the begin and end tokens with the vocabulary and with the ids.
fn named_tokens(assets: &TextAssets, tokenizer: &Tokenizer, found: &mut Vec<String>) {
    for (key, text, ids, rule) in [
        (
            "bos_token",
            &assets.bos_token,
            assets.bos_id.as_slice(),
            "texts and chats begin with that of the tokenizer",
        ),
        ("eos_token", &assets.eos_token, &assets.eos_ids[..], "both end an answer"),
    ] {
        let Some(text) = text else { continue };
        match tokenizer.token_id(text) {
            None => found.push(format!(
                "tokenizer_config.json: `{key}` is {text:?}, which is not in the vocabulary; it has no id"
            )),
            Some(id) if !ids.is_empty() && !ids.contains(&id) => found.push(format!(
                "tokenizer_config.json: `{key}` is {text:?} with the id {id}, but `{key}_id` of the configuration is \
                 {ids:?}; {rule}"
            )),
            Some(_) => {}
        }
    }
}

/// Compares `added_tokens_decoder` with the vocabulary of `tokenizer.json`.
fn added_tokens(assets: &TextAssets, tokenizer: &Tokenizer, found: &mut Vec<String>) {
    let differs = |(id, text): &&(u32, String)| tokenizer.vocabulary_text(*id).as_ref() != Some(text);
    let different: Vec<&(u32, String)> = assets.claims.added.iter().filter(differs).collect();
    if different.is_empty() {
        return;
    }
    let named: Vec<String> =
        different.iter().take(MAX_NAMED).map(|(id, text)| format!("{id} ({text:?})")).collect();
    found.push(format!(
        "tokenizer_config.json: `added_tokens_decoder` has {} tokens that tokenizer.json has not or with another text, \
         such as {}; tokenizer.json is used",
        different.len(),
        named.join(", ")
    ));
}

/// Compares `add_bos_token` and `add_eos_token` with what the tokenizer puts around a text.
fn added_ends(assets: &TextAssets, tokenizer: &Tokenizer, found: &mut Vec<String>) {
    let Some((before, _)) = tokenizer.affixes(SpecialTokens::Add) else { return };
    let bos = assets.bos_token.as_ref().and_then(|text| tokenizer.token_id(text));
    let begins = bos.is_some() && before.ids.first().copied() == bos;
    if assets.add_bos_token == Some(false) && begins {
        found.push(
            "tokenizer_config.json: `add_bos_token` is false, but the tokenizer puts the begin token in front of \
             texts; it stays there"
                .to_owned(),
        );
    }
    if assets.add_eos_token == Some(false) && tokenizer.text_end().is_some() {
        found.push(
            "tokenizer_config.json: `add_eos_token` is false, but the tokenizer puts the end token after texts; \
             vectors get it, and texts to be continued do not"
                .to_owned(),
        );
    }
    if tokenizer.vector_end().is_some() {
        found.push(
            "tokenizer_config.json: `add_eos_token` is true, but the tokenizer puts no end token after texts; vectors \
             get it, and texts to be continued do not"
                .to_owned(),
        );
    }
}

#[cfg(test)]
mod tests {
    use millrace_text::assets::TokenizerSource;
    use serde_json::{Value, json};

    use super::*;
    use crate::test_support::{self, BOS, EOS};

    /// Returns the warnings for a folder with the test's tokenizer and these files.
    fn found(files: &[(&str, Value)]) -> Vec<String> {
        let TokenizerSource::Json(json) = test_support::assets().text.tokenizer else {
            panic!("no tokenizer.json")
        };
        let files: Vec<(&str, Vec<u8>)> =
            files.iter().map(|(name, json)| (*name, json.to_string().into_bytes())).collect();
        let mut all: Vec<(&str, &[u8])> = files.iter().map(|(name, bytes)| (*name, &bytes[..])).collect();
        all.push(("tokenizer.json", &json));
        let assets = TextAssets::from_files(&all).unwrap();
        warnings(&assets, &Tokenizer::new(&assets).unwrap())
    }

    #[test]
    fn files_that_agree_have_no_warnings() {
        let ids = json!({"bos_token_id": BOS, "eos_token_id": [EOS]});
        let tokenizer = json!({
            "bos_token": "<s>", "eos_token": "</s>", "add_bos_token": true, "chat_template": "T",
            "added_tokens_decoder": {BOS.to_string(): {"content": "<s>"}},
        });
        let files = [
            ("config.json", ids.clone()),
            ("generation_config.json", ids),
            ("tokenizer_config.json", tokenizer),
            ("chat_template.json", json!({"chat_template": "T\n"})),
        ];
        assert_eq!(found(&files), Vec::<String>::new());
        assert_eq!(found(&[]), Vec::<String>::new());
    }

    #[test]
    fn each_contradiction_names_the_files_and_the_rule() {
        let config = |json: Value| ("config.json", json);
        let tokenizer = |json: Value| ("tokenizer_config.json", json);
        for (files, texts) in [
            (
                vec![
                    config(json!({"eos_token_id": 5})),
                    ("generation_config.json", json!({"eos_token_id": [EOS, 6]})),
                ],
                vec!["config.json: `eos_token_id` is [5], but generation_config.json has", "which is used"],
            ),
            (vec![config(json!({"eos_token_id": 70_000}))], vec!["names the token 70000", "only"]),
            (
                vec![config(json!({"eos_token_id": 7})), tokenizer(json!({"eos_token": "</s>"}))],
                vec!["`eos_token` is \"</s>\"", "both end an answer"],
            ),
            (
                vec![config(json!({"bos_token_id": 7})), tokenizer(json!({"bos_token": "<s>"}))],
                vec!["`bos_token` is \"<s>\"", "that of the tokenizer"],
            ),
            (vec![tokenizer(json!({"bos_token": "<nowhere>"}))], vec!["<nowhere>", "not in the vocabulary"]),
            (
                vec![tokenizer(json!({"added_tokens_decoder": {"7": {"content": "<x>"}}}))],
                vec!["`added_tokens_decoder`", "7 (\"<x>\")", "tokenizer.json is used"],
            ),
            (
                vec![tokenizer(json!({"bos_token": "<s>", "add_bos_token": false}))],
                vec!["`add_bos_token` is false", "it stays there"],
            ),
            (
                vec![tokenizer(json!({"eos_token": "</s>", "add_eos_token": true}))],
                vec!["`add_eos_token` is true", "vectors get it"],
            ),
            (
                vec![
                    tokenizer(json!({"chat_template": "A"})),
                    ("chat_template.json", json!({"chat_template": "B"})),
                ],
                vec!["tokenizer_config.json: its chat template differs from that of chat_template.json"],
            ),
        ] {
            let found = found(&files);
            assert_eq!(found.len(), 1, "{files:?}: {found:?}");
            assert!(texts.iter().all(|text| found[0].contains(text)), "{texts:?} in {found:?}");
        }
    }
}
