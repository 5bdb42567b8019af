#!/usr/bin/env python3
"""Write tiny random encoders and the states that transformers computes for them.

    python make_encoders.py [--out ../golden-encoders] [case ...]

Each folder has the checkpoint as transformers writes it, and golden.safetensors
with the ids of some texts and the last hidden states of their tokens. A folder
with a classifier also has its outputs, and a tokenizer of words (`w4`, `w5` and
so on). For each
change in `mutants` the script checks that the states differ, so that a reader
of the checkpoint which ignores the key fails.
"""

import argparse
import json
import os
import shutil
from pathlib import Path

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
import transformers
from safetensors.torch import save_file

SIZES = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=44,
    max_position_embeddings=48, type_vocab_size=2, hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0, initializer_range=0.2,
)
ROBERTA = dict(SIZES, type_vocab_size=1, pad_token_id=1, max_position_embeddings=50, layer_norm_eps=1e-5)

SLIDING, FULL = "sliding_attention", "full_attention"
GEMMA = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, num_key_value_heads=1, head_dim=8,
    intermediate_size=44, max_position_embeddings=64, sliding_window=8, query_pre_attn_scalar=8,
    use_bidirectional_attention=True, layer_types=[SLIDING, SLIDING, FULL], initializer_range=0.2,
)
GEMMA_WIDE = dict(
    GEMMA, num_key_value_heads=2, head_dim=12, intermediate_size=40, sliding_window=12, query_pre_attn_scalar=40, attention_bias=True,
    layer_types=[SLIDING, FULL, SLIDING],
    rope_parameters={
        SLIDING: dict(rope_type="default", rope_theta=50.0),
        FULL: dict(rope_type="linear", rope_theta=1000.0, factor=2.0),
    },
)
MODERN = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=4, num_attention_heads=4, intermediate_size=28,
    max_position_embeddings=64, local_attention=8, global_attn_every_n_layers=3, initializer_range=0.4,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, cls_token_id=1, sep_token_id=2,
)
MODERN_BIASES = dict(
    MODERN, num_hidden_layers=3, local_attention=7, norm_bias=True, attention_bias=True, mlp_bias=True, norm_eps=1e-3,
)
NOMIC = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=44,
    max_position_embeddings=48, type_vocab_size=2, initializer_range=0.3,
)
JINA = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=44,
    max_position_embeddings=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
)
# Texts are longer than the distance from which on all keys have one bias.
MPNET = dict(
    vocab_size=61, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=44,
    max_position_embeddings=130, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0, initializer_range=0.2,
)


def thetas(sliding: float, full: float) -> dict:
    table = lambda theta: dict(rope_type="default", rope_theta=theta)
    return dict(rope_parameters={SLIDING: table(sliding), FULL: table(full)})


# Class, configuration, lengths of the texts, changes of the configuration that must be seen.
CASES = {
    "bert": ("BertModel", SIZES, (48, 17, 1), [dict(hidden_act="relu"), dict(layer_norm_eps=0.1)]),
    "bert_relu": ("BertModel", dict(SIZES, hidden_act="relu", num_attention_heads=2), (30, 5),
                  [dict(hidden_act="gelu"), dict(num_attention_heads=4)]),
    "bert_tanh": ("BertModel", dict(SIZES, hidden_act="gelu_new", layer_norm_eps=1e-3), (40, 9),
                  [dict(layer_norm_eps=1e-12), dict(hidden_act="relu")]),
    "bert_masked": ("BertForMaskedLM", dict(SIZES, num_hidden_layers=3), (33, 8), [dict(num_hidden_layers=2)]),
    "roberta": ("RobertaModel", ROBERTA, (48, 11), [dict(pad_token_id=0)]),
    "xlm_roberta": ("XLMRobertaModel", ROBERTA, (48, 12, 2), [dict(pad_token_id=0), dict(hidden_act="relu")]),
    "xlm_roberta_wide": ("XLMRobertaModel", dict(ROBERTA, num_attention_heads=8, intermediate_size=80), (31, 20),
                         [dict(num_attention_heads=4)]),
    "xlm_roberta_padding": ("XLMRobertaModel", dict(ROBERTA, pad_token_id=3), (40, 6), [dict(pad_token_id=1)]),
    "xlm_roberta_scores": ("XLMRobertaForSequenceClassification", dict(ROBERTA, num_labels=1), (20, 7),
                           [dict(hidden_act="relu")]),
    "xlm_roberta_classes": ("XLMRobertaForSequenceClassification",
                            dict(ROBERTA, num_hidden_layers=1, id2label={0: "no", 1: "yes", 2: "perhaps"}), (20, 7),
                            [dict(hidden_act="relu")]),
    # The tokenizers of these give the second text of a pair a type of its own.
    "bert_scores": ("BertForSequenceClassification", dict(SIZES, num_labels=1), (20, 7), [dict(hidden_act="relu")]),
    "bert_pairs": ("BertForSequenceClassification",
                   dict(SIZES, type_vocab_size=3, id2label={0: "contradiction", 1: "entailment", 2: "neutral"}), (20, 7),
                   [dict(hidden_act="relu")]),
    "xlm_roberta_types": ("XLMRobertaForSequenceClassification", dict(ROBERTA, type_vocab_size=2, num_labels=1), (20, 7),
                          [dict(hidden_act="relu")]),
    "nomic_bert_scores": ("NomicBertForSequenceClassification", dict(NOMIC, num_labels=1), (20, 7),
                          [dict(hidden_act="gelu")]),
    "bert_classes": ("BertForSequenceClassification", dict(SIZES, num_hidden_layers=1, num_labels=2), (20, 7),
                     [dict(hidden_act="relu")]),
    # More classes than a state has features.
    "bert_many_classes": ("BertForSequenceClassification", dict(SIZES, num_hidden_layers=1, num_labels=77), (20, 7),
                          [dict(hidden_act="relu")]),
    "gemma3_both_ways": ("Gemma3TextModel", GEMMA, (48, 17, 1),
                         [dict(use_bidirectional_attention=False), dict(sliding_window=6), dict(sliding_window=10),
                          dict(layer_types=[SLIDING, FULL, FULL]), dict(query_pre_attn_scalar=9),
                          thetas(2e4, 1e6), thetas(1e4, 1e4)]),
    "gemma3_both_ways_wide": ("Gemma3TextModel", GEMMA_WIDE, (50, 11),
                              [dict(sliding_window=10), dict(sliding_window=14), dict(query_pre_attn_scalar=16)]),
    "gemma3_both_ways_v4": ("Gemma3TextModel", dict(GEMMA, num_hidden_layers=4, layer_types=None), (33, 9),
                            [dict(sliding_window=7), dict(sliding_window=10), dict(rms_norm_eps=0.1)]),
    "modernbert": ("ModernBertModel", MODERN, (48, 17, 1),
                   [dict(local_attention=6), dict(local_attention=10), dict(layer_types=[FULL] * 4),
                    dict(hidden_activation="gelu_new"), thetas(2e4, 160000.0), thetas(1e4, 1e4)]),
    "modernbert_biases": ("ModernBertForMaskedLM", MODERN_BIASES, (40, 9),
                          [dict(local_attention=4), dict(local_attention=8), dict(norm_eps=1e-5)]),
    "modernbert_v4": ("ModernBertModel", dict(MODERN, hidden_activation="silu"), (33, 8),
                      [dict(local_attention=10), dict(global_attn_every_n_layers=3), dict(global_rope_theta=1e4)]),
    "modernbert_scores": ("ModernBertForSequenceClassification", dict(MODERN, num_labels=1), (20, 7),
                          [dict(local_attention=6)]),
    "modernbert_classes": ("ModernBertForSequenceClassification", dict(MODERN, num_hidden_layers=2, num_labels=4),
                           (20, 7), [dict(local_attention=6)]),
    "modernbert_scores_mean": ("ModernBertForSequenceClassification",
                               dict(MODERN_BIASES, num_labels=1, classifier_pooling="mean", classifier_bias=True),
                               (20, 7), [dict(local_attention=4)]),
    "nomic_bert": ("NomicBertModel", NOMIC, (48, 17, 1),
                   [dict(hidden_act="gelu"), dict(layer_norm_eps=0.1),
                    dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))]),
    "nomic_bert_masked": ("NomicBertForMaskedLM",
                          dict(NOMIC, num_attention_heads=2, hidden_act="gelu", layer_norm_eps=1e-3, type_vocab_size=3,
                               rope_parameters=dict(rope_type="default", rope_theta=50.0)), (30, 5),
                          [dict(hidden_act="silu"), dict(layer_norm_eps=1e-12)]),
    "nomic_bert_own_keys": ("NomicBertModel", dict(NOMIC, num_hidden_layers=3, intermediate_size=36), (40, 9),
                            [dict(num_hidden_layers=2)]),
    "jina_v3": ("JinaEmbeddingsV3Model", JINA, (48, 17, 1),
                [dict(hidden_act="relu"), dict(layer_norm_eps=0.1),
                 dict(rope_parameters=dict(rope_type="default", rope_theta=10000.0))]),
    "jina_v3_masked": ("JinaEmbeddingsV3ForMaskedLM",
                       dict(JINA, num_attention_heads=2, hidden_act="relu", layer_norm_eps=1e-3,
                            rope_parameters=dict(rope_type="default", rope_theta=50.0)), (30, 5),
                       [dict(layer_norm_eps=1e-12), dict(hidden_act="gelu")]),
    "jina_v3_scores": ("JinaEmbeddingsV3ForSequenceClassification", dict(JINA, type_vocab_size=2, num_labels=1), (20, 7),
                       [dict(hidden_act="relu")]),
    "mpnet": ("MPNetModel", MPNET, (128, 20, 1), [dict(hidden_act="relu"), dict(layer_norm_eps=0.1)]),
    "mpnet_masked": ("MPNetForMaskedLM", dict(MPNET, hidden_act="relu", max_position_embeddings=104, layer_norm_eps=1e-3),
                     (102, 11), [dict(layer_norm_eps=1e-12)]),
    "mpnet_heads": ("MPNetModel", dict(MPNET, num_attention_heads=2, hidden_act="gelu_new", max_position_embeddings=50),
                    (48, 30), [dict(hidden_act="relu")]),
}

# Checkpoints whose tokenizer gives the second text of a pair another type.
TYPED = ("bert_scores", "bert_pairs", "xlm_roberta_types", "nomic_bert_scores", "jina_v3_scores")

# The configuration as older versions of transformers wrote it: removed keys, and what they wrote instead.
OLD_CONFIGS = {
    "gemma3_both_ways_v4": (("rope_parameters", "layer_types"),
                            dict(rope_theta=1e6, rope_local_base_freq=1e4, sliding_window_pattern=2,
                                 sliding_window=9)),
    "modernbert_v4": (("rope_parameters", "layer_types"),
                      dict(global_rope_theta=500.0, local_rope_theta=50.0, global_attn_every_n_layers=2)),
}

# The configuration as the code that comes with nomic-embed-text reads it, which transformers 5 does not read.
OWN_CONFIGS = {
    "nomic_bert_own_keys": dict(
        activation_function="swiglu", architectures=["NomicBertModel"], causal=False, layer_norm_epsilon=1e-12,
        max_trained_positions=48, mlp_fc1_bias=False, mlp_fc2_bias=False, model_type="nomic_bert", n_embd=32, n_head=4,
        n_inner=36, n_layer=3, n_positions=192, parallel_block=False, prenorm=False, qkv_proj_bias=False,
        rotary_emb_base=1000, rotary_emb_fraction=1.0, rotary_emb_interleaved=False, rotary_emb_scale_base=None,
        rotary_scaling_factor=None, torch_dtype="float32", type_vocab_size=2, use_rms_norm=False, vocab_size=61,
    ),
}


def states(model: torch.nn.Module, ids: torch.Tensor, types: torch.Tensor | None = None) -> torch.Tensor:
    extra = {} if types is None else dict(token_type_ids=types[None])
    with torch.no_grad():
        return model.base_model(ids[None].long(), **extra).last_hidden_state[0]


def scatter(model: torch.nn.Module) -> None:
    """Moves biases and norms away from 0 and 1, so that none can be left out."""
    for name, weight in model.named_parameters():
        if weight.dim() == 1:
            weight.data += 0.3 * torch.randn_like(weight)
        if "relative_attention_bias" in name:
            weight.data *= 5


def write(name: str, out: Path) -> None:
    kind, config, lengths, mutants = CASES[name]
    torch.manual_seed(sum(map(ord, name)))
    model_class = getattr(transformers, kind)
    model = model_class(model_class.config_class(**config)).eval().float()
    scatter(model)
    folder = out / name
    shutil.rmtree(folder, ignore_errors=True)
    model.save_pretrained(folder)
    if name in OLD_CONFIGS:
        path, (removed, written) = folder / "config.json", OLD_CONFIGS[name]
        keys = json.loads(path.read_text())
        path.write_text(json.dumps({key: keys[key] for key in keys if key not in removed} | written, indent=2))
    again = model_class.from_pretrained(folder).eval()
    golden, pairs, classes = {}, [], []
    if hasattr(again, "classifier"):
        write_tokenizer(folder, config["vocab_size"], int(name in TYPED))
    for index, length in enumerate(lengths):
        # Padding tokens have positions of their own in RoBERTa, so texts have none.
        ids = torch.randint(4, config["vocab_size"], (length,), dtype=torch.int32)
        golden[f"ids.{index}"], golden[f"states.{index}"] = ids, states(again, ids).contiguous()
        words = " ".join(f"w{i}" for i in ids.tolist())
        if hasattr(again, "classifier") and again.config.num_labels > 1:
            classes.append(classified(again, words, [0, *ids.tolist(), 2]))
            if kind != "BertForSequenceClassification":
                classes.append(classified(again, ["w5 w6", words], [0, 5, 6, 2, 2, *ids.tolist(), 2]))
            elif name in TYPED:
                classes.append(classified(again, ["w5 w6", words], **tokens(folder, ["w5 w6", words])))
        elif name in TYPED:
            pairs.append(dict(query="w5 w6", text=words, output=score(again, **tokens(folder, ["w5 w6", words]))))
        elif hasattr(again, "classifier"):
            # <s> w5 w6 </s> </s> the text </s>
            pair = torch.tensor([0, 5, 6, 2, 2, *ids.tolist(), 2])
            with torch.no_grad():
                output = again(pair[None]).logits[0, 0].item()
            pairs.append(dict(query="w5 w6", text=words, output=output))
    if name in TYPED:
        ids = torch.randint(4, config["vocab_size"], (31,), dtype=torch.int32)
        index, start = len(lengths), 11
        golden[f"ids.{index}"], golden[f"second_type_start.{index}"] = ids, torch.tensor([start], dtype=torch.int32)
        golden[f"states.{index}"] = states(again, ids, (torch.arange(len(ids)) >= start).long()).contiguous()
    least = min(
        (states(changed(model_class, folder, mutant), golden["ids.0"]) - golden["states.0"]).abs().max().item()
        for mutant in mutants
    )
    assert least > 1e-3, (name, least)
    save_file(golden, folder / "golden.safetensors")
    if name in OWN_CONFIGS:
        (folder / "config.json").write_text(json.dumps(OWN_CONFIGS[name], indent=2))
    if pairs and name in TYPED:
        (folder / "cut_pairs.json").write_text(json.dumps(cut_pairs(again, folder)))
    if pairs:
        (folder / "pairs.json").write_text(json.dumps(pairs))
    if classes:
        (folder / "classes.json").write_text(json.dumps(classes))
    for path in folder.iterdir():
        path.chmod(0o644)
    size = sum(path.stat().st_size for path in folder.iterdir())
    print(f"{name:28} {size:7} bytes  least seen {least:.1e}", flush=True)


def tokens(folder: Path, pair: list[str], side: str = "right", **options: object) -> dict:
    """The ids and types of the tokens of a pair, as transformers reads the tokenizer."""
    file = str(folder / "tokenizer.json")
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=file, truncation_side=side)
    found = tokenizer(*pair, return_token_type_ids=True, **options)
    assert 1 in found["token_type_ids"]
    return dict(ids=found["input_ids"], types=found["token_type_ids"])


def score(model: torch.nn.Module, ids: list[int], types: list[int]) -> float:
    with torch.no_grad():
        typed, untyped = (
            model(torch.tensor(ids)[None], token_type_ids=torch.tensor(kinds)[None]).logits[0, 0].item()
            for kinds in (types, [0] * len(types))
        )
    assert abs(typed - untyped) > 1e-3 * abs(typed), "the types must be seen"
    return typed


def cut_pairs(model: torch.nn.Module, folder: Path) -> list[dict]:
    """Pairs that are longer than the longest text of the model, cut on either side."""
    longest, found = 48, []
    words = lambda count: " ".join(f"w{5 + index * index % 50}" for index in range(count))
    for first, second in ((3, 90), (90, 3), (60, 70), (70, 60), (22, 23)):
        for side in ("left", "right"):
            pair = [words(first), words(second)]
            inputs = tokens(folder, pair, side, truncation="longest_first", max_length=longest)
            assert len(inputs["ids"]) == min(longest, first + second + (4 if "roberta" in folder.name or "jina" in folder.name else 3))
            found.append(dict(query=pair[0], text=pair[1], side=side.capitalize(), output=score(model, **inputs)))
    return found


def classified(
    model: torch.nn.Module, inputs: str | list[str], ids: list[int], types: list[int] | None = None
) -> dict:
    with torch.no_grad():
        extra = dict(token_type_ids=torch.tensor(types)[None]) if types else {}
        logits = model(torch.tensor(ids)[None], **extra).logits[0]
    names = [model.config.id2label[index] for index in range(len(logits))]
    return dict(inputs=inputs, names=names, logits=logits.tolist(), shares=logits.softmax(0).tolist())


def write_tokenizer(folder: Path, size: int, second_type: int) -> None:
    """Writes a tokenizer of words. Where the second text has a type, one token is between the texts, as in BERT."""
    special = ["<s>", "<pad>", "</s>", "<unk>"]
    around = {text: dict(id=text, ids=[special.index(text)], tokens=[text]) for text in ("<s>", "</s>")}
    token = lambda text, kind=0: {"SpecialToken": {"id": text, "type_id": kind}}
    text = lambda name, kind=0: {"Sequence": {"id": name, "type_id": kind}}
    between = [token("</s>")] * (1 if second_type and "bert_" in folder.name and "roberta" not in folder.name else 2)
    tokenizer = dict(
        version="1.0",
        added_tokens=[
            dict(id=i, content=t, special=True, single_word=False, lstrip=False, rstrip=False, normalized=False)
            for i, t in enumerate(special)
        ],
        pre_tokenizer=dict(type="Whitespace"),
        post_processor=dict(
            type="TemplateProcessing",
            single=[token("<s>"), text("A"), token("</s>")],
            pair=[token("<s>"), text("A"), *between, text("B", second_type), token("</s>", second_type)],
            special_tokens=around,
        ),
        model=dict(
            type="WordLevel", unk_token="<unk>",
            vocab={t: i for i, t in enumerate(special)} | {f"w{i}": i for i in range(4, size)},
        ),
    )
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))


def changed(model_class: type, folder: Path, mutant: dict) -> torch.nn.Module:
    config = model_class.config_class(**{**json.loads((folder / "config.json").read_text()), **mutant})
    return model_class.from_pretrained(folder, config=config).eval()


def main() -> None:
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path(__file__).parent.parent / "golden-encoders")
    parser.add_argument("cases", nargs="*")
    args = parser.parse_args()
    torch.set_num_threads(1)
    for name in args.cases or CASES:
        write(name, args.out)


if __name__ == "__main__":
    main()
