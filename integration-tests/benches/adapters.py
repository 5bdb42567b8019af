"""Measures what LoRA adapters cost: streams with adapters beside streams of the model alone, on random weights of the 1.1B Llama shape.

adapters.py [--rounds N] [--streams 1,16] [--adapters N] [--rank N] [--quantize FORMAT] [--millrace BINARY]

One server has all adapters, which change every matrix of a layer. Streams of the model alone and streams that name the adapters in turn are
measured in turns. The best rounds are printed as a Markdown table in tokens per second. Nothing else may run meanwhile.
"""

import argparse
import concurrent.futures
import json
import os
import struct
import time

from served import MILLRACE, Server, command, shape_folder

PROMPT, GENERATE = 64, 96
# Outputs and inputs of each projection of the shape.
SHAPES = {
    "self_attn.q_proj": (2048, 2048),
    "self_attn.k_proj": (256, 2048),
    "self_attn.v_proj": (256, 2048),
    "self_attn.o_proj": (2048, 2048),
    "mlp.gate_proj": (5632, 2048),
    "mlp.up_proj": (5632, 2048),
    "mlp.down_proj": (2048, 5632),
}
LAYERS = 22


def write_adapter(folder, rank):
    """Writes an adapter of small random numbers in bfloat16."""
    folder.mkdir()
    config = {"peft_type": "LORA", "r": rank, "lora_alpha": rank, "target_modules": [name.split(".")[1] for name in SHAPES]}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    header, at = {}, 0
    for layer in range(LAYERS):
        for name, (outputs, inputs) in SHAPES.items():
            for part, shape in (("A", [rank, inputs]), ("B", [outputs, rank])):
                size = 2 * shape[0] * shape[1]
                key = f"base_model.model.model.layers.{layer}.{name}.lora_{part}.weight"
                header[key] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + size]}
                at += size
    text = json.dumps(header).encode()
    numbers = bytearray(os.urandom(at))
    # Numbers of about 0.008 with both signs.
    numbers[1::2] = bytes(0x3C | byte & 0x80 for byte in numbers[1::2])
    (folder / "adapter_model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + numbers)


def answer(server, seed, model):
    prompt = [(7 * seed + i * i) % 900 + 3 for i in range(PROMPT)]
    server.complete(prompt, GENERATE, model=model, temperature=0)


def speed(server, seeds, models):
    """Tokens per second of streams that start together."""
    since = time.monotonic()
    with concurrent.futures.ThreadPoolExecutor(len(seeds)) as streams:
        list(streams.map(lambda seed, model: answer(server, seed, model), seeds, models))
    return len(seeds) * GENERATE / (time.monotonic() - since)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--quantize")
    parser.add_argument("--millrace", default=MILLRACE)
    options = parser.parse_args()
    with shape_folder() as base:
        names = [f"a{number}" for number in range(options.adapters)]
        for name in names:
            write_adapter(base.parent / name, options.rank)
        flags = ["--quantize", options.quantize] if options.quantize else []
        flags += ["--lora-modules", *(f"{name}={base.parent / name}" for name in names)]
        with Server(command(options.millrace, base, *flags)) as server:
            measure(server, names, options)


def measure(server, names, options):
    print("| streams | the model alone | with adapters | alone / with adapters |\n|---|--:|--:|--:|")
    speed(server, [0], ["base"])
    seed = 1
    for count in map(int, options.streams.split(",")):
        best = [0.0, 0.0]
        for _ in range(options.rounds):
            for index, models in enumerate((["base"] * count, (names * count)[:count])):
                best[index] = max(best[index], speed(server, range(seed, seed + count), models))
                seed += count
        print(f"| {count} | {best[0]:.1f} | {best[1]:.1f} | {best[0] / best[1]:.2f} |", flush=True)


if __name__ == "__main__":
    main()
