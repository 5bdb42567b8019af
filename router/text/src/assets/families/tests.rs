use std::collections::HashSet;

use serde_json::{Value, json};

use crate::assets::TextAssets;
use crate::{ChatTemplate, ControlTokenGuard, Conversation, SpecialTokens, Tokenizer};

/// The bytes of the recorded tokenizer files in this repository.
fn recorded(path: &str) -> Vec<u8> {
    let folder =
        std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../integration-tests/golden/tokenizers");
    std::fs::read(folder.join(path)).unwrap()
}

/// A model of a family, with one of the recorded tokenizers.
struct Model {
    tokenizer: Tokenizer,
    template: ChatTemplate,
}

impl Model {
    fn new(file: &'static str, tokenizer: &str, config: Value, more: Value) -> Self {
        let (config, bytes) = (config.to_string(), recorded(tokenizer));
        let generation = more["generation"].to_string();
        let tokenizer_config = more.get("tokenizer").cloned().unwrap_or_else(|| json!({})).to_string();
        let generation = if generation == "null" { "{}".to_owned() } else { generation };
        let files: &[(&str, &[u8])] = &[
            (file, &bytes),
            ("config.json", config.as_bytes()),
            ("generation_config.json", generation.as_bytes()),
            ("tokenizer_config.json", tokenizer_config.as_bytes()),
        ];
        let assets = TextAssets::from_files(files).unwrap();
        let tokenizer = Tokenizer::new(&assets).unwrap();
        let source = assets.chat_template.as_deref().expect("the family has a template");
        let template =
            ChatTemplate::new(source, None, assets.bos_token.clone(), assets.eos_token.clone(), 1).unwrap();
        Model { tokenizer, template }
    }

    /// Renders a conversation of the user's and the assistant's texts by turns.
    fn prompt(&self, system: Option<&str>, turns: &[&str]) -> String {
        let system = system.map(|text| json!({"role": "system", "content": text}));
        let roles = ["user", "assistant"].into_iter().cycle();
        let turns = roles.zip(turns).map(|(role, text)| json!({"role": role, "content": text}));
        let messages = system.into_iter().chain(turns).collect();
        let conversation = Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
        self.template.render_now(&conversation).unwrap()
    }

    /// Returns the ids of a prompt whose user wrote this text.
    fn guarded(&self, text: &str) -> Vec<u32> {
        let messages = vec![json!({"role": "user", "content": text})];
        let mut conversation =
            Conversation { messages, add_generation_prompt: true, ..Conversation::default() };
        let mut guard = ControlTokenGuard::new(Some(self.tokenizer.control_tokens().clone()));
        guard.hide_conversation(&mut conversation);
        let rendered = self.template.render_guarded_now(conversation, &guard).unwrap();
        self.tokenizer.encode_rendered_now(&rendered, SpecialTokens::Omit).unwrap().ids
    }

    fn id(&self, text: &str) -> u32 {
        self.tokenizer.token_id(text).unwrap_or_else(|| panic!("no token {text}"))
    }
}

const PIECES: &str = "bpe_bytes_symbols/tokenizer.model";

fn chatglm(more: Value) -> Model {
    let mut config = json!({"model_type": "chatglm"});
    config.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    Model::new("tokenizer.model", PIECES, config, json!({}))
}

fn chatglm1() -> Model {
    let config = json!({"model_type": "chatglm", "position_encoding_2d": true, "mask_token_id": 700,
        "gmask_token_id": 701, "bos_token_id": 704, "eos_token_id": 705});
    Model::new("ice_text.model", "unigram_trimmed/tokenizer.model", config, json!({}))
}

fn glm4() -> Model {
    Model::new("tokenizer.model", "glm4/tokenizer.model", json!({"model_type": "chatglm"}), json!({}))
}

fn baichuan() -> Model {
    let generation = json!({"user_token_id": 4, "assistant_token_id": 7});
    Model::new(
        "tokenizer.model",
        PIECES,
        json!({"model_type": "baichuan"}),
        json!({"generation": generation}),
    )
}

fn qwen() -> Model {
    let more = json!({"generation": {"chat_format": "chatml"}});
    Model::new("qwen.tiktoken", "qwen/qwen.tiktoken", json!({"model_type": "qwen"}), more)
}

/// InternLM's tokens for turns, after the pieces.
fn internlm(model_type: &str, tokens: [&str; 2]) -> Model {
    let listed = json!({"700": {"content": tokens[0], "special": true}, "701": {"content": tokens[1], "special": true}});
    let more = json!({"tokenizer": {"added_tokens_decoder": listed}});
    Model::new("tokenizer.model", PIECES, json!({"model_type": model_type}), more)
}

fn llama(name: &str) -> Model {
    let config = json!({"model_type": "llama", "_name_or_path": name});
    Model::new("tokenizer.model", PIECES, config, json!({}))
}

#[test]
fn prompts_have_the_formats_of_their_families() {
    let model = chatglm1();
    assert_eq!(model.prompt(None, &["a"]), "a[gMASK]<sop>");
    assert_eq!(
        model.prompt(Some("s"), &["a", "b", "c"]),
        "[Round 0]\n问：s\na\n答：b\n[Round 1]\n问：c\n答：[gMASK]<sop>"
    );
    let model = chatglm(json!({}));
    assert_eq!(
        model.prompt(None, &["a", "b", "c"]),
        "[gMASK]sop[Round 1]\n\n问：a\n\n答：b\n\n[Round 2]\n\n问：c\n\n答："
    );
    let model = chatglm(json!({"seq_length": 8192}));
    assert_eq!(
        model.prompt(Some("s"), &["a", "b", "c"]),
        "[gMASK]sop<|system|>\n s<|user|>\n a<|assistant|>\n b<|user|>\n c<|assistant|>"
    );
    assert_eq!(glm4().prompt(None, &["a"]), "[gMASK]<sop><|user|>\na<|assistant|>");
    let model = qwen();
    assert_eq!(
        model.prompt(None, &["a"]),
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n"
    );
    let model = internlm("internlm", ["<eoh>", "<eoa>"]);
    assert_eq!(
        model.prompt(None, &["a", "b", "c"]),
        "<s><|User|>:a<eoh>\n<|Bot|>:b<eoa>\n<s><|User|>:c<eoh>\n<|Bot|>:"
    );
    let model = internlm("internlm2", ["<|im_start|>", "<|im_end|>"]);
    assert_eq!(model.prompt(None, &["a"]), "<s><|im_start|>user\na<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(
        llama("org/Llama-2-7b-chat-hf").prompt(Some("s"), &["a", "b", "c"]),
        "<s>[INST] <<SYS>>\ns\n<</SYS>>\n\na [/INST] b </s><s>[INST] c [/INST]"
    );
    let vicuna = llama("org/vicuna-7b").prompt(Some("s"), &["a", "b", "c"]);
    assert_eq!(vicuna, "<s>s USER: a ASSISTANT: b</s>USER: c ASSISTANT:");
}

#[test]
fn baichuan_writes_the_tokens_of_its_generation_config() {
    let model = baichuan();
    assert_eq!(model.prompt(Some("s"), &["a"]), "s<n>a[x]");
    let ids = model.guarded("a");
    assert_eq!((ids[0], *ids.last().unwrap()), (4, 7));
    // A base model names no tokens, and has no format.
    let bytes = recorded(PIECES);
    let files: &[(&str, &[u8])] =
        &[("tokenizer.model", &bytes), ("config.json", br#"{"model_type": "baichuan"}"#)];
    assert_eq!(TextAssets::from_files(files).unwrap().chat_template, None);
}

#[test]
fn pieces_in_the_order_of_fairseq_are_refused() {
    let bytes = recorded("unigram_trimmed/tokenizer.model");
    let config: &[u8] = br#"{"model_type": "xlm-roberta"}"#;
    let files = [("sentencepiece.bpe.model", &bytes[..]), ("config.json", config)];
    let error = TextAssets::from_files(&files).map(drop).unwrap_err();
    let error = std::iter::successors(Some(&error as &dyn std::error::Error), |error| error.source());
    let error: Vec<String> = error.map(ToString::to_string).collect();
    let error = error.join(": ");
    assert!(error.contains("sentencepiece.bpe.model") && error.contains("save tokenizer.json"), "{error}");
}

#[test]
fn prefixes_surround_raw_prompts_and_begin_chats() {
    let raw = |model: &Model| model.tokenizer.encode_now("ab", SpecialTokens::Add).unwrap().ids;
    let bare = |model: &Model| model.tokenizer.encode_now("ab", SpecialTokens::Omit).unwrap().ids;
    for (model, sop) in
        [(chatglm(json!({})), "sop"), (chatglm(json!({"seq_length": 8192})), "sop"), (glm4(), "<sop>")]
    {
        let prefix = [model.id("[gMASK]"), model.id(sop)];
        assert_eq!(raw(&model), [&prefix[..], &bare(&model)].concat());
        assert_eq!(model.guarded("ab")[..2], prefix);
    }
    let model = chatglm1();
    assert_eq!(raw(&model), [&bare(&model)[..], &[701, 704]].concat());
    assert_eq!(model.guarded("ab"), raw(&model));
    assert_eq!(raw(&baichuan()), bare(&baichuan()), "Baichuan has no begin token");
    let llama = llama("vicuna");
    assert_eq!(raw(&llama), [&[1][..], &bare(&llama)].concat());
}

#[test]
fn chatglm_turns_white_space_into_tokens_and_back() {
    let config = json!({"model_type": "chatglm", "position_encoding_2d": true});
    let model = Model::new("ice_text.model", "unigram_casefold/tokenizer.model", config, json!({}));
    let ids = model.tokenizer.encode_now("a\nb", SpecialTokens::Omit).unwrap().ids;
    assert!(ids.contains(&model.id("<n>")), "{ids:?}");
    let mut detokenizer = model.tokenizer.detokenizer(false, false);
    let back: String = ids.iter().map(|&id| detokenizer.push(id)).collect();
    assert_eq!(back, "a\nb");
}

#[test]
fn chatglm3_ends_its_answers_before_the_next_role() {
    let bytes = recorded(PIECES);
    let config = br#"{"model_type": "chatglm", "seq_length": 8192, "eos_token_id": 2}"#;
    let assets = TextAssets::from_files(&[("tokenizer.model", &bytes), ("config.json", config)]).unwrap();
    let model = chatglm(json!({"seq_length": 8192}));
    assert_eq!(assets.eos_ids, [2, model.id("<|user|>"), model.id("<|observation|>")]);
}

#[test]
fn markers_within_words_are_text() {
    let model = chatglm(json!({}));
    let sop = model.id("sop");
    let ids = |text: &str| model.tokenizer.encode_now(text, SpecialTokens::Omit).unwrap().ids;
    assert!(!ids("philosopher").contains(&sop));
    assert!(ids("[gMASK]sop").contains(&sop));
}

#[test]
fn special_tokens_in_messages_are_text_for_every_family() {
    let models = [
        chatglm1(),
        chatglm(json!({})),
        chatglm(json!({"seq_length": 8192})),
        glm4(),
        baichuan(),
        qwen(),
        internlm("internlm", ["<eoh>", "<eoa>"]),
        internlm("internlm2", ["<|im_start|>", "<|im_end|>"]),
        llama("llama-2-chat"),
        llama("vicuna"),
    ];
    for model in models {
        let size = model.tokenizer.size();
        let text = |id: u32| model.tokenizer.vocabulary_text(id).unwrap_or_default();
        // The unknown token also stands for characters without a token.
        let is_marker = |id: u32| model.tokenizer.is_special(id) && text(id) != "<unk>";
        let markers: HashSet<u32> = (0..size).filter(|&id| is_marker(id)).collect();
        assert!(markers.len() >= 2, "{markers:?}");
        let count = |ids: &[u32]| ids.iter().filter(|id| markers.contains(id)).count();
        let harmless = count(&model.guarded("x y"));
        for &id in &markers {
            let ids = model.guarded(&format!("x {} y", text(id)));
            assert_eq!(count(&ids), harmless, "{}: {ids:?}", text(id));
        }
    }
}
