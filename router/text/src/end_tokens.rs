//! The tokens that end an answer.
//!
//! A model's files name end tokens in several places, and the files of fine-tuned models often name
//! a token in one place only. If an end token is missing, answers run on to `max_tokens`. Therefore
//! all places are read.

use serde_json::json;

use super::conversation::Conversation;
use super::template::ChatTemplate;
use super::tokenizer::Tokenizer;
use crate::assets::TextAssets;

/// The assistant's message in the conversation that shows how a template ends a turn.
const ANSWER: &str = "millracefirstanswer";
/// The number of special tokens after the message that are looked at.
const MAX_FOLLOWING: usize = 32;

/// Returns the tokens that end an answer, without duplicates: those of `generation_config.json` or
/// else `config.json`, the tokenizer's `eos_token`, and the token with which the chat template
/// closes an assistant message.
pub fn end_tokens(assets: &TextAssets, tokenizer: &Tokenizer, template: Option<&ChatTemplate>) -> Vec<u32> {
    let named = assets.eos_token.as_deref().and_then(|text| tokenizer.token_id(text));
    let closing = template.and_then(|template| end_of_turn(template, tokenizer));
    let mut ends = assets.eos_ids.clone();
    for id in named.into_iter().chain(closing) {
        if !ends.contains(&id) {
            ends.push(id);
        }
    }
    ends
}

/// Returns the special token that follows an assistant message, with nothing but white space
/// between them. If this token follows several times, it closes parts of the message. Then this is
/// the first token that follows once.
fn end_of_turn(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    let messages =
        vec![json!({"role": "user", "content": "Hello"}), json!({"role": "assistant", "content": ANSWER})];
    let text = template.render_now(&Conversation { messages, ..Conversation::default() }).ok()?;
    let (_, after) = text.rsplit_once(ANSWER)?;
    let after = after.trim_start();
    let found: Vec<&str> = tokenizer
        .control_tokens()
        .find(after)
        .take(MAX_FOLLOWING)
        .filter_map(|found| after.get(found))
        .collect();
    let first = found.first().filter(|first| after.starts_with(**first))?;
    let is_once = |token: &&&str| found.iter().filter(|other| other == token).count() == 1;
    let last = if is_once(&first) { Some(first) } else { found.iter().find(is_once) };
    tokenizer.token_id(last?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{EOS, assets_with};

    /// The id of the first token after `</s>`.
    const MARK: u32 = EOS + 1;

    fn ends(template: &str, marks: &[&str], change: impl FnOnce(&mut TextAssets)) -> Vec<u32> {
        let mut assets = assets_with(marks);
        change(&mut assets);
        let tokenizer = Tokenizer::new(&assets).unwrap();
        let bos = assets.bos_token.clone();
        let template = ChatTemplate::new(template, None, bos, assets.eos_token.clone(), 1).unwrap();
        end_tokens(&assets, &tokenizer, Some(&template))
    }

    #[test]
    fn the_token_that_closes_an_assistant_message_ends_an_answer() {
        let turn = |open: &str, close: &str| {
            format!(
                "{{{{ bos_token }}}}{{% for m in messages %}}{open}{{{{ m.role }}}}\n{{{{ m.content | trim }}}}{close}{{% endfor %}}\
                 {{% if add_generation_prompt %}}{open}assistant\n{{% endif %}}"
            )
        };
        for (open, close) in [
            ("<|im_start|>", "<|im_end|>\n"),
            ("<|start_header_id|>", "<|eot_id|>"),
            ("<start_of_turn>", "<end_of_turn>\n"),
            ("<|user|>", "\n<|end|>\n"),
        ] {
            let marks = [open, close.trim()];
            assert_eq!(ends(&turn(open, close), &marks, |_| ()), [EOS, MARK + 1], "{close}");
        }
        // A template that closes nothing, one that closes with plain text, and one that refuses the
        // conversation.
        for template in [turn("<|user|>", "\n"), turn("", "###\n"), "{{ raise_exception('no') }}".into()] {
            assert_eq!(ends(&template, &["<|user|>", "<|x|>"], |_| ()), [EOS], "{template}");
        }
    }

    #[test]
    fn tokens_that_close_parts_of_a_message_do_not_end_an_answer() {
        let template = "{% for m in messages %}[open]text[sep]{{ m.content }}[close]text[sep][close]turn[sep][end]{% endfor %}";
        assert_eq!(ends(template, &["[open]", "[close]", "[sep]", "[end]"], |_| ()), [EOS, MARK + 3]);
    }

    #[test]
    fn the_start_of_the_next_turn_is_not_an_end_token() {
        let template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
        assert_eq!(ends(template, &["<|user|>", "<|assistant|>"], |_| ()), [EOS]);
    }

    #[test]
    fn the_tokenizers_eos_token_is_added_to_the_configured_ones() {
        let change = |assets: &mut TextAssets| {
            assets.eos_ids = vec![MARK];
            assets.eos_token = Some("</s>".into());
        };
        let template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
        assert_eq!(ends(template, &["<|eot|>"], change), [MARK, EOS]);
        let unknown = |assets: &mut TextAssets| assets.eos_token = Some("<nowhere>".into());
        assert_eq!(ends("", &[], unknown), [EOS]);
    }
}
