"""Measures what LoRA adapters cost: streams with adapters beside streams of the model alone, on random weights of the 1.1B Llama shape.

adapters.py [--rounds N] [--streams 1,16] [--adapters N] [--rank N] [--quantize FORMAT] [--millrace BINARY]

One server has all adapters, which change every matrix of a layer. Streams of the model alone and streams that name the adapters in turn are
measured in turns. The best rounds are printed as a Markdown table in tokens per second. Nothing else may run meanwhile.
"""

import argparse
import concurrent.futures
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[3]
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


class Server:
    """A server that has loaded its model."""

    def __init__(self, arguments):
        self.process = subprocess.Popen(arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.url, said = None, []
        for line in self.process.stdout:
            said.append(line)
            found = re.search(r"listening on (http://[0-9.]+:\d+)", line)
            self.url = found.group(1) if found else self.url
            if "ready after" in line:
                break
        else:
            sys.exit("".join(said))
        threading.Thread(target=self.process.stdout.read, daemon=True).start()

    def answer(self, seed, model):
        prompt = [(7 * seed + i * i) % 900 + 3 for i in range(PROMPT)]
        body = {"model": model, "prompt": prompt, "max_tokens": GENERATE, "ignore_eos": True, "temperature": 0}
        request = urllib.request.Request(
            f"{self.url}/v1/completions", json.dumps(body).encode(), {"content-type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=600) as response:
            answer = json.load(response)
        assert answer["usage"]["completion_tokens"] == GENERATE, answer
        return answer["choices"][0]["text"]

    def speed(self, seeds, models):
        """Tokens per second of streams that start together."""
        since = time.monotonic()
        with concurrent.futures.ThreadPoolExecutor(len(seeds)) as streams:
            list(streams.map(self.answer, seeds, models))
        return len(seeds) * GENERATE / (time.monotonic() - since)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", default="1,16")
    parser.add_argument("--adapters", type=int, default=8)
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--quantize")
    parser.add_argument("--millrace", default=ROOT / "target/dist/millrace")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        base = pathlib.Path(folder) / "base"
        base.mkdir()
        shutil.copy(ROOT / "integration-tests/benches/llama-1.1b/config.json", base)
        shutil.copy(ROOT / "models/demo/tokenizer.json", base)
        names = [f"a{number}" for number in range(options.adapters)]
        for name in names:
            write_adapter(pathlib.Path(folder) / name, options.rank)
        command = [options.millrace, "serve", base, "--load-format", "dummy", "--port", "0", "--device", "cpu", "--lora-modules"]
        command += [f"{name}={folder}/{name}" for name in names]
        command += ["--quantize", options.quantize] if options.quantize else []
        server = Server(command)
        try:
            measure(server, names, options)
        finally:
            server.process.terminate()
            server.process.wait(60)


def measure(server, names, options):
    print("| streams | the model alone | with adapters | alone / with adapters |\n|---|--:|--:|--:|")
    server.speed([0], ["base"])
    seed = 1
    for count in map(int, options.streams.split(",")):
        best = [0.0, 0.0]
        for _ in range(options.rounds):
            for index, models in enumerate((["base"] * count, (names * count)[:count])):
                best[index] = max(best[index], server.speed(range(seed, seed + count), models))
                seed += count
        print(f"| {count} | {best[0]:.1f} | {best[1]:.1f} | {best[0] / best[1]:.2f} |", flush=True)


main()
