"""Measures Millrace beside llama.cpp, on random weights of the same shape and format.

compare.py [--shape NAME] [--rounds N] [--formats bf16,q4_k] [--depths 0,512,4096] [--batches 8,16] [--streams 16]
           [--threads N] [--peer NAME=BINARY[,FLAG...]] [--millrace BINARY]

The first call builds llama.cpp in target/llama-cpp, which takes from minutes to half an hour, and writes the weights as GGUF files.
Later calls reuse both. Programs run in turns, because the speed of a shared machine varies from minute to minute, and nothing else may
run meanwhile. The medians of all rounds and the ratios of each round are printed as a Markdown table. What is measured:

- prompts of 512 tokens and of each greater depth, and the decode of one sequence after each depth, with llama-bench and `millrace bench`.
  The first round of llama-bench measures each of them with and without flash attention, and later rounds take the faster one;
- the decode of several sequences after 128 tokens, with llama-batched-bench and `millrace bench`;
- streams over HTTP, with llama-server and `millrace serve`: prompts of 128 tokens and answers of 64.

An empty list leaves a part out: `--batches= --streams 0`. A peer is another program with the flags and the JSON of llama-bench, such as
that of ik_llama.cpp; a peer without `--n-depth` is measured without depths. The script needs Python 3.11 with venv, a C++ compiler, and a
package index for the first call.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

import llama
import shapes
import streams

# The flags of Millrace for each format.
FORMATS = {
    "bf16": ["--dtype", "bfloat16"],
    **{name: ["--dtype", "bfloat16", "--quantize", name] for name in ("q8_0", "q4_0", "q4_k", "q6_k")},
}

PROMPT, BATCH_PROMPT, GENERATE = 512, 128, 32

# Time limit of one program in seconds.
RUN_LIMIT = 3600


class Refused(Exception):
    """The binary does not know a format."""


def prefill_cell(tokens):
    return f"prompt of {tokens} tokens"


def decode_cell(depth, rows=1):
    return f"decode after {depth}, {rows} row{'s' if rows > 1 else ''}"


class LlamaBench:
    """A program with the flags of llama-bench, and the setting that was the fastest for each measure."""

    def __init__(self, name, command, threads):
        self.name, self.command, self.threads = name, command, threads
        said = subprocess.run([*map(str, command), "--help"], capture_output=True, text=True, timeout=60)
        self.has_depths = "--n-depth" in said.stdout + said.stderr
        self.best = {}

    def run(self, path, flash, sizes):
        """Runs one kind of test. Returns tokens per second of each row, by its tokens and depth."""
        command = [*self.command, "-m", path, "-t", self.threads, "-fa", flash, "-r", 1, "-o", "json", *sizes]
        rows = json.loads(llama.call(command, RUN_LIMIT, stderr=subprocess.DEVNULL))
        return [(row["n_prompt"], row.get("n_depth", 0), row["avg_ts"]) for row in rows]

    def measure_with(self, path, flash, prompts, depths):
        """Measures prompts, and the decode of one sequence after depths."""
        found = {}
        if prompts:
            for tokens, _, speed in self.run(path, flash, ["-p", ",".join(map(str, prompts)), "-n", 0]):
                found[prefill_cell(tokens)] = speed
        if not self.has_depths:
            depths = [depth for depth in depths if depth == 0]
        if depths:
            sizes = ["-p", 0, "-n", GENERATE, *(["-d", ",".join(map(str, depths))] if self.has_depths else [])]
            for _, depth, speed in self.run(path, flash, sizes):
                found[decode_cell(depth)] = speed
        return found

    def measure(self, path, prompts, depths):
        """Measures each cell at its best setting, which the first call for a file finds out."""
        if path not in self.best:
            tried = {flash: self.measure_with(path, flash, prompts, depths) for flash in (0, 1)}
            self.best[path] = {cell: max(tried, key=lambda flash: tried[flash][cell]) for cell in tried[0]}
            return {cell: max(found[cell] for found in tried.values()) for cell in tried[0]}
        found, best = {}, self.best[path]
        for flash in (0, 1):
            chosen_prompts = [tokens for tokens in prompts if best[prefill_cell(tokens)] == flash]
            chosen_depths = [depth for depth in depths if best.get(decode_cell(depth)) == flash]
            found |= self.measure_with(path, flash, chosen_prompts, chosen_depths)
        return found


def llama_batched(programs, path, threads, batches):
    """Measures several sequences with llama-batched-bench."""
    context = max(batches) * (BATCH_PROMPT + GENERATE)
    command = [
        programs / "llama-batched-bench", "-m", path, "-c", -(-context // 1024) * 1024, "-npp", BATCH_PROMPT, "-ntg", GENERATE,
        "-npl", ",".join(map(str, batches)), "-t", threads, "-tb", threads, "--output-format", "jsonl",
    ]
    lines = llama.call(command, RUN_LIMIT, stderr=subprocess.DEVNULL).splitlines()
    rows = [json.loads(line) for line in lines if line.startswith('{"n_kv_max"')]
    return {decode_cell(BATCH_PROMPT, row["pl"]): row["speed_tg"] for row in rows}


def millrace_bench(options, name, prompt, batches):
    """Measures batch sizes with `millrace bench`. Returns its JSON objects."""
    command = [
        options.millrace, "bench", "--model-id", shapes.folder(options.shape), "--load-format", "dummy", "--device", "cpu",
        "--threads", options.threads, "--prompt", prompt, "--generate", GENERATE, "--batch", ",".join(map(str, batches)), "--repeat", 1, "--json", *FORMATS[name],
    ]
    command = [str(part) for part in command]
    try:
        done = subprocess.run(command, timeout=RUN_LIMIT, text=True, capture_output=True)
    except subprocess.TimeoutExpired:
        sys.exit(f"millrace bench took more than {RUN_LIMIT} s")
    if done.returncode != 0:
        raise Refused(done.stderr.strip().splitlines()[0] if done.stderr.strip() else f"exit status {done.returncode}")
    return [json.loads(line) for line in done.stdout.splitlines()]


def millrace(options, name):
    """Measures Millrace. Returns tokens per second, and the share of what the machine could do, by cell."""
    speeds, shares = {}, {}

    def note(cell, speed, share):
        speeds[cell], shares[cell] = speed, share

    for length in sorted({PROMPT, *(max(depth, 1) for depth in options.depths)}) if options.depths else []:
        [row] = millrace_bench(options, name, length, [1])
        if length in options.prompts:
            note(prefill_cell(length), row["prefill_tokens_per_second"], row["prefill_share_of_peak"])
        depth = length if length in options.depths else 0
        if depth in options.depths:
            note(decode_cell(depth), row["decode_tokens_per_second"], row["decode_share_of_bandwidth"])
    if options.batches:
        for row in millrace_bench(options, name, BATCH_PROMPT, options.batches):
            cell = decode_cell(BATCH_PROMPT, row["batch"])
            note(cell, row["decode_tokens_per_second"], row["decode_share_of_bandwidth"])
    return speeds, shares


def round_of(programs, peers, options, name, number):
    """Measures all programs in turns. Returns the speeds by program and cell, and Millrace's shares."""
    path = llama.weights(programs, options.shape, name)
    speeds = {peer.name: peer.measure(path, options.prompts, options.depths) if options.depths else {} for peer in peers}
    speeds["Millrace"], shares = millrace(options, name)
    if options.batches:
        speeds["llama.cpp"] |= llama_batched(programs, path, options.threads, options.batches)
    if options.streams:
        cell = f"{options.streams} streams over HTTP"
        for server, speed in streams.measure_both(programs, path, options, FORMATS[name], number).items():
            speeds[server][cell] = speed
    return speeds, shares


def table(results, refused, peers):
    """Formats the medians of all rounds as Markdown."""
    names = [peer.name for peer in peers]
    lines = [
        f"| weights | measure | {', tokens/s | '.join(names)}, tokens/s | Millrace, tokens/s | share of the limit | best peer | ratio, median | ratio of each round |",
        f"|---|---|{'--:|' * (len(names) + 2)}---|--:|---|",
    ]
    for name, rounds in results.items():
        if name in refused:
            reason = refused[name].replace("|", "/")
            lines.append(f"| {name} | – |{' – |' * len(names)} not supported by this binary: {reason[:120]} | – | – | – | – |")
            continue
        for cell in sorted(rounds[0][0]["Millrace"], key=lambda cell: not cell.startswith("prompt")):
            lines.append(f"| {name} | {cell} | " + " | ".join(cells_of(rounds, names, cell)) + " |")
    return "\n".join(lines)


def cells_of(rounds, names, cell):
    """Returns the columns of one measure: speeds, share, best peer, and ratios to it."""
    def median(program):
        measured = [speeds[program][cell] for speeds, _ in rounds if cell in speeds[program]]
        return statistics.median(measured) if measured else None

    theirs = {peer: median(peer) for peer in names}
    best = max((peer for peer in names if theirs[peer] is not None), key=theirs.get)
    ratios = [speeds["Millrace"][cell] / speeds[best][cell] for speeds, _ in rounds]
    share = [shares[cell] for _, shares in rounds if shares.get(cell) is not None]
    return [
        *("–" if theirs[peer] is None else f"{theirs[peer]:.1f}" for peer in names),
        f"{median('Millrace'):.1f}", f"{statistics.median(share):.0%}" if share else "–", best,
        f"{statistics.median(ratios):.2f}", ", ".join(f"{ratio:.2f}" for ratio in ratios),
    ]


def positive(text):
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def numbers(text):
    """Reads numbers with commas between them."""
    return sorted({int(part) for part in text.split(",") if part})


def peer(text):
    """Reads NAME=BINARY[,FLAG...]."""
    name, _, command = text.partition("=")
    if not name or not command:
        raise argparse.ArgumentTypeError("must be NAME=BINARY")
    return name, command.split(",")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--shape", choices=shapes.SHAPES, default="llama-1.1b", help="the model")
    parser.add_argument("--rounds", type=positive, default=3)
    parser.add_argument("--formats", default=",".join(FORMATS), help="separated by commas")
    parser.add_argument("--depths", type=numbers, default=[0, 512, 4096], help="tokens before the decode of one sequence")
    parser.add_argument("--batches", type=numbers, default=[8, 16], help="sequences that are decoded at once")
    parser.add_argument("--streams", type=int, default=16, help="requests at once over HTTP; 0 leaves them out")
    parser.add_argument("--threads", type=positive, default=2)
    parser.add_argument("--jobs", type=positive, default=os.cpu_count(), help="compilers that build llama.cpp at once")
    parser.add_argument("--peer", type=peer, action="append", default=[], metavar="NAME=BINARY[,FLAG...]")
    parser.add_argument("--millrace", type=pathlib.Path, default=llama.ROOT / "target" / "dist" / "millrace")
    options = parser.parse_args()
    options.formats = options.formats.split(",")
    if unknown := [name for name in options.formats if name not in FORMATS]:
        parser.error(f"--formats: {', '.join(unknown)}: the formats are {', '.join(FORMATS)}")
    if not options.millrace.exists():
        parser.error(f"--millrace: there is no {options.millrace}; build it with `cargo build --profile dist`")
    options.prompts = sorted({PROMPT, *(depth for depth in options.depths if depth > PROMPT)})
    return options


def main():
    options = arguments()
    llama.WORK.mkdir(parents=True, exist_ok=True)
    llama.install()
    programs = llama.build(options.jobs)
    peers = [LlamaBench("llama.cpp", [programs / "llama-bench"], options.threads)]
    peers += [LlamaBench(name, command, options.threads) for name, command in options.peer]
    results, refused = {name: [] for name in options.formats}, {}
    for number in range(options.rounds):
        for name in options.formats:
            if name in refused:
                continue
            try:
                results[name].append(round_of(programs, peers, options, name, number))
            except Refused as error:
                refused[name] = str(error)
            print(f"round {number + 1} of {options.rounds}: {name} done", file=sys.stderr)
    print(table(results, refused, peers))


if __name__ == "__main__":
    main()
