"""Writes the configuration of a Llama, and the demo model's tokenizer: shape.py FOLDER [8b|8-layers|tiny].

The server can compute such a model with weights of its own (`--load-format dummy`). Needs only Python.
"""

import json
import pathlib
import shutil
import sys

DEMO = pathlib.Path(__file__).parents[2] / "models/demo"

LLAMA_8B = {"hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32, "num_key_value_heads": 8,
            "vocab_size": 128256}
SHAPES = {
    "8b": LLAMA_8B,
    # A fraction of the memory and of the time to write it.
    "8-layers": {**LLAMA_8B, "num_hidden_layers": 8},
    "tiny": {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 4, "num_attention_heads": 4, "num_key_value_heads": 2,
             "vocab_size": 2048},
}
COMMON = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "max_position_embeddings": 32768,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "attention_bias": False,
    "mlp_bias": False,
}


def shape(folder, name="8b"):
    folder = pathlib.Path(folder)
    folder.mkdir(exist_ok=True)
    config = {**COMMON, **SHAPES[name]}
    (folder / "config.json").write_text(json.dumps(config))
    for file in ["tokenizer.json", "tokenizer_config.json"]:
        shutil.copy(DEMO / file, folder / file)
    return config


if __name__ == "__main__":
    shape(*sys.argv[1:])
