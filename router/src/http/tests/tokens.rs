//! vLLM's routes for tokens. TGI's `/tokenize` is tested in `tgi`.

use serde_json::json;

use super::{HttpConfig, RequestLimits, Script, Server};
use crate::test_support::{BOS, EOS, TEMPLATE, assets};

#[tokio::test]
async fn a_prompt_is_tokenized_like_in_vllm() {
    let server = Server::saying("x");
    let reply = server.post("/tokenize", json!({"model": "m", "prompt": "ab"})).await;
    let expected = json!({"count": 3, "max_model_len": 1024, "tokens": [BOS, 97, 98], "token_strs": null});
    assert_eq!((reply.header("content-type"), reply.json()), ("application/json", expected));
    let plain = json!({"prompt": "a</s>", "add_special_tokens": false, "return_token_strs": true});
    let expected =
        json!({"count": 2, "max_model_len": 1024, "tokens": [97, EOS], "token_strs": ["a", "</s>"]});
    assert_eq!(server.post("/tokenize", plain).await.json(), expected);

    let chat = json!({"messages": [{"role": "user", "content": "a"}], "add_generation_prompt": false});
    let tokens = server.post("/tokenize", chat).await.json()["tokens"].clone();
    let expected: Vec<u32> = [BOS].into_iter().chain("user: a\n".bytes().map(u32::from)).collect();
    assert_eq!(tokens, json!(expected));

    // A response that is written in several pieces.
    let long = "ab".repeat(2000);
    let body = json!({"prompt": long, "add_special_tokens": false, "return_token_strs": true});
    let reply = server.post("/tokenize", body).await.json();
    assert_eq!((&reply["count"], reply["tokens"].as_array().unwrap().len()), (&json!(4000), 4000));
    assert_eq!(reply["token_strs"].as_array().unwrap().len(), 4000);

    for wrong in [json!({}), json!({"prompt": "a", "messages": []})] {
        let reply = server.post("/tokenize", wrong).await;
        assert_eq!(reply.status.as_u16(), 422);
        assert!(reply.body.contains("one of the fields `inputs`, `prompt` and `messages`"), "{}", reply.body);
    }
}

#[tokio::test]
async fn tokens_become_text() {
    let server = Server::saying("x");
    let reply = server.post("/detokenize", json!({"tokens": [BOS, 97, 34, 0xC3, 0xA9, EOS]})).await;
    assert_eq!((reply.status.as_u16(), reply.json()), (200, json!({"prompt": "<s>a\"é</s>"})));
    assert_eq!(server.post("/detokenize", json!({"tokens": []})).await.json(), json!({"prompt": ""}));
    // The text ends with a part of a character.
    let reply = server.post("/detokenize", json!({"tokens": [97, 0xC3]})).await;
    assert_eq!(reply.json(), json!({"prompt": "a\u{FFFD}"}));
    for (tokens, text) in [
        (json!([258]), "token id 258 is outside of the vocabulary of 258"),
        (json!(vec![97; 1025]), "`tokens` must have at most 1024 tokens. Given: 1025"),
    ] {
        let reply = server.post("/detokenize", json!({"tokens": tokens})).await;
        assert_eq!(reply.status.as_u16(), 422);
        assert_eq!(reply.json()["error"], format!("Input validation error: {text}"));
    }
}

#[tokio::test]
async fn the_tokenizer_is_described() {
    let server = Server::saying("x");
    let expected = json!({
        "tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "bos_token": "<s>",
        "eos_token": "</s>", "pad_token": null, "unk_token": null, "add_bos_token": null,
        "model_max_length": 1024,
    });
    assert_eq!(server.get("/tokenizer_info").await.json(), expected);
    let mut assets = assets();
    assets.text.tokenizer_class = Some("LlamaTokenizer".into());
    assets.text.pad_token = Some("</s>".into());
    assets.text.chat_template = None;
    let server =
        Server::serving(&assets, Script::Say("x".into()), RequestLimits::default(), HttpConfig::default());
    let told = server.get("/tokenizer_info").await.json();
    assert_eq!((&told["tokenizer_class"], &told["pad_token"]), (&json!("LlamaTokenizer"), &json!("</s>")));
    assert_eq!(told["chat_template"], json!(null));
}
