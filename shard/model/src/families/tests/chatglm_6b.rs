//! Tests of the configuration of ChatGLM-6B.

use serde_json::{Value, json};

use super::configs::chatglm;
use super::{changed, spec};
use crate::description::{PrefixRule, Residual};

#[test]
fn chatglm_6b_is_told_apart_from_its_successors() {
    let first = json!({
        "model_type": "chatglm", "architectures": ["ChatGLMModel"], "vocab_size": 61, "hidden_size": 32,
        "num_layers": 2, "num_attention_heads": 4, "layernorm_epsilon": 1e-5, "position_encoding_2d": true,
    });
    let read = |changes: Value| spec(&changed(first.clone(), &changes)).unwrap();
    let found = read(json!({}));
    assert_eq!((found.model_type.as_str(), found.max_positions), ("chatglm_6b", 2048));
    assert!(found.is_bidirectional() && !found.head.is_absent && found.tied_head && found.ropes[0].two_axes);
    assert_eq!(found.layers[0].mlp.dense().map(|mlp| mlp.width), Some(128));
    assert_eq!(found.prefix, PrefixRule::Before { separator: 130_004, masks: [130_001, 130_000] });
    // The factor does not follow from the number of layers of the model.
    assert_eq!(found.residual, Residual::Normalized { factor: 56f32.sqrt() });
    let ids = json!({"bos_token_id": 7, "gmask_token_id": 8, "mask_token_id": 9, "inner_hidden_size": 40});
    let found = read(ids);
    assert_eq!(found.prefix, PrefixRule::Before { separator: 7, masks: [8, 9] });
    assert_eq!(found.layers[1].mlp.dense().map(|mlp| mlp.width), Some(40));
    assert_eq!(spec(&chatglm(&json!({}))).unwrap().model_type, "chatglm");
    // The architecture alone is enough.
    assert_eq!(read(json!({"model_type": "absent"})).model_type, "chatglm_6b");
}
