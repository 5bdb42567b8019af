#!/usr/bin/env python3
"""Write tiny random checkpoints and the logits transformers computes for them.

    python make_goldens.py [--out ../golden] [case ...]

Without case names every case is written. See README.md next to this file for
the checks made here, and ../golden/README.md for what the written files mean.
"""

import argparse
import copy
import json
import os
import shutil
import sys
import tempfile
import zlib
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

SEED = 20240607
STEPS = 16  # length of each greedy continuation
MARGIN = 1e-2  # smallest top-1/top-2 logit gap that a prompt is accepted with
MARGIN_REQUIRED = 1e-3  # what the files promise
NOISE = 1e-5  # largest accepted float32 rounding noise of the stored numbers
SEEN = 1e-3  # a switch counts as seen when ignoring it moves the logits by this
MAX_CASE_BYTES = 150_000

# ----------------------------------------------------------------- numbers


def rel(a, b):
    """max|a-b| / max|b| per row, the worst row."""
    a, b = a.double(), b.double()
    return ((a - b).abs().amax(-1) / b.abs().amax(-1)).max().item()


def rng_for(*key):
    return np.random.default_rng([SEED, zlib.crc32("/".join(map(str, key)).encode())])


def fill(model, key):
    """Every parameter random: a norm weight or bias that is left out must show."""
    tied = model.config.tie_word_embeddings
    rng = rng_for(key, "weights")
    for name, p in sorted(model.named_parameters()):
        x = rng.standard_normal(tuple(p.shape))
        if name.endswith("norm.weight"):
            x = 1 + 0.2 * x
        elif name.endswith(".bias"):
            x = 0.2 * x
        elif "embed_tokens" in name:
            # Small, as in trained models, so that the first norm's epsilon is
            # seen; a tied head needs it larger for usable logits.
            x = (0.25 if tied else 0.02) * x
        else:
            x = 0.25 * x
        p.data.copy_(torch.from_numpy(x).to(p.dtype))


def is_dynamic(model):
    return (model.config.rope_parameters or {}).get("rope_type") == "dynamic"


def fresh_rope(model):
    """Forget the frequencies that an earlier, longer forward left behind."""
    if is_dynamic(model):
        r = model.model.rotary_emb
        model.model.rotary_emb = type(r)(config=model.config)


@torch.no_grad()
def forward(model, ids):
    """Logits of one forward over the whole sequence, nothing cached."""
    fresh_rope(model)
    out = model(input_ids=torch.tensor([ids]), use_cache=False)
    return out.logits[0].float()


@torch.no_grad()
def greedy_uncached(model, prompt):
    ids, rows = list(prompt), []
    for _ in range(STEPS):
        row = forward(model, ids)[-1]
        rows.append(row)
        ids.append(int(row.argmax()))
    return ids[len(prompt) :], torch.stack(rows)


@torch.no_grad()
def greedy_cached(model, prompt):
    """As transformers generates: prefill once, then one token at a time."""
    fresh_rope(model)
    cache = transformers.DynamicCache(config=model.config)
    out = model(input_ids=torch.tensor([prompt]), past_key_values=cache, use_cache=True)
    ids, rows = [], []
    for _ in range(STEPS):
        row = out.logits[0, -1].float()
        rows.append(row)
        ids.append(int(row.argmax()))
        out = model(input_ids=torch.tensor([ids[-1:]]), past_key_values=cache, use_cache=True)
    return ids, torch.stack(rows)


def margin(rows):
    top = rows.topk(2, dim=-1).values
    return (top[:, 0] - top[:, 1]).min().item()


# ------------------------------------------------------------------- cases

LLAMA = dict(
    model_type="llama", vocab_size=61, hidden_size=32, intermediate_size=44,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    rms_norm_eps=1e-5, max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
    tie_word_embeddings=False,
)  # fmt: skip
# One set of weights under several position encodings.
ROPE = dict(LLAMA, head_dim=16, num_key_value_heads=1, intermediate_size=28, vocab_size=53)
YARN = dict(rope_type="yarn", rope_theta=500.0, factor=4.0, original_max_position_embeddings=24)
GLM = dict(
    model_type="glm", vocab_size=61, hidden_size=32, intermediate_size=36,
    num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
    max_position_embeddings=64, rms_norm_eps=1e-5, attention_bias=True,
    pad_token_id=0, eos_token_id=2, tie_word_embeddings=False,
)  # fmt: skip

CASES = {}


def case(name, config, **kw):
    CASES[name] = dict(name=name, config=config, **kw)


def llama(name, lengths, mutants=(), base=LLAMA, **over):
    kw = {k: over.pop(k) for k in ("dtype", "shards", "weights") if k in over}
    case(name, dict(base, **over), lengths=lengths, mutants=mutants, **kw)


def rope(name, lengths, params, mutants=(), **over):
    llama(name, lengths, mutants, base=ROPE, weights="rope", rope_parameters=params, **over)


def ropes(params, **over):
    """A change of config.json's rope_parameters, kept from the case where not named."""
    return dict(rope_parameters={**params, **over})


PLAIN = dict(rope_parameters=dict(rope_type="default"))


def yarn(name, lengths, mutants, **over):
    params = dict(YARN, **over)
    mutants = [PLAIN, *(ropes(params, **m) for m in mutants)]
    rope(name, lengths, params, mutants, max_position_embeddings=96)


# Attention shapes and switches.
llama("llama_gqa", (29, 24), hidden_size=48, num_attention_heads=6, intermediate_size=36)
llama("llama_tied", (33, 25), tie_word_embeddings=True, intermediate_size=80, vocab_size=97)
llama("llama_mha", (24, 38), num_key_value_heads=4, num_hidden_layers=3, intermediate_size=28)
llama("llama_mqa", (32, 27), num_key_value_heads=1, num_attention_heads=8, vocab_size=97)
llama("llama_bias", (31, 26), attention_bias=True, mlp_bias=True)
llama("llama_head_dim", (30, 39), head_dim=16, vocab_size=59, intermediate_size=36)

# Files.
llama("llama_sharded", (28, 35), shards="50KB")
HALF = dict(hidden_size=48, num_attention_heads=6, intermediate_size=76, vocab_size=97)
llama("llama_bf16", (29, 24), dtype=torch.bfloat16, **HALF)
llama("llama_f16", (26, 33), dtype=torch.float16, **HALF)

# Position encodings.
LINEAR = dict(rope_type="linear", rope_theta=10000.0, factor=4.0)
rope("llama_linear", (29, 36), LINEAR, [PLAIN])
DYNAMIC = dict(rope_type="dynamic", rope_theta=10000.0, factor=2.0)
# Below max_position_embeddings to the end; beyond it; crossing it while decoding.
rope("llama_dynamic", (22, 45, 34), DYNAMIC, [PLAIN], max_position_embeddings=40)
LLAMA3 = dict(
    rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
    high_freq_factor=4.0, original_max_position_embeddings=32,
)  # fmt: skip
rope("llama_llama3", (41, 27), LLAMA3, [PLAIN, ropes(LLAMA3, rope_type="linear")])
yarn("llama_yarn", (37, 25), [dict(attention_factor=1.0)])
yarn(
    "llama_yarn_attention_factor", (40, 24), [dict(attention_factor=None)],
    attention_factor=1.3, beta_fast=2.0, beta_slow=0.5,
)  # fmt: skip
yarn("llama_yarn_no_truncate", (34, 29), [dict(truncate=True)], beta_fast=2.0, truncate=False)
yarn("llama_yarn_mscale", (35, 26), [dict(mscale=None)], mscale=1.0, mscale_all_dim=0.5)

# Other families.
QWEN = dict(LLAMA, max_window_layers=1)
case("qwen2", dict(QWEN, model_type="qwen2", rms_norm_eps=1e-6), lengths=(29, 24))
case(
    "qwen2_sliding",
    dict(
        QWEN, model_type="qwen2", use_sliding_window=True, sliding_window=9,
        num_hidden_layers=3, intermediate_size=28,
    ),
    lengths=(30, 37),
    mutants=[
        dict(sliding_window=8),
        dict(sliding_window=10),
        dict(layer_types=["full_attention"] * 3),
        dict(layer_types=["sliding_attention"] * 3),
    ],
)  # fmt: skip
case(
    "qwen3",
    dict(QWEN, model_type="qwen3", head_dim=16, rms_norm_eps=1e-6, intermediate_size=36),
    lengths=(27, 32),
)
case(
    "mistral_sliding",
    dict(LLAMA, model_type="mistral", sliding_window=11, vocab_size=67),
    lengths=(36, 25),
    mutants=[dict(sliding_window=w) for w in (None, 10, 12)],
)
case("glm", GLM, lengths=(28, 33), mutants=[ropes({}, partial_rotary_factor=1.0)])

# Layouts of remote code, from the same models under other names.
case(
    "baichuan_7b",
    dict(LLAMA, num_key_value_heads=4, rms_norm_eps=1e-6, vocab_size=64, pad_token_id=0),
    lengths=(31, 24),
    layout="baichuan",
)
case(
    "chatglm2",
    dict(GLM, hidden_size=48, num_attention_heads=6, head_dim=8, vocab_size=65),
    lengths=(25, 34),
    layout="chatglm",
)
case(
    "glm4",
    dict(GLM, head_dim=8, rms_norm_eps=1.5625e-7, intermediate_size=44, **ropes({}, rope_theta=5e6)),
    lengths=(35, 28),
    mutants=[ropes({}, rope_theta=1e4), dict(rms_norm_eps=1e-5)],
    layout="chatglm",
    rope_ratio=500,
)


# The same checkpoints under config.json as transformers 4 and older wrote it.
def v4(config, alias="rope_type"):
    config["torch_dtype"] = config.pop("dtype")
    config["transformers_version"] = "4.44.2"
    params = config.pop("rope_parameters")
    config["rope_theta"] = params.pop("rope_theta")
    if "partial_rotary_factor" in params:
        config["partial_rotary_factor"] = params.pop("partial_rotary_factor")
    kind = params.pop("rope_type")
    config["rope_scaling"] = None if kind == "default" else {alias: kind, **params}
    config.pop("layer_types", None)
    return config


def v4_type(config):
    return v4(config, alias="type")


def v4_oldest(config):
    config = v4(config)
    for key in (
        "attention_bias", "attention_dropout", "head_dim", "mlp_bias", "num_key_value_heads",
        "pretraining_tp", "rope_scaling", "rope_theta", "tie_word_embeddings",
    ):  # fmt: skip
        del config[key]
    return config


def v4_unused_window(config):
    return dict(v4(config), sliding_window=6, use_sliding_window=False, max_window_layers=1)


VARIANTS = {
    "llama_mha_v4": ("llama_mha", v4_oldest),
    "llama_linear_v4": ("llama_linear", v4_type),
    "llama_dynamic_v4": ("llama_dynamic", v4_type),
    "llama_llama3_v4": ("llama_llama3", v4),
    "llama_yarn_v4": ("llama_yarn", v4_type),
    "qwen2_v4": ("qwen2", v4_unused_window),
    "qwen2_sliding_v4": ("qwen2_sliding", v4),
    "glm_v4": ("glm", v4),
}

# ----------------------------------------------------------------- layouts


def to_baichuan(state, config, spec):
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


def from_baichuan(state, config):
    out = {}
    for name, x in state.items():
        if ".W_pack." in name:
            for p, part in zip("qkv", x.chunk(3)):
                out[name.replace(".W_pack.", f".{p}_proj.")] = part
        elif "inv_freq" not in name:
            out[name] = x
    return out


# Native name -> remote name, in order.
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


def to_chatglm(state, config, spec):
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


def from_chatglm(state, config):
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


LAYOUTS = {"baichuan": (to_baichuan, from_baichuan), "chatglm": (to_chatglm, from_chatglm)}


# ------------------------------------------------------------------ writing


def build(spec):
    config = AutoConfig.for_model(**spec["config"])
    config._attn_implementation = "eager"
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    fill(model, spec.get("weights", spec["name"]))
    dtype = spec.get("dtype")
    if dtype is not None:  # the stored weights are the rounded ones
        for p in model.parameters():
            p.data = p.data.to(dtype).float()
    return model


def save(model, spec, folder):
    dtype = spec.get("dtype") or torch.float32
    out = copy.deepcopy(model).to(dtype)
    out.save_pretrained(folder, max_shard_size=spec.get("shards", "10MB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    weights = sorted(p.name for p in folder.glob("*.safetensors"))
    assert len(weights) == (2 if "shards" in spec else 1), weights


def load(folder, **over):
    config = AutoConfig.from_pretrained(folder)
    if over:
        raw = json.loads((folder / "config.json").read_text())
        over = copy.deepcopy(over)
        if "rope_parameters" in over:
            params = {**raw["rope_parameters"], **over["rope_parameters"]}
            over["rope_parameters"] = {k: v for k, v in params.items() if v is not None}
        raw.update(over)
        config = type(config).from_dict(raw)
    model = AutoModelForCausalLM.from_pretrained(
        folder, config=config, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def pick_prompt(model, spec, number, length):
    """The first seeded prompt whose greedy path has no near ties."""
    vocab = model.config.vocab_size
    for attempt in range(400):
        rng = rng_for(spec.get("weights", spec["name"]), "prompt", number, length, attempt)
        prompt = rng.integers(3, vocab, size=length).tolist()
        ids, rows = greedy_uncached(model, prompt)
        if margin(rows) < MARGIN or len(set(ids)) < 5 or {0, 1, 2} & set(ids):
            continue
        if is_dynamic(model) and margin(greedy_cached(model, prompt)[1]) < MARGIN:
            continue
        return prompt, ids, rows
    raise SystemExit(f"{spec['name']}: no prompt of length {length} has a clear greedy path")


def golden(model, spec):
    t = {}
    for i, length in enumerate(spec["lengths"]):
        prompt, ids, rows = pick_prompt(model, spec, i, length)
        logits = forward(model, prompt)
        assert torch.equal(logits[-1], rows[0])
        t[f"prompt_ids.{i}"] = torch.tensor(prompt, dtype=torch.int32)
        t[f"logits.{i}"] = logits
        t[f"continuation_ids.{i}"] = torch.tensor(ids, dtype=torch.int32)
        t[f"continuation_logits.{i}"] = rows
        if is_dynamic(model):
            cached_ids, cached_rows = greedy_cached(model, prompt)
            t[f"cached_continuation_ids.{i}"] = torch.tensor(cached_ids, dtype=torch.int32)
            t[f"cached_continuation_logits.{i}"] = cached_rows
            # The last position when the sequence ends there.
            limit = model.config.max_position_embeddings
            at = sorted({1, length // 2, limit - 1, limit, limit + 1, length - 1, length})
            at = [n for n in at if n <= length]
            t[f"last_lengths.{i}"] = torch.tensor(at, dtype=torch.int32)
            t[f"last_logits.{i}"] = torch.stack([forward(model, prompt[:n])[-1] for n in at])
    return {k: v.contiguous() for k, v in t.items()}


# ----------------------------------------------------------------- checking


def prompts_of(t):
    n = sum(k.startswith("prompt_ids.") for k in t)
    return [(i, t[f"prompt_ids.{i}"].tolist()) for i in range(n)]


def check_same(model, t, what, tol=1e-6):
    """The model reproduces every stored number."""
    for i, prompt in prompts_of(t):
        assert rel(forward(model, prompt), t[f"logits.{i}"]) <= tol, (what, i)
        ids, rows = greedy_uncached(model, prompt)
        assert ids == t[f"continuation_ids.{i}"].tolist(), (what, i)
        assert rel(rows, t[f"continuation_logits.{i}"]) <= tol, (what, i)


def check_numbers(model, t, what):
    """Margins, the cache, and that float32 rounding does not matter."""
    for i, prompt in prompts_of(t):
        rows, ids = t[f"continuation_logits.{i}"], t[f"continuation_ids.{i}"].tolist()
        assert margin(rows) > MARGIN_REQUIRED, what
        assert all(x.isfinite().all() for x in t.values()), what
        cached_ids, cached_rows = greedy_cached(model, prompt)
        if is_dynamic(model):
            assert cached_ids == t[f"cached_continuation_ids.{i}"].tolist()
            assert margin(cached_rows) > MARGIN_REQUIRED, what
            last = len(prompt) + STEPS - 1
            inside = last <= model.config.max_position_embeddings
            same = rel(cached_rows, rows) < 2e-5
            assert same == inside, (what, i, "cache equals recomputation only below the limit")
        else:
            assert cached_ids == ids, what
            assert rel(cached_rows, rows) < 2e-5, what
    wide = copy.deepcopy(model).double()
    worst = max(rel(forward(wide, p), t[f"logits.{i}"]) for i, p in prompts_of(t))
    assert worst < NOISE, (what, "rounding noise", worst)
    return worst


def check_seen(model, folder, spec, t):
    """Ignoring a norm weight, a bias, epsilon or a config switch must show."""
    base = {i: t[f"logits.{i}"] for i, _ in prompts_of(t)}

    def moved(m):
        return max(rel(forward(m, p), base[i]) for i, p in prompts_of(t))

    least = (9.0, None)
    for name, p in model.named_parameters():
        if not (name.endswith("norm.weight") or name.endswith(".bias")):
            continue
        keep = p.data
        p.data = torch.ones_like(keep) if name.endswith("norm.weight") else torch.zeros_like(keep)
        least = min(least, (moved(model), name))
        p.data = keep
    for over in [dict(rms_norm_eps=spec["config"]["rms_norm_eps"] * 10), *spec.get("mutants", ())]:
        m = load(folder, **over)
        least = min(least, (moved(m), str(over)))
    assert least[0] > SEEN, (spec["name"], least)
    return least


def size_of(folder):
    return sum(p.lstat().st_size for p in folder.iterdir())


def check_size(folder):
    size = size_of(folder)
    assert size < MAX_CASE_BYTES, (folder.name, size)
    return size


def report(folder, t, noise, seen):
    gap = min(margin(v) for k, v in t.items() if "continuation_logits" in k)
    line = f"{folder.name:28} {check_size(folder):7} bytes  margin {gap:.3f}  noise {noise:.1e}"
    print(f"{line}  least seen {seen[0]:.1e} ({seen[1]})", flush=True)


def write_case(spec, out):
    folder = out / spec["name"]
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    model = build(spec)
    t = golden(model, spec)
    with tempfile.TemporaryDirectory() as tmp:
        native = Path(tmp) if "layout" in spec else folder
        save(model, spec, native)
        save_file(t, folder / "golden.safetensors")
        again, stored = load(native), load_file(folder / "golden.safetensors")
        if "layout" in spec:
            write_layout(native, spec, folder, again)
        check_same(again, stored, spec["name"])
        noise = check_numbers(again, stored, spec["name"])
        seen = check_seen(again, native, spec, stored)
    share_weights(spec, out)
    for p in folder.iterdir():
        p.chmod(0o644)
    report(folder, stored, noise, seen)


def write_layout(native, spec, folder, model):
    """Rename and fuse a native checkpoint, and read it back the other way."""
    there, back = LAYOUTS[spec["layout"]]
    config = json.loads((native / "config.json").read_text())
    state, config = there(load_file(native / "model.safetensors"), config, spec)
    state = {k: v.contiguous() for k, v in state.items()}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    write_json(folder / "config.json", config)
    read = back(
        load_file(folder / "model.safetensors"), json.loads((folder / "config.json").read_text())
    )
    want = load_file(native / "model.safetensors")
    assert read.keys() == want.keys(), read.keys() ^ want.keys()
    assert all(torch.equal(read[k], want[k]) for k in want), spec["name"]
    # The numbers that follow are checked on what was read back.
    model.load_state_dict(read, strict=True)


def share_weights(spec, out):
    """Cases with the same weights link to those of the first of them."""
    if "weights" not in spec:
        return
    owner = next(n for n, s in CASES.items() if s.get("weights") == spec["weights"])
    if owner == spec["name"]:
        return
    own, first = (out / n / "model.safetensors" for n in (spec["name"], owner))
    assert own.read_bytes() == first.read_bytes(), f"write {owner} first"
    own.unlink()
    own.symlink_to(Path("..") / owner / "model.safetensors")


def write_json(path, value):
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")


def write_variant(name, of, edit, out):
    """Another config.json over the same weights and numbers."""
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    write_json(folder / "config.json", edit(json.loads((out / of / "config.json").read_text())))
    for p in ("model.safetensors", "golden.safetensors"):
        (folder / p).symlink_to(Path("..") / of / p)
    check_same(load(folder), load_file(folder / "golden.safetensors"), name)
    print(f"{name:28} as {of}", flush=True)


def quiet():
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()


def main():
    quiet()
    ap = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    ap.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "golden")
    ap.add_argument("cases", nargs="*")
    args = ap.parse_args()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    unknown = set(args.cases) - set(CASES) - set(VARIANTS)
    if unknown:
        sys.exit(f"unknown cases: {sorted(unknown)}")
    for name, spec in CASES.items():
        if not args.cases or name in args.cases:
            write_case(spec, args.out)
    for name, (of, edit) in VARIANTS.items():
        if not args.cases or name in args.cases:
            write_variant(name, of, edit, args.out)


if __name__ == "__main__":
    main()
