"""Writes golden encoders as GGUF files, with the package gguf.

    python3 make_gguf_encoders.py [case ...]

`../golden-gguf/encoders/CASE.gguf` has the weights of `../golden-encoders/CASE` in single precision,
so that its states are those of the checkpoint. The converter of llama.cpp leaves out poolers and heads
for masked tokens, cuts the rows before position 0 from the positions of RoBERTa, and adds 1 to
Gemma's norms. Files of BERT with a classifier have the pooler that it reads, which this converter
leaves out, under the name that it has in RoBERTa.
"""

import json
import sys
from pathlib import Path

import gguf
import numpy as np

from read_quantized import load, numbers

HERE = Path(__file__).resolve().parent.parent
CASES = {
    "bert": "bert", "bert_masked": "bert", "roberta": "bert", "xlm_roberta_padding": "bert", "nomic_bert": "nomic-bert",
    "nomic_bert_own_keys": "nomic-bert", "modernbert": "modern-bert", "modernbert_biases": "modern-bert",
    "modernbert_v4": "modern-bert", "jina_v3": "jina-bert-v3", "bert_scores": "bert", "bert_pairs": "bert", "xlm_roberta_scores": "bert",
    "xlm_roberta_classes": "bert", "modernbert_scores": "modern-bert", "modernbert_scores_mean": "modern-bert",
    "modernbert_classes": "modern-bert", "gemma3_both_ways": "gemma-embedding", "gemma3_both_ways_v4": "gemma-embedding",
}
FUSED = ("bert_masked",)
# The pooling of vectors. These files also have the tokenizer of BERT, so that texts can be sent to a server:
# words after a mark, and parts of words without it.
POOLINGS = {
    "bert": gguf.PoolingType.CLS, "nomic_bert": gguf.PoolingType.MEAN, "modernbert": gguf.PoolingType.CLS,
    "gemma3_both_ways": gguf.PoolingType.LAST,
}
PREFIXES = ("bert.", "roberta.", "model.", "nomic_bert.")
# The names of classifiers in RoBERTa, under which the converter looks those of BERT up.
CLASSIFIER = {"pooler.dense": "classifier.dense", "classifier": "classifier.out_proj"}
LEFT_OUT = ("pooler.", "cls.", "head.", "decoder.", "embeddings.position_ids", "lm_head.")


def is_classifier(config):
    return config["architectures"][0].endswith("ForSequenceClassification")


def tensors(case, config, architecture):
    """All tensors under the names that the converter looks up."""
    found = {}
    for name, tensor in load(HERE / "golden-encoders" / case).items():
        for prefix in PREFIXES:
            name = name.removeprefix(prefix)
        if is_classifier(config):
            module, _, end = name.rpartition(".")
            name = f"{CLASSIFIER.get(module, module)}.{end}"
        if name.startswith(LEFT_OUT) and not (is_classifier(config) and name.startswith("head.")):
            continue
        values = np.array(numbers(tensor), "<f4").reshape(tensor[1])
        if "position_embeddings" in name and "roberta" in case:
            values = values[1 + config["pad_token_id"] :]
        if architecture == "gemma-embedding":
            name = "model." + name
            values = values + np.float32(name.endswith("norm.weight"))
        found[name] = values
    return found


def labels(config):
    """The names of the classes. A configuration of one or two classes may have none."""
    return list((config.get("id2label") or {"0": "LABEL_0"}).values())


def keys(writer, case, config):
    """The keys of the configuration."""
    def of(*names):
        return next(config[name] for name in names if name in config)

    architecture = CASES[case]
    heads, hidden = of("num_attention_heads", "n_head"), of("hidden_size", "n_embd")
    positions = of("max_trained_positions", "max_position_embeddings")
    writer.add_context_length(positions - (1 + config["pad_token_id"] if "roberta" in case else 0))
    writer.add_embedding_length(hidden)
    writer.add_block_count(of("num_hidden_layers", "n_layer"))
    writer.add_feed_forward_length(of("intermediate_size", "n_inner"))
    writer.add_head_count(heads)
    writer.add_causal_attention(False)
    rope = config.get("rope_parameters") or {}
    full, local = rope.get("full_attention", rope), rope.get("sliding_attention", {})
    if architecture == "gemma-embedding":
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_key_length(config["head_dim"])
        writer.add_value_length(config["head_dim"])
        writer.add_attention_scale(config["query_pre_attn_scalar"] ** -0.5)
    else:
        writer.add_layer_norm_eps(of("layer_norm_eps", "layer_norm_epsilon", "norm_eps"))
    if architecture != "bert":
        base = full.get("rope_theta") or of("rotary_emb_base", "global_rope_theta", "rope_theta")
        writer.add_rope_freq_base(base)
    if architecture == "modern-bert":
        writer.add_sliding_window(config["local_attention"])
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", config["global_attn_every_n_layers"])
        writer.add_string(f"{architecture}.hidden_act", config["hidden_activation"])
    if architecture == "gemma-embedding":
        writer.add_sliding_window(config["sliding_window"])
        pattern = config.get("sliding_window_pattern") or config["layer_types"].index("full_attention") + 1
        writer.add_uint32(f"{architecture}.attention.sliding_window_pattern", pattern)
    if is_classifier(config):
        writer.add_pooling_type(gguf.PoolingType.RANK)
        writer.add_classifier_output_labels(labels(config))
        if architecture == "modern-bert":
            # The package has no function for it yet.
            number = {"mean": gguf.PoolingType.MEAN, "cls": gguf.PoolingType.CLS}[config["classifier_pooling"]]
            writer.add_uint32(f"{architecture}.classifier.pooling_type", number)
    base = local.get("rope_theta") or config.get("local_rope_theta") or config.get("rope_local_base_freq")
    if base:
        writer.add_float32(f"{architecture}.rope.freq_base_swa", base)


def add_words(writer, count):
    """A tokenizer of the letters of the alphabet, and of their continuations."""
    letters = [chr(ord("a") + index) for index in range(26)]
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    tokens = special + [f"\u2581{letter}" for letter in letters] + letters
    tokens += [f"[unused{index}]" for index in range(count - len(tokens))]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(tokens)
    kinds = [gguf.TokenType.CONTROL] * len(special) + [gguf.TokenType.NORMAL] * (count - len(special))
    writer.add_token_types(kinds)
    for index, name in enumerate(("pad", "unk", "bos", "sep", "mask")):
        getattr(writer, f"add_{name}_token_id")(index)


def write(case):
    architecture = CASES[case]
    config = json.loads((HERE / "golden-encoders" / case / "config.json").read_text())
    target = HERE / "golden-gguf" / "encoders" / f"{case}.gguf"
    writer = gguf.GGUFWriter(target, architecture)
    keys(writer, case, config)
    if case in POOLINGS:
        writer.add_pooling_type(POOLINGS[case])
    if case in POOLINGS or is_classifier(config):
        add_words(writer, config["vocab_size"])
    else:
        writer.add_tokenizer_model("llama")
        writer.add_token_list([f"t{token}" for token in range(config["vocab_size"])])
    kind = next(kind for kind, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(kind, 8)
    found = {}
    for name, values in tensors(case, config, architecture).items():
        new = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert new, f"{case}: {name} has no name"
        found[new] = values
    if case in FUSED:
        for name in [name for name in found if ".attn_q." in name]:
            parts = [found.pop(name.replace("attn_q", part)) for part in ("attn_q", "attn_k", "attn_v")]
            found[name.replace("attn_q", "attn_qkv")] = np.concatenate(parts)
    for name, values in found.items():
        writer.add_tensor(name, np.ascontiguousarray(values, "<f4"))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    size = target.stat().st_size
    print(f"{case}: {size} bytes")
    assert size < 150_000, case


def main():
    (HERE / "golden-gguf" / "encoders").mkdir(exist_ok=True)
    for case in sys.argv[1:] or CASES:
        write(case)


main()
