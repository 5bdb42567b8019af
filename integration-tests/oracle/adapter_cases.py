"""The cases of `make_adapters.py` as data: two adapters for each of some golden checkpoints."""

from typing import Any

Case = dict[str, Any]

LLAMA = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def adapters(all_modules: list[str], few: list[str], wide: str, strong: str) -> dict[str, Case]:
    """Returns an adapter of a `few` modules, and one of `all_modules` with other ranks and scales,
    in which the modules `wide` have a higher rank, and the expression `strong` has a larger scale."""
    return {
        "plain": {"target_modules": few, "r": 4, "lora_alpha": 6},
        "patterns": {
            "target_modules": all_modules,
            "r": 2,
            "lora_alpha": 2,
            "use_rslora": True,
            "rank_pattern": {wide: 5},
            "alpha_pattern": {strong: 3},
        },
    }


# By the name of the checkpoint in ../golden.
CASES: dict[str, dict[str, Case]] = {
    "llama_gqa": adapters(LLAMA, ["q_proj", "v_proj"], "down_proj", r"layers\.1\..*_proj"),
    "qwen2": adapters(LLAMA, ["k_proj", "up_proj"], "q_proj", r"(up|down)_proj"),
    "phi3": adapters(
        ["qkv_proj", "o_proj", "gate_up_proj", "down_proj"], ["qkv_proj"], "gate_up_proj", r"self_attn\.\w+"
    ),
    "gpt2": adapters(
        ["c_attn", "attn.c_proj", "c_fc", "mlp.c_proj"], ["c_attn"], "attn.c_proj", r"^transformer\.h\.0\..*"
    ),
    "gpt_neox": adapters(
        ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"],
        ["query_key_value"],
        "dense",
        r"dense_h_to_\dh",
    ),
    "qwen3": adapters(LLAMA, ["q_proj", "k_proj"], "self_attn.o_proj", r"mlp\..*"),
    "gemma2": adapters(LLAMA, ["o_proj", "gate_proj"], "gate_proj", r"layers\.0\..*"),
    "mixtral": adapters(LLAMA[:4], ["q_proj", "v_proj"], "k_proj", r"[qv]_proj"),
    "deepseek_v2": adapters(
        # PEFT takes the names of an MLP's projections for experts as well.
        ["q_a_proj", "q_b_proj", "kv_a_proj_with_mqa", "o_proj"],
        ["q_b_proj", "kv_a_proj_with_mqa"],
        "kv_a_proj_with_mqa",
        r"self_attn\.q_[ab]_proj",
    ),
    "qwen3_5_text": adapters(
        [*LLAMA, "in_proj_qkv", "in_proj_z", "out_proj"], ["q_proj", "in_proj_qkv"], "out_proj", r"in_proj_\w+"
    ),
}
