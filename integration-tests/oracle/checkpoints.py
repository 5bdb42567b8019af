"""Builds a case's model with random weights, writes it to its folder and loads it again."""

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, Mistral4ForCausalLM, PreTrainedModel,
)  # fmt: skip

from cases import CASES, Spec
from layouts import LAYOUTS
from mxfp4 import STORED, rounded
from old_configs import Config
from seeds import rng_for


def fill(model: PreTrainedModel, key: str) -> None:
    """Randomizes every parameter, so that a missing norm weight or bias is visible."""
    tied = model.config.get_text_config().tie_word_embeddings
    rng = rng_for(key, "weights")
    for name, p in sorted(model.named_parameters()):
        x = rng.standard_normal(tuple(p.shape))
        scales = ("norm.weight", "layernorm_1.weight", "layernorm_2.weight", "router.scale", "per_expert_scale")
        if name.endswith(scales) or ".ln_" in name and name.endswith(".weight"):
            x = 1 + 0.2 * x
        elif name.endswith(".bias"):
            x = 0.2 * x
        elif name.endswith("dt_bias"):
            # Slow decay, so that early tokens are seen.
            x = x - 2
        elif name.endswith(("conv1d.weight", "conv.conv.weight")):
            pass  # Larger than other weights, so that few queries and keys are short.
        elif "embed_tokens" in name and "per_layer" not in name:
            # Small, as in trained models, so that the first norm's epsilon is
            # seen; a tied head needs it larger for usable logits.
            x = (0.25 if tied else 0.02) * x
        else:
            x = 0.25 * x
        p.data.copy_(torch.from_numpy(x).to(p.dtype))
    for name, b in sorted(model.named_buffers()):
        if name.endswith(("e_score_correction_bias", "expert_bias")):
            b.copy_(torch.from_numpy(0.2 * rng.standard_normal(tuple(b.shape))).to(b.dtype))
        elif name.endswith("act_fn.beta"):
            b.fill_(0.5 + 0.1 * float(rng.standard_normal()))
        elif name.endswith("layer_scalar"):
            b.copy_(torch.from_numpy(1 + 0.2 * rng.standard_normal(tuple(b.shape))).to(b.dtype))


def attention_of(config: Any) -> str:
    """Returns the implementation of attention. The eager one adds Falcon's linear biases twice."""
    return "sdpa" if config.model_type == "falcon" and config.alibi else "eager"


def class_of(config: Any) -> Any:
    """Returns the class that computes logits: with a text part, that of models with images."""
    if config.model_type == "mistral4":  # has no Auto class
        return Mistral4ForCausalLM
    return AutoModelForImageTextToText if "text_config" in config.sub_configs else AutoModelForCausalLM


def build(spec: Spec) -> PreTrainedModel:
    config = AutoConfig.for_model(**spec["config"])
    config._experts_implementation = "eager"
    config._attn_implementation = attention_of(config)
    cls = class_of(config)
    model = (getattr(cls, "_from_config", None) or cls.from_config)(config, dtype=torch.float32).eval()
    fill(model, spec.get("weights", spec["name"]))
    if spec.get("layout") == "mxfp4":  # so that the stored weights are the same numbers
        for name, p in model.named_parameters():
            if name.endswith(STORED):
                p.data = rounded(p.data)
    dtype = spec.get("dtype")
    if dtype is not None:  # the stored weights are the rounded ones
        for p in model.parameters():
            p.data = p.data.to(dtype).float()
    return model


def save(model: PreTrainedModel, spec: Spec, folder: Path) -> None:
    dtype = spec.get("dtype") or torch.float32
    out = copy.deepcopy(model).to(dtype)
    out.save_pretrained(folder, max_shard_size=spec.get("shards", "10MB"))
    (folder / "generation_config.json").unlink(missing_ok=True)
    if spec.get("stacked"):
        stack_experts(folder / "model.safetensors")
    if "renamed" in spec:
        rename(folder / "model.safetensors", *spec["renamed"])
    weights = sorted(p.name for p in folder.glob("*.safetensors"))
    assert len(weights) == (2 if "shards" in spec else 1), weights


def rename(file: Path, written: str, published: str) -> None:
    """Replaces a part of names that transformers writes by that of the published checkpoints, which
    it reads as well."""
    state = {name.replace(written, published): x for name, x in load_file(file).items()}
    save_file(state, file, metadata={"format": "pt"})


def stack_experts(file: Path) -> None:
    """Replaces the tensors of each expert by those of all experts, as newer checkpoints have them."""
    state, stacked = load_file(file), {}
    for name in sorted(state):
        prefix, found, rest = name.partition(".experts.0.")
        if not found or rest == "up_proj.weight":
            continue
        count = sum(n.startswith(f"{prefix}.experts.") and n.endswith(rest) for n in state)
        of = [state[f"{prefix}.experts.{e}.{rest}"] for e in range(count)]
        if rest == "gate_proj.weight":
            up = [state[f"{prefix}.experts.{e}.up_proj.weight"] for e in range(count)]
            stacked[f"{prefix}.experts.gate_up_proj"] = torch.stack(
                [torch.cat(pair) for pair in zip(of, up, strict=True)]
            )
        else:
            stacked[f"{prefix}.experts.down_proj"] = torch.stack(of)
    kept = {name: x for name, x in state.items() if ".experts." not in name}
    save_file({**kept, **stacked}, file, metadata={"format": "pt"})


def special_number(value: Config) -> Any:
    """Returns the number that transformers writes as an object, because JSON has no infinity."""
    return float(value["__float__"]) if value.keys() == {"__float__"} else value


def load(folder: Path, **over: Any) -> PreTrainedModel:
    config = AutoConfig.from_pretrained(folder)
    if over:
        raw = json.loads((folder / "config.json").read_text(), object_hook=special_number)
        over = copy.deepcopy(over)
        if "rope_parameters" in over:
            params = {**raw["rope_parameters"], **over["rope_parameters"]}
            over["rope_parameters"] = {k: v for k, v in params.items() if v is not None}
        raw.update(over)
        config = type(config).from_dict(raw)
    model = class_of(config).from_pretrained(
        folder, config=config, dtype=torch.float32,
        attn_implementation=attention_of(config), experts_implementation="eager",
    )  # fmt: skip
    return model.eval()


def write_layout(native: Path, spec: Spec, folder: Path) -> None:
    """Renames and fuses a native checkpoint, and reads it back in the opposite direction."""
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


def share_weights(spec: Spec, out: Path) -> None:
    """Links the weights of cases with equal weights to those of the first of them."""
    if "weights" not in spec:
        return
    owner = next(n for n, s in CASES.items() if s.get("weights") == spec["weights"])
    if owner == spec["name"]:
        return
    own, first = (out / n / "model.safetensors" for n in (spec["name"], owner))
    assert own.read_bytes() == first.read_bytes(), f"write {owner} first"
    own.unlink()
    own.symlink_to(Path("..") / owner / "model.safetensors")


def write_json(path: Path, value: Config) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n")
