"""Checks the server on GPUs over HTTP: serve.py texts|ranks|logits|speed BINARY OUT_FOLDER [MODEL].

texts   the greedy text on a GPU equals that on the CPU in float32 (the demo model, and
        stories260k from MILLRACE_TEST_DATA)
ranks   two ranks on one GPU generate the same text as one rank (needs NCCL 2.30 or newer;
        otherwise it reports that and passes)
logits  writes the logprobs of prompts and answers of llama.py's MODEL to answers.json, which
        llama.py compares
speed   measures decode, prefill and 64 streams of that MODEL, which needs no weights: prints a
        table beside PyTorch's times (llama.json, if it exists) and writes serve.json

Needs only Python. Servers listen on loopback and end with the check, also when a signal ends it.
With MILLRACE_CHECK_DEVICE=cpu the last two commands run without a GPU.
"""

import json
import os
import pathlib
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

from table import rows_of

PROMPTS = ["Once upon a time", "The fox had a lantern and said that it was", "One day, Lily went to the"]
# 13 tokens of the demo model's tokenizer, which replaces a missing one.
WORDS = " the fox went over the hill with a lantern"
PATIENCE = 240
DEVICE = os.environ.get("MILLRACE_CHECK_DEVICE", "cuda")
# Few and short texts, so that no two of them share a block.
LOGIT_PROMPTS, LOGIT_TOKENS, LOGIT_TOP = [5, 70, 130], 24, 5


class Server:
    def __init__(self, binary, log, flags, environment=None):
        self.log = open(log, "w")
        self.since = time.monotonic()
        command = [binary, "serve", "--hostname", "127.0.0.1", "--port", "0", *flags]
        self.process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=self.log, env={**os.environ, **(environment or {})}
        )
        self.address = None
        while self.address is None or not self.ready():
            text = pathlib.Path(log).read_text(errors="replace")
            found = re.search(r"listening on (http://[0-9.:]+)", text)
            self.address = found and found[1]
            if self.process.poll() is not None or time.monotonic() - self.since > PATIENCE:
                self.stop()
                raise RuntimeError(f"{' '.join(command)}: {text[-2000:]}")
            time.sleep(0.05)
        self.start_seconds = time.monotonic() - self.since

    def ready(self):
        try:
            with urllib.request.urlopen(f"{self.address}/ready", timeout=5) as answer:
                return answer.status == 200
        except OSError:
            return False

    def post(self, path, body):
        request = urllib.request.Request(f"{self.address}{path}", json.dumps(body).encode(), {"Content-Type": "application/json"})
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE)
        except urllib.error.HTTPError as refused:
            raise RuntimeError(f"{path}: {refused}: {refused.read().decode()}") from refused

    def text(self, prompt, tokens):
        with self.post("/generate", {"inputs": prompt, "parameters": {"max_new_tokens": tokens}}) as answer:
            return json.load(answer)["generated_text"]

    def metric(self, name):
        with urllib.request.urlopen(f"{self.address}/metrics", timeout=10) as answer:
            lines = answer.read().decode().splitlines()
        return sum(float(line.rsplit(" ", 1)[1]) for line in lines if re.match(rf"{name}[ {{]", line))

    def stream(self, prompt, tokens, times):
        """Appends the time at which each token comes. Returns the usage."""
        # Tokens without a text, of which random weights generate many, have an event only with ids.
        body = {"model": "tgi", "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True, "stream": True,
                "stream_options": {"include_usage": True}, "return_token_ids": True}
        usage = {}
        with self.post("/v1/completions", body) as answer:
            for line in answer:
                if line.startswith(b"data: ") and not line.startswith(b"data: [DONE]"):
                    event = json.loads(line[6:])
                    for choice in event.get("choices") or []:
                        times.extend([time.monotonic()] * len(choice["token_ids"]))
                    usage = event.get("usage") or usage
        return usage

    def stop(self):
        self.process.terminate()
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
        self.log.close()


def models(out):
    stories = pathlib.Path(os.environ.get("MILLRACE_TEST_DATA", "/nowhere")) / "stories260k"
    return ["demo", *([str(stories)] if stories.is_dir() else [])]


def texts_of(binary, out, name, flags, environment=None):
    server = Server(binary, f"{out}/{name}.log", ["--dtype", "float32", "--max-batch-total-tokens", "4096", *flags], environment)
    try:
        return [server.text(prompt, 40) for prompt in PROMPTS]
    finally:
        server.stop()


def texts(binary, out):
    for number, model in enumerate(models(out)):
        want = texts_of(binary, out, f"texts-{number}-cpu", ["--model-id", model, "--device", "cpu"])
        got = texts_of(binary, out, f"texts-{number}-gpu", ["--model-id", model, "--device", DEVICE])
        for prompt, a, b in zip(PROMPTS, want, got):
            assert a == b, f"{model}: {prompt!r}\nCPU: {a!r}\nGPU: {b!r}"
        print(f"{model}: {len(want)} texts are equal")


def ranks(binary, out):
    doctor = subprocess.run([binary, "doctor"], capture_output=True, text=True).stdout
    print(doctor)
    ways = ["peer"]
    found = re.search(r"NCCL: (\d+)\.(\d+)", doctor)
    if found and (int(found[1]), int(found[2])) >= (2, 30):
        ways.append("nccl")
    else:
        print("skipped: NCCL between two ranks on one GPU needs version 2.30 or newer (MILLRACE_NCCL_LIBRARY)")
    for number, model in enumerate(models(out)):
        flags = ["--model-id", model, "--device", "cuda"]
        one = texts_of(binary, out, f"ranks-{number}-one", flags)
        for way in ways:
            shared = ["--num-shard", "2", "--ranks-per-gpu", "2", "--all-reduce", way]
            two = texts_of(binary, out, f"ranks-{number}-{way}", [*flags, *shared])
            assert one == two, f"{model} by {way}: {one} {two}"
            print(f"{model}: two ranks by {way} match one rank")


def together(work, count):
    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def decode(server, sequences, prompt, tokens):
    """Returns the seconds per step while all sequences run, the shard's idle share meanwhile, and
    the tokens of a prompt."""
    times, usages, seen = [[] for _ in range(sequences)], [None] * sequences, {}

    def run(number):
        # The prompts begin differently, so that no two share a prefix.
        usages[number] = server.stream(f"{number} {prompt}", tokens, times[number])

    def watch():
        # The interval from the time when all streams have their first token to the end of the first
        # stream.
        for moment, come in [("from", lambda: all(times)), ("to", lambda: any(usages))]:
            while not come():
                time.sleep(0.002)
            seen[moment] = (time.monotonic(), server.metric("millrace_shard_idle_micros_total"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    together(run, sequences)
    watcher.join(10)
    begin, end = max(t[0] for t in times), min(t[-1] for t in times)
    step = (end - begin) / max(1, statistics.median(sum(begin < t <= end for t in of) for of in times))
    idle = float("nan")
    if "to" in seen:
        idle = (seen["to"][1] - seen["from"][1]) * 1e-6 / (seen["to"][0] - seen["from"][0])
    return step, idle, usages[0]["prompt_tokens"]


def logits(binary, out, model):
    vocab = json.loads((pathlib.Path(model) / "config.json").read_text())["vocab_size"]
    server = Server(binary, f"{out}/logits.log.server", flags_of(model))
    answers = []
    try:
        for length in LOGIT_PROMPTS:
            ids = random.Random(length).sample(range(3, vocab), length)
            body = {"model": "tgi", "prompt": ids, "max_tokens": LOGIT_TOKENS, "temperature": 0, "ignore_eos": True, "return_token_ids": True,
                    "prompt_logprobs": LOGIT_TOP, "logprobs": 1}
            with server.post("/v1/completions", body) as answer:
                choice = json.load(answer)["choices"][0]
            there = enumerate(choice["prompt_logprobs"])
            logprobs = {place: {id: of["logprob"] for id, of in given.items()} for place, given in there if given}
            # The number of prefilled and then of decoded tokens.
            generated = zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True)
            logprobs.update({length + place: {id: logprob} for place, (id, logprob) in enumerate(generated)})
            answers.append({"ids": ids + choice["token_ids"], "logprobs": logprobs})
    finally:
        server.stop()
    pathlib.Path(f"{out}/answers.json").write_text(json.dumps(answers))


def flags_of(model):
    # All prompts are computed before the first decode step that counts, however long that takes.
    flags = ["--model-id", model, "--device", DEVICE, "--dtype", "bfloat16", "--max-batch-size", "256", "--max-batch-prefill-tokens", "8192",
             "--max-total-tokens", "20000", "--target-itl", "10000",
             "--max-concurrent-requests", "300"]
    has_weights = (pathlib.Path(model) / "model.safetensors").exists()
    return flags if has_weights else [*flags, "--load-format", "dummy"]


def read(path):
    return json.loads(pathlib.Path(path).read_text()) if pathlib.Path(path).exists() else None


def beside(torch, name, seconds):
    return f"{torch[name] * 1e3:.2f} ms ({torch[name] / seconds:.2f}x)" if name in torch else ""


class Report:
    """Prints each row of the table, and writes all figures to serve.json, as soon as they are
    measured."""

    def __init__(self, out):
        self.path, self.figures = pathlib.Path(out) / "serve.json", {}
        print("| | | | | PyTorch |\n|---|--:|--:|--:|--:|", flush=True)

    def row(self, name, figure, *cells):
        self.figures[name] = figure
        self.path.write_text(json.dumps(self.figures, indent=1))
        print("| " + " | ".join(cells) + " |", flush=True)


class Costs:
    """What a model and its GPU allow at best."""

    def __init__(self, out, model):
        config = read(f"{model}/config.json")
        self.hidden, self.layers = config["hidden_size"], config["num_hidden_layers"]
        self.kv = self.hidden // config["num_attention_heads"] * config["num_key_value_heads"]
        self.blocks = self.layers * self.hidden * (2 * self.hidden + 2 * self.kv + 3 * config["intermediate_size"])
        # The bytes of weights that a decode step reads, without the embedding.
        self.weights = 2 * (self.blocks + config["vocab_size"] * self.hidden)
        bench = rows_of(f"{out}/bench.json")
        self.copy, self.peak = (bench[0]["copy"], bench[0]["peak"]) if bench else (None, None)
        self.torch = read(f"{out}/llama.json") or {}


def speed(binary, out, model):
    costs, report = Costs(out, model), Report(out)
    # The first start may time algorithms and compile kernels. The second start finds both on disk.
    first = Server(binary, f"{out}/speed-first.log", flags_of(model))
    first.stop()
    server = Server(binary, f"{out}/speed.log", flags_of(model))
    try:
        since = time.monotonic()
        server.text("Once", 1)
        token = server.start_seconds + time.monotonic() - since
        starts = {"first": first.start_seconds, "second": server.start_seconds, "first_token": token}
        report.row("start", starts, "start to first token", f"{token:.2f} s", f"first start {first.start_seconds:.2f} s", "", "")
        for sequences in [1, 32, 256, 8, 128]:
            speed_of_decode(server, report, costs, sequences)
        for length in [2048, 16384]:
            speed_of_prefill(server, report, costs, length)
        speed_of_streams(server, report)
    finally:
        server.stop()
    if DEVICE == "cuda":
        for format in ["fp8", "int4"]:
            speed_quantized(binary, out, model, format, report)


CONTEXT = WORDS * 78


def speed_of_decode(server, report, costs, sequences):
    step, idle, length = decode(server, sequences, CONTEXT, 128)
    keys = sequences * length * 4 * costs.layers * costs.kv
    share = (costs.weights + keys) / costs.copy / step if costs.copy else None
    report.row(f"decode {sequences}", {"step_seconds": step, "idle": idle, "context": length, "of_copy": share},
               f"decode, {sequences} × {length} tokens", f"{step * 1e3:.2f} ms a step", f"{sequences / step:.0f} tokens/s",
               f"idle {idle:.1%}" + (f", {share:.0%} of copy" if share else ""), beside(costs.torch, f"decode {sequences}", step))


def speed_of_prefill(server, report, costs, length):
    repeats = length // 13
    times = []
    for attempt in range(3):
        since = time.monotonic()
        # Each prompt begins differently, because cached tokens would not be computed.
        events = []
        usage = server.stream(f"{attempt} {repeats}" + WORDS * repeats, 1, events)
        times.append(events[0] - since)
    tokens, seconds = usage["prompt_tokens"], statistics.median(times)
    flops = 2 * tokens * costs.blocks + 2 * costs.layers * costs.hidden * tokens**2
    of_peak = f", {flops / seconds / costs.peak:.0%} of peak" if costs.peak else ""
    report.row(f"prefill {tokens}", {"seconds": seconds, "flops": flops / seconds},
               f"prefill, {tokens} tokens", f"{seconds * 1e3:.1f} ms", f"{tokens / seconds:.0f} tokens/s",
               f"{flops / seconds / 1e12:.0f} TFLOP/s{of_peak}", beside(costs.torch, f"prefill {length}", seconds))


def speed_of_streams(server, report):
    since, events = time.monotonic(), [[] for _ in range(64)]
    together(lambda n: server.stream(f"{n} foxes" + WORDS * 10, 256, events[n]), 64)
    seconds = time.monotonic() - since
    firsts = sorted(of[0] - since for of in events)
    report.row("64 streams", {"seconds": seconds, "first_token_median": firsts[32]},
               "64 streams of 256 tokens", f"{seconds:.2f} s", f"{64 * 256 / seconds:.0f} tokens/s",
               f"first token {firsts[32] * 1e3:.0f} ms (median)", "")


def speed_quantized(binary, out, model, format, report):
    server = Server(binary, f"{out}/speed-{format}.log", [*flags_of(model), "--quantize", format])
    try:
        for sequences in [1, 8, 32]:
            step, idle, length = decode(server, sequences, CONTEXT, 128)
            report.row(f"{format} decode {sequences}", {"step_seconds": step, "idle": idle, "context": length},
                       f"decode as {format}, {sequences} × {length} tokens", f"{step * 1e3:.2f} ms a step", f"{sequences / step:.0f} tokens/s",
                       f"{report.figures[f'decode {sequences}']['step_seconds'] / step:.2f} × bfloat16", "")
    finally:
        server.stop()


if __name__ == "__main__":
    # Servers are stopped when the time for a check is up.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    {"texts": texts, "ranks": ranks, "logits": logits, "speed": speed}[sys.argv[1]](*sys.argv[2:])
