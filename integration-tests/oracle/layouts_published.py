"""The layouts of repositories with code of their own, and of early ones: the twin that transformers
computes with other keys and other names, and the inverse mapping."""

import torch

from old_configs import Config

Spec = dict[str, object]
State = dict[str, torch.Tensor]

# The keys whose names and meanings did not change.
USUAL_KEYS = (
    "bos_token_id", "eos_token_id", "hidden_act", "hidden_size", "intermediate_size", "max_position_embeddings",
    "num_attention_heads", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps", "tie_word_embeddings",
    "vocab_size",
)  # fmt: skip


def taken(config: Config, *left_out: str) -> Config:
    """Returns the usual keys that the configuration has, without some of them."""
    return {key: config[key] for key in USUAL_KEYS if key in config and key not in left_out}


def replaced(name: str, names: list[tuple[str, str]], back: bool = False) -> str:
    """Replaces the parts of a name one after the other, or undoes that."""
    for native, other in reversed(names) if back else names:
        name = name.replace(*((other, native) if back else (native, other)))
    return name


def joined(state: State, name: str, join: object) -> torch.Tensor:
    """Returns what `join` makes of the tensors of queries, keys and values, by the name of queries."""
    return join([state[name.replace(".q_proj.", f".{part}_proj.")] for part in "qkv"])


def with_joined_qkv(state: State, names: list[tuple[str, str]], fused: str, join: object) -> State:
    """Renames all tensors, and joins those of queries, keys and values as `fused`."""
    out = {}
    for name, x in state.items():
        new = replaced(name, names)
        if ".q_proj." in name:
            out[new.replace(".q_proj.", f".{fused}.")] = joined(state, name, join)
        elif ".k_proj." not in name and ".v_proj." not in name:
            out[new] = x
    return out


def without_joined_qkv(state: State, names: list[tuple[str, str]], fused: str, split: object) -> State:
    """The inverse of `with_joined_qkv`."""
    out = {}
    for name, x in state.items():
        if f".{fused}." in name:
            for part, y in zip("qkv", split(x)):
                out[replaced(name.replace(f".{fused}.", f".{part}_proj."), names, back=True)] = y
        else:
            out[replaced(name, names, back=True)] = x
    return out


# InternLM2: for each key head its query heads, the key head and the value head follow each other.
INTERNLM2_NAMES = [
    ("model.embed_tokens.", "model.tok_embeddings."), ("lm_head.", "output."), (".self_attn.", ".attention."),
    (".o_proj.", ".wo."), (".input_layernorm.", ".attention_norm."), (".post_attention_layernorm.", ".ffn_norm."),
    (".mlp.gate_proj.", ".feed_forward.w1."), (".mlp.up_proj.", ".feed_forward.w3."),
    (".mlp.down_proj.", ".feed_forward.w2."),
]  # fmt: skip


def to_internlm2(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    kv_heads = config["num_key_value_heads"]

    def join(qkv: list[torch.Tensor]) -> torch.Tensor:
        groups = [x.reshape(kv_heads, -1, *x.shape[1:]) for x in qkv]
        return torch.cat(groups, dim=1).reshape(-1, *qkv[0].shape[1:])

    rope = dict(config["rope_parameters"])
    theta, kind = rope.pop("rope_theta"), rope.pop("rope_type")
    new = dict(
        architectures=["InternLM2ForCausalLM"], model_type="internlm2", bias=config["attention_bias"],
        auto_map={
            "AutoConfig": "configuration_internlm2.InternLM2Config",
            "AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM",
        },
        attn_implementation="eager", initializer_range=0.02, pad_token_id=2, rope_theta=theta, use_cache=True,
        rope_scaling=None if kind == "default" else {"type": kind, **rope}, torch_dtype="float32",
        transformers_version="4.37.2",
    )  # fmt: skip
    return with_joined_qkv(state, INTERNLM2_NAMES, "wqkv", join), {**new, **taken(config)}


def from_internlm2(state: State, config: Config) -> State:
    kv_heads = config["num_key_value_heads"]
    shared = config["num_attention_heads"] // kv_heads

    def split(x: torch.Tensor) -> list[torch.Tensor]:
        groups = x.reshape(kv_heads, shared + 2, -1, *x.shape[1:])
        parts = groups[:, :shared], groups[:, shared], groups[:, shared + 1]
        return [part.reshape(-1, *x.shape[1:]) for part in parts]

    return without_joined_qkv(state, INTERNLM2_NAMES, "wqkv", split)


def to_internlm3(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    bias = config.get("mlp_bias", False)
    new = dict(
        architectures=["InternLM3ForCausalLM"], model_type="internlm3", bias=bias,
        qkv_bias=config["model_type"] == "qwen2" or config["attention_bias"],
        auto_map={
            "AutoConfig": "configuration_internlm3.InternLM3Config",
            "AutoModelForCausalLM": "modeling_internlm3.InternLM3ForCausalLM",
        },
        attention_dropout=0.0, initializer_range=0.02, pad_token_id=2, rope_scaling=None,
        rope_theta=config["rope_parameters"]["rope_theta"], use_cache=True, torch_dtype="float32",
        transformers_version="4.47.1",
    )  # fmt: skip
    head_dim = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
    return dict(state), {**new, **taken(config), "head_dim": head_dim}


def from_same_names(state: State, config: Config) -> State:
    return dict(state)


# The first Qwen: the width of its MLP is that of gate and up together, and w2 is the gate.
QWEN_NAMES = [
    ("model.embed_tokens.", "transformer.wte."), ("model.layers.", "transformer.h."),
    ("model.norm.", "transformer.ln_f."), (".input_layernorm.", ".ln_1."),
    (".post_attention_layernorm.", ".ln_2."), (".self_attn.", ".attn."), (".o_proj.", ".c_proj."),
    (".mlp.gate_proj.", ".mlp.w2."), (".mlp.up_proj.", ".mlp.w1."), (".mlp.down_proj.", ".mlp.c_proj."),
]  # fmt: skip
QWEN_BACK = [pair for pair in QWEN_NAMES if pair[0] not in (".o_proj.", ".mlp.down_proj.")]


def to_qwen(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    assert config["num_key_value_heads"] == config["num_attention_heads"]
    new = dict(
        architectures=["QWenLMHeadModel"], model_type="qwen",
        auto_map={"AutoConfig": "configuration_qwen.QWenConfig", "AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel"},
        attn_dropout_prob=0.0, bf16=False, emb_dropout_prob=0.0, fp16=False, fp32=False, initializer_range=0.02,
        intermediate_size=2 * config["intermediate_size"], layer_norm_epsilon=config["rms_norm_eps"],
        kv_channels=config["hidden_size"] // config["num_attention_heads"], no_bias=True, onnx_safe=None,
        rotary_emb_base=config["rope_parameters"]["rope_theta"], rotary_pct=1.0, scale_attn_weights=True,
        seq_length=config["max_position_embeddings"], tokenizer_class="QWenTokenizer",
        transformers_version="4.32.0", use_cache=True, use_dynamic_ntk=True, use_flash_attn="auto",
        use_logn_attn=True,
    )  # fmt: skip
    left = ("intermediate_size", "rms_norm_eps", "num_key_value_heads", "hidden_act", "bos_token_id", "eos_token_id")
    return with_joined_qkv(state, QWEN_NAMES, "c_attn", torch.cat), {**taken(config, *left), **new}


def from_qwen(state: State, config: Config) -> State:
    named = {}
    for name, x in state.items():
        name = name.replace(".attn.c_proj.", ".attn.o_proj.").replace(".mlp.c_proj.", ".mlp.down_proj.")
        named[name] = x
    return without_joined_qkv(named, QWEN_BACK, "c_attn", lambda x: x.chunk(3))


def to_kimi_k2(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    new = dict(
        config, model_type="kimi_k2", topk_method="noaux_tc", scoring_func="sigmoid", moe_layer_freq=1,
        num_nextn_predict_layers=0, ep_size=1, seq_aux=True, aux_loss_alpha=0.001, torch_dtype="float32",
        transformers_version="4.48.3", rope_theta=config["rope_parameters"]["rope_theta"],
        auto_map={
            "AutoConfig": "configuration_deepseek.DeepseekV3Config",
            "AutoModel": "modeling_deepseek.DeepseekV3Model",
            "AutoModelForCausalLM": "modeling_deepseek.DeepseekV3ForCausalLM",
        },
    )  # fmt: skip
    rope = {k: v for k, v in new.pop("rope_parameters").items() if k != "rope_theta"}
    kind = rope.pop("rope_type")
    new["rope_scaling"] = None if kind == "default" else {"type": kind, **rope}
    for key in ("dtype", "rope_interleave", "head_dim", "qk_head_dim"):
        new.pop(key, None)
    return dict(state), new


# The first conversion of LLaMA.
def to_first_llama(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    new = dict(
        architectures=["LLaMAForCausalLM"], model_type="llama", initializer_range=0.02, pad_token_id=-1,
        max_sequence_length=config["max_position_embeddings"], torch_dtype="float32", use_cache=True,
        transformers_version="4.27.0.dev0",
    )  # fmt: skip
    assert config["num_key_value_heads"] == config["num_attention_heads"]
    return dict(state), {**new, **taken(config, "max_position_embeddings", "num_key_value_heads", "tie_word_embeddings")}


YI_NAMES = [(".input_layernorm.", ".ln1."), (".post_attention_layernorm.", ".ln2.")]


def to_yi(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    new = dict(
        architectures=["YiForCausalLM"], model_type="Yi", initializer_range=0.02, pad_token_id=0,
        auto_map={"AutoConfig": "configuration_yi.YiConfig", "AutoModelForCausalLM": "modeling_yi.YiForCausalLM"},
        rope_theta=config["rope_parameters"]["rope_theta"], torch_dtype="float32", transformers_version="4.34.0",
    )  # fmt: skip
    return {replaced(name, YI_NAMES): x for name, x in state.items()}, {**new, **taken(config)}


def from_yi(state: State, config: Config) -> State:
    return {replaced(name, YI_NAMES, back=True): x for name, x in state.items()}


def to_internlm(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    new = dict(
        architectures=["InternLMForCausalLM"], model_type="internlm", bias=config["attention_bias"],
        auto_map={
            "AutoConfig": "configuration_internlm.InternLMConfig",
            "AutoModelForCausalLM": "modeling_internlm.InternLMForCausalLM",
        },
        rotary=dict(base=config["rope_parameters"]["rope_theta"], type="dynamic"), pad_token_id=2,
        torch_dtype="float32", transformers_version="4.33.2",
    )  # fmt: skip
    assert config["num_key_value_heads"] == config["num_attention_heads"]
    return dict(state), {**new, **taken(config, "num_key_value_heads")}


def to_stablelm_epoch(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    rope = config["rope_parameters"]
    new = dict(
        architectures=["StableLMEpochForCausalLM"], model_type="stablelm_epoch", norm_eps=config["layer_norm_eps"],
        auto_map={
            "AutoConfig": "configuration_stablelm_epoch.StableLMEpochConfig",
            "AutoModelForCausalLM": "modeling_stablelm_epoch.StableLMEpochForCausalLM",
        },
        rope_pct=rope["partial_rotary_factor"], rope_theta=rope["rope_theta"], rotary_scaling_factor=1.0,
        use_qkv_bias=config["use_qkv_bias"], torch_dtype="float32", transformers_version="4.33.2",
    )  # fmt: skip
    return dict(state), {**new, **taken(config)}


# The Falcons of RefinedWeb.
def to_refined_web(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    is_new = config["new_decoder_architecture"]
    new = dict(
        alibi=config["alibi"], apply_residual_connection_post_layernorm=False, architectures=["RWForCausalLM"],
        attention_dropout=0.0, bias=config["bias"], hidden_dropout=0.0, initializer_range=0.02,
        layer_norm_epsilon=config["layer_norm_epsilon"], model_type="RefinedWeb" if is_new else "RefinedWebModel",
        auto_map={"AutoConfig": "configuration_RW.RWConfig", "AutoModelForCausalLM": "modelling_RW.RWForCausalLM"},
        n_head=config["num_attention_heads"], n_layer=config["num_hidden_layers"],
        parallel_attn=config["parallel_attn"], torch_dtype="float32", transformers_version="4.27.4", use_cache=True,
        **(dict(n_head_kv=config["num_kv_heads"]) if is_new else dict(multi_query=config["multi_query"])),
    )  # fmt: skip
    assert config["ffn_hidden_size"] == 4 * config["hidden_size"]
    return dict(state), {**new, **{k: config[k] for k in ("hidden_size", "vocab_size", "bos_token_id", "eos_token_id")}}


# Phi of the code of its first repositories.
PHI_NAMES = [
    ("model.embed_tokens.", "transformer.embd.wte."), ("model.layers.", "transformer.h."),
    (".input_layernorm.", ".ln."), (".self_attn.", ".mixer."), (".dense.", ".out_proj."),
    ("model.final_layernorm.", "lm_head.ln."),
]  # fmt: skip


def phi_head(state: State, native: str, other: str) -> State:
    return {other + name.removeprefix(native) if name.startswith(native) else name: x for name, x in state.items()}


def to_phi_msft(state: State, config: Config, spec: Spec) -> tuple[State, Config]:
    rope = config["rope_parameters"]
    heads = config["num_attention_heads"]
    assert config["num_key_value_heads"] == heads and config["intermediate_size"] == 4 * config["hidden_size"]
    new = dict(
        architectures=["PhiForCausalLM"], model_type="phi-msft", activation_function="gelu_new", attn_pdrop=0.0,
        auto_map={"AutoConfig": "configuration_phi.PhiConfig", "AutoModelForCausalLM": "modeling_phi.PhiForCausalLM"},
        embd_pdrop=0.0, flash_attn=False, flash_rotary=False, fused_dense=False, initializer_range=0.02,
        layer_norm_epsilon=config["layer_norm_eps"], n_embd=config["hidden_size"], n_head=heads, n_head_kv=None,
        n_inner=None, n_layer=config["num_hidden_layers"], n_positions=config["max_position_embeddings"],
        resid_pdrop=0.1, rotary_dim=int(config["hidden_size"] // heads * rope["partial_rotary_factor"]),
        tie_word_embeddings=False, torch_dtype="float32", transformers_version="4.35.2",
        vocab_size=config["vocab_size"],
    )  # fmt: skip
    fused = with_joined_qkv(phi_head(state, "lm_head.", "lm_head.linear."), PHI_NAMES, "Wqkv", torch.cat)
    return fused, new


def from_phi_msft(state: State, config: Config) -> State:
    split = without_joined_qkv(state, PHI_NAMES, "Wqkv", lambda x: x.chunk(3))
    return phi_head(split, "lm_head.linear.", "lm_head.")


LAYOUTS = {
    "internlm2": (to_internlm2, from_internlm2),
    "internlm3": (to_internlm3, from_same_names),
    "qwen": (to_qwen, from_qwen),
    "kimi_k2": (to_kimi_k2, from_same_names),
    "first_llama": (to_first_llama, from_same_names),
    "yi": (to_yi, from_yi),
    "internlm": (to_internlm, from_same_names),
    "stablelm_epoch": (to_stablelm_epoch, from_same_names),
    "refined_web": (to_refined_web, from_same_names),
    "phi_msft": (to_phi_msft, from_phi_msft),
}
