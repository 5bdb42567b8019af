//! The tokens that end an answer.
//!
//! A model's files name them in several places, and fine-tuned models often name them in one place only. An answer to which
//! an end token is missing runs on to `max_tokens`, so all places count.

use serde_json::json;

use super::template::{ChatTemplate, Conversation};
use super::tokenizer::Tokenizer;
use crate::assets::Assets;

/// What the assistant says in the conversation that shows how a template ends a turn.
const ANSWER: &str = "millracefirstanswer";

/// The tokens that end an answer: those of `generation_config.json` or else `config.json`, the tokenizer's `eos_token`, and
/// the token with which the chat template closes a message of the assistant. None occurs twice.
pub(crate) fn end_tokens(
    assets: &Assets,
    tokenizer: &Tokenizer,
    template: Option<&ChatTemplate>,
) -> Vec<u32> {
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

/// The special token that stands behind a message of the assistant, with nothing but white space between them.
fn end_of_turn(template: &ChatTemplate, tokenizer: &Tokenizer) -> Option<u32> {
    let messages =
        vec![json!({"role": "user", "content": "Hello"}), json!({"role": "assistant", "content": ANSWER})];
    let text = template.render_now(&Conversation { messages, ..Conversation::default() }).ok()?;
    let (_, after) = text.rsplit_once(ANSWER)?;
    let after = after.trim_start();
    let found = tokenizer.control_tokens().find(after).next().filter(|found| found.start == 0)?;
    tokenizer.token_id(after.get(found)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{EOS, assets_with};

    /// Ids of the tokens that follow `</s>`.
    const MARK: u32 = EOS + 1;

    fn ends(template: &str, marks: &[&str], change: impl FnOnce(&mut Assets)) -> Vec<u32> {
        let mut assets = assets_with(marks);
        change(&mut assets);
        let tokenizer = Tokenizer::new(&assets, 1).unwrap();
        let bos = assets.bos_token.clone();
        let template = ChatTemplate::new(template, None, bos, assets.eos_token.clone(), 1).unwrap();
        end_tokens(&assets, &tokenizer, Some(&template))
    }

    #[test]
    fn what_closes_a_message_of_the_assistant_ends_an_answer() {
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
        // A template that closes nothing, one that closes with a plain text, and one that refuses.
        for template in [turn("<|user|>", "\n"), turn("", "###\n"), "{{ raise_exception('no') }}".into()] {
            assert_eq!(ends(&template, &["<|user|>", "<|x|>"], |_| ()), [EOS], "{template}");
        }
    }

    #[test]
    fn the_next_turn_is_no_end() {
        let template = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}";
        assert_eq!(ends(template, &["<|user|>", "<|assistant|>"], |_| ()), [EOS]);
    }

    #[test]
    fn the_tokenizers_end_counts_beside_the_configured_ones() {
        let change = |assets: &mut Assets| {
            assets.eos_ids = vec![MARK];
            assets.eos_token = Some("</s>".into());
        };
        let template = "{% for m in messages %}{{ m.content }}{{ eos_token }}{% endfor %}";
        assert_eq!(ends(template, &["<|eot|>"], change), [MARK, EOS]);
        let unknown = |assets: &mut Assets| assets.eos_token = Some("<nowhere>".into());
        assert_eq!(ends("", &[], unknown), [EOS]);
    }
}
