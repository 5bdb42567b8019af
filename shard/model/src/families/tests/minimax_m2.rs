//! Tests of the configuration of MiniMax-M2.

use serde_json::{Value, json};

use super::{experts, spec};

pub(super) fn minimax_m2(changes: &Value) -> Value {
    experts("minimax_m2", "MiniMaxM2ForCausalLM", changes)
}

#[test]
fn some_features_are_rotated() {
    let rotated = |changes| spec(&minimax_m2(&changes)).unwrap().ropes[0].rotary_dim;
    assert_eq!([rotated(json!({})), rotated(json!({"rotary_dim": 4}))], [128, 4]);
}
