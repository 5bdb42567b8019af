"""Other layouts, of remote code or quantized: the same checkpoints with renamed, fused or quantized
tensors, and the inverse mapping."""

import torch

import layouts_published
from cases import Spec
from mxfp4 import from_mxfp4, to_mxfp4
from old_configs import Config

State = dict[str, torch.Tensor]


def to_baichuan(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    out = {}
    for name, x in state.items():
        if ".q_proj." in name:
            k, v = (state[name.replace(".q_proj.", f".{p}_proj.")] for p in "kv")
            out[name.replace(".q_proj.", ".W_pack.")] = torch.cat([x, k, v])
        elif ".k_proj." not in name and ".v_proj." not in name:
            out[name] = x
    for i in range(config["num_hidden_layers"]):  # stored in old files, to be ignored
        out[f"model.layers.{i}.self_attn.rotary_emb.inv_freq"] = torch.full((4,), -1.0)
    keys = (
        "bos_token_id", "eos_token_id", "hidden_act", "hidden_size", "initializer_range",
        "intermediate_size", "max_position_embeddings", "num_attention_heads",
        "num_hidden_layers", "pad_token_id", "rms_norm_eps", "tie_word_embeddings", "use_cache",
        "vocab_size",
    )  # fmt: skip
    assert config["num_key_value_heads"] == config["num_attention_heads"]
    new = dict(
        architectures=["BaiChuanForCausalLM"],
        auto_map={
            "AutoConfig": "configuration_baichuan.BaiChuanConfig",
            "AutoModelForCausalLM": "modeling_baichuan.BaiChuanForCausalLM",
        },
        model_type="baichuan",
        torch_dtype="float32",
        transformers_version="4.29.1",
    )
    return out, {**new, **{k: config[k] for k in keys}}


def from_baichuan(state: State, config: Config) -> State:
    out = {}
    for name, x in state.items():
        if ".W_pack." in name:
            for p, part in zip("qkv", x.chunk(3)):
                out[name.replace(".W_pack.", f".{p}_proj.")] = part
        elif "inv_freq" not in name:
            out[name] = x
    return out


# Native names and remote names, in order.
CHATGLM_NAMES = [
    ("model.embed_tokens.", "transformer.embedding.word_embeddings."),
    ("model.layers.", "transformer.encoder.layers."),
    ("model.norm.", "transformer.encoder.final_layernorm."),
    ("lm_head.", "transformer.output_layer."),
    (".self_attn.", ".self_attention."),
    (".o_proj.", ".dense."),
    (".gate_up_proj.", ".dense_h_to_4h."),
    (".down_proj.", ".dense_4h_to_h."),
]


def to_chatglm(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    out = {}
    for name, x in state.items():
        new = name
        for a, b in CHATGLM_NAMES:
            new = new.replace(a, b)
        if ".q_proj." in name:
            k, v = (state[name.replace(".q_proj.", f".{p}_proj.")] for p in "kv")
            out[new.replace(".q_proj.", ".query_key_value.")] = torch.cat([x, k, v])
        elif ".k_proj." not in name and ".v_proj." not in name:
            out[new] = x
    # Stored in published files, to be ignored.
    out["transformer.rotary_pos_emb.inv_freq"] = torch.full((config["head_dim"] // 4,), -1.0)
    ratio = spec.get("rope_ratio", 1)
    params = config["rope_parameters"]
    assert params["rope_theta"] == 10000 * ratio and params["partial_rotary_factor"] == 0.5
    assert config["num_attention_heads"] * config["head_dim"] == config["hidden_size"]
    new = dict(
        architectures=["ChatGLMModel"],
        model_type="chatglm",
        auto_map={
            "AutoConfig": "configuration_chatglm.ChatGLMConfig",
            "AutoModel": "modeling_chatglm.ChatGLMForConditionalGeneration",
            "AutoModelForCausalLM": "modeling_chatglm.ChatGLMForConditionalGeneration",
        },
        add_bias_linear=False,
        add_qkv_bias=True,
        apply_query_key_layer_scaling=True,
        apply_residual_connection_post_layernorm=False,
        attention_dropout=0.0,
        attention_softmax_in_fp32=True,
        bias_dropout_fusion=True,
        ffn_hidden_size=config["intermediate_size"],
        fp32_residual_connection=False,
        hidden_dropout=0.0,
        hidden_size=config["hidden_size"],
        kv_channels=config["head_dim"],
        layernorm_epsilon=config["rms_norm_eps"],
        multi_query_attention=True,
        multi_query_group_num=config["num_key_value_heads"],
        num_attention_heads=config["num_attention_heads"],
        num_layers=config["num_hidden_layers"],
        original_rope=True,
        padded_vocab_size=config["vocab_size"],
        post_layer_norm=True,
        rmsnorm=True,
        seq_length=config["max_position_embeddings"],
        use_cache=True,
        torch_dtype="float32",
        transformers_version="4.30.2",
        tie_word_embeddings=False,
        eos_token_id=2,
        pad_token_id=0,
    )
    if ratio != 1:
        new["rope_ratio"] = ratio
        new["eos_token_id"] = [2]
        new["vocab_size"] = config["vocab_size"]
    return out, new


def from_chatglm(state: State, config: Config) -> State:
    out = {}
    for name, x in state.items():
        if "inv_freq" in name:
            continue
        for a, b in reversed(CHATGLM_NAMES):
            name = name.replace(b, a)
        if ".query_key_value." in name:
            kv = config["multi_query_group_num"] * config["kv_channels"]
            rows = [config["num_attention_heads"] * config["kv_channels"], kv, kv]
            for p, part in zip("qkv", x.split(rows)):
                out[name.replace(".query_key_value.", f".{p}_proj.")] = part
        else:
            out[name] = x
    return out


def transposed_experts(state: State) -> State:
    """Exchanges the features of inputs and outputs of the experts, which are stacked."""
    return {name: x.transpose(1, 2) if ".experts." in name else x for name, x in state.items()}


def to_experts_by_input(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    return transposed_experts(state), config


def from_experts_by_input(state: State, config: Config) -> State:
    return transposed_experts(state)


MTP = "model.mtp_layers."


def to_mimo(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    # Stored in published files, to be ignored.
    later = {
        name.replace("model.layers.0.", MTP + "0."): torch.full_like(x, -1.0)
        for name, x in state.items()
        if name.startswith("model.layers.0.") and "mlp" not in name
    }
    keys = (
        "bos_token_id", "eos_token_id", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
        "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings",
        "vocab_size",
    )  # fmt: skip
    new = dict(
        architectures=["MiMoForCausalLM"], model_type="mimo", torch_dtype="float32", attention_bias=True,
        auto_map={"AutoConfig": "configuration_mimo.MiMoConfig", "AutoModelForCausalLM": "modeling_mimo.MiMoForCausalLM"},
        rope_theta=config["rope_parameters"]["rope_theta"], num_nextn_predict_layers=1, use_mrope=False,
        use_sliding_window=False, sliding_window=32768, head_dim=config["hidden_size"] // config["num_attention_heads"],
    )  # fmt: skip
    return {**state, **later}, {**new, **{k: config[k] for k in keys}}


def from_mimo(state: State, config: Config) -> State:
    return {name: x for name, x in state.items() if not name.startswith(MTP)}


LAYOUTS = {
    "baichuan": (to_baichuan, from_baichuan),
    "chatglm": (to_chatglm, from_chatglm),
    "experts_by_input": (to_experts_by_input, from_experts_by_input),
    "mimo": (to_mimo, from_mimo),
    "mxfp4": (to_mxfp4, from_mxfp4),
    **layouts_published.LAYOUTS,
}
