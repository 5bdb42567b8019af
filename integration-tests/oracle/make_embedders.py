#!/usr/bin/env python3
"""Write tiny random folders of sentence-transformers and the vectors that it computes with them.

    python make_embedders.py [--out ../golden-embedders] [case ...]

Each folder has the files as sentence-transformers writes them, and golden.json with texts, their
vectors, and vectors with a prompt or with fewer dimensions. Some folders get the older spellings
of modules.json and of the pooling, which published models have. For each change in `mutants` the
script checks that the vectors differ, so that a reader which ignores the key fails.
"""

import argparse
import json
import os
import shutil
import tempfile
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")

import numpy as np
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize, Transformer
from sentence_transformers.sentence_transformer.modules import LayerNorm, Pooling
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import nn

VOCAB, HIDDEN = 48, 16
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]
BERT = ("BertModel", dict(
    vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=2, intermediate_size=24,
    max_position_embeddings=40, type_vocab_size=2, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0,
    initializer_range=0.3, pad_token_id=1,
))
QWEN3 = ("Qwen3Model", dict(
    vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=1,
    head_dim=8, intermediate_size=24, max_position_embeddings=40, initializer_range=0.3, pad_token_id=1,
    bos_token_id=0, eos_token_id=2, tie_word_embeddings=True,
))
GEMMA = ("Gemma3TextModel", dict(
    vocab_size=VOCAB, hidden_size=HIDDEN, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1,
    head_dim=8, intermediate_size=24, max_position_embeddings=64, sliding_window=6, query_pre_attn_scalar=8,
    layer_types=["sliding_attention", "full_attention"], use_bidirectional_attention=True, initializer_range=0.3,
    pad_token_id=1, bos_token_id=0, eos_token_id=2,
))
ENCODERS = (BERT, GEMMA)
PROMPTS = {"query": "w40 w41 w42 ", "document": "w43 "}
TEXTS = ["w5 w6 w7", "W8", "w9 w10 w11 w12 w13 w14 w15 w16 w17", "w5 w5 w20 w21", "w30 w31 w32 w33 w34 w35"]
ALL_MODES = ("cls", "max", "mean", "mean_sqrt_len_tokens", "weightedmean", "lasttoken")
OLD_NAMES = {
    "cls": "cls_token", "max": "max_tokens", "mean": "mean_tokens", "mean_sqrt_len_tokens": "mean_sqrt_len_tokens",
    "weightedmean": "weightedmean_tokens", "lasttoken": "lasttoken",
}

# The model, the modules behind it, options, and changes (file, key, value) that must be seen.
CASES = {
    "dense": dict(
        model=BERT, modules=lambda: [Pooling(HIDDEN, "mean"), Dense(HIDDEN, 24), Normalize()],
        max_seq_length=7, do_lower_case=True, old=True,
        mutants=[("2_Dense/config.json", "activation_function", "torch.nn.modules.linear.Identity"),
                 ("sentence_bert_config.json", "max_seq_length", 20),
                 ("sentence_bert_config.json", "do_lower_case", False)],
    ),
    "modes": dict(
        model=BERT, modules=lambda: [Pooling(HIDDEN, ALL_MODES)], old=True,
        mutants=[("1_Pooling/config.json", f"pooling_mode_{OLD_NAMES[mode]}", False) for mode in ALL_MODES],
    ),
    "modes_in_order": dict(
        model=BERT,
        modules=lambda: [Pooling(HIDDEN, ("weightedmean", "cls")), LayerNorm(2 * HIDDEN),
                         Dense(2 * HIDDEN, 8, bias=False, activation_function=nn.GELU())],
        mutants=[("1_Pooling/config.json", "pooling_mode", ["cls", "weightedmean"]),
                 ("3_Dense/config.json", "activation_function", "torch.nn.modules.activation.ReLU")],
    ),
    "residual": dict(
        model=BERT, pickle=True,
        modules=lambda: [Pooling(HIDDEN, "cls"),
                         Dense(HIDDEN, HIDDEN, activation_function=nn.SiLU(), use_residual=True),
                         Dense(HIDDEN, 12, activation_function=nn.Identity(), use_residual=True), Normalize()],
        mutants=[("1_Pooling/config.json", "pooling_mode", "mean")],
    ),
    "last": dict(
        model=QWEN3, modules=lambda: [Pooling(HIDDEN, "lasttoken"), Normalize()], add_eos=True, prompts=PROMPTS,
        mutants=[("1_Pooling/config.json", "pooling_mode", "mean"),
                 ("tokenizer_config.json", "add_eos_token", False)],
    ),
    "without_prompt": dict(
        model=BERT, modules=lambda: [Pooling(HIDDEN, ("weightedmean", "mean_sqrt_len_tokens", "cls"), include_prompt=False)],
        prompts=PROMPTS, default_prompt="document",
        mutants=[("1_Pooling/config.json", "include_prompt", True),
                 ("config_sentence_transformers.json", "default_prompt_name", "query")],
    ),
    "embedding_gemma": dict(
        model=GEMMA, prompts={"query": "w40 w41 w42 ", "document": "w43 ", "Clustering": "w44 w45 "},
        modules=lambda: [Pooling(HIDDEN, "mean"), Dense(HIDDEN, 40, bias=False, activation_function=nn.Identity()),
                         Dense(40, HIDDEN, bias=False, activation_function=nn.Identity()), Normalize()],
        mutants=[("config.json", "sliding_window", 4), ("config.json", "use_bidirectional_attention", False),
                 ("1_Pooling/config.json", "pooling_mode", "lasttoken"),
                 ("2_Dense/config.json", "activation_function", "torch.nn.modules.activation.Tanh")],
    ),
    "no_modules": dict(model=BERT, modules=None, mutants=[]),
}


def write_tokenizer(folder: Path, is_encoder: bool, add_eos: bool) -> None:
    vocabulary = {text: id for id, text in enumerate(SPECIAL)} | {f"w{id}": id for id in range(4, VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(SPECIAL)
    if is_encoder:
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<s> $A </s>", pair="<s> $A </s> $B </s>", special_tokens=[("<s>", 0), ("</s>", 2)],
        )
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", cls_token="<s>", pad_token="<pad>", eos_token="</s>", sep_token="</s>",
        unk_token="<unk>", model_max_length=512,
    ).save_pretrained(folder)
    if add_eos:
        # As in folders of older versions: the configuration alone asks for the token.
        path = folder / "tokenizer_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"add_eos_token": True}, indent=2))


def scatter(module: nn.Module) -> None:
    """Moves biases and norms away from 0 and 1, so that none can be left out."""
    for weight in module.parameters():
        if weight.dim() == 1:
            weight.data += 0.3 * torch.randn_like(weight)


def use_old_spellings(folder: Path) -> None:
    path = folder / "modules.json"
    modules = json.loads(path.read_text())
    for module in modules:
        module["type"] = "sentence_transformers.models." + module["type"].rsplit(".")[-1]
    path.write_text(json.dumps(modules, indent=2))
    path = folder / "1_Pooling/config.json"
    config = json.loads(path.read_text())
    modes = config["pooling_mode"] if isinstance(config["pooling_mode"], list) else [config["pooling_mode"]]
    old = {"word_embedding_dimension": config["embedding_dimension"]}
    old |= {f"pooling_mode_{name}": mode in modes for mode, name in OLD_NAMES.items()}
    path.write_text(json.dumps(old | {"include_prompt": config["include_prompt"]}, indent=2))


def write_model(folder: Path, case: dict) -> None:
    kind, config = case["model"]
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**config)).eval().float()
    scatter(model)
    model.save_pretrained(folder)
    write_tokenizer(folder, case["model"] in ENCODERS, case.get("add_eos", False))


def write_modules(folder: Path, plain: Path, case: dict) -> None:
    limits = {key: case[key] for key in ("max_seq_length", "do_lower_case") if key in case}
    behind = case["modules"]()
    for module in behind:
        scatter(module)
    prompts = dict(prompts=case.get("prompts"), default_prompt_name=case.get("default_prompt"))
    model = SentenceTransformer(modules=[Transformer(str(plain), **limits), *behind], device="cpu", **prompts)
    model.save(str(folder), create_model_card=False, safe_serialization=not case.get("pickle", False))
    # The tokenizer and the weights stay as they were written.
    for path in plain.iterdir():
        shutil.copy(path, folder)
    (folder / "pytorch_model.bin").unlink(missing_ok=True)
    if limits:
        path = folder / "sentence_bert_config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | limits, indent=2))
    if case.get("old"):
        use_old_spellings(folder)


def vectors(folder: Path, **options) -> np.ndarray:
    # transformers 5 ignores this key of a folder with a tokenizer.json, and older versions do not.
    config = json.loads((folder / "tokenizer_config.json").read_text())
    asked = {key: value for key, value in config.items() if key == "add_eos_token"}
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True, processor_kwargs=asked)
    return model.encode(TEXTS, batch_size=2, convert_to_numpy=True, **options)


def differs(folder: Path, change: tuple, golden: np.ndarray) -> float:
    name, key, value = change
    with tempfile.TemporaryDirectory() as other:
        copy = Path(other) / "model"
        shutil.copytree(folder, copy)
        path = copy / name
        path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
        found = vectors(copy)
    return np.inf if found.shape != golden.shape else float(np.abs(found - golden).max())


def write(name: str, out: Path) -> None:
    case = CASES[name]
    torch.manual_seed(sum(map(ord, name)))
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    if case["modules"] is None:
        write_model(folder, case)
    else:
        with tempfile.TemporaryDirectory() as plain:
            write_model(Path(plain), case)
            write_modules(folder, Path(plain), case)
    golden = vectors(folder)
    least = min((differs(folder, change, golden) for change in case["mutants"]), default=np.inf)
    assert least > 1e-3, (name, least)
    written = dict(texts=TEXTS, vectors=golden.tolist())
    if "prompts" in case:
        written["prompts"] = {key: vectors(folder, prompt_name=key).tolist() for key in case["prompts"]}
    written["dimensions"] = vectors(folder, truncate_dim=5, normalize_embeddings=True).tolist()
    (folder / "golden.json").write_text(json.dumps(written))
    (folder / "README.md").unlink(missing_ok=True)
    for path in folder.rglob("*"):
        path.chmod(0o755 if path.is_dir() else 0o644)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    print(f"{name:20} {golden.shape[1]:4} features {size:7} bytes  least seen {least:.1e}", flush=True)


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "golden-embedders")
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.cases or CASES:
        write(name, args.out)


if __name__ == "__main__":
    main()
