"""Prints one table of the results of the kernels' benchmark and of PyTorch: table.py BENCH_JSON
[TORCH_JSON]."""

import json
import os
import sys


def rows_of(path):
    """Returns the measurements of a benchmark, whose file has a line for each."""
    if not os.path.exists(path):
        return []
    with open(path) as file:
        return [json.loads(line) for line in file]


def main():
    rows, torch = rows_of(sys.argv[1]), {}
    if len(sys.argv) > 2 and os.path.exists(sys.argv[2]):
        with open(sys.argv[2]) as file:
            torch = json.load(file)
    if not rows:
        sys.exit("nothing was measured")
    copy, peak = rows[0]["copy"], rows[0]["peak"]
    print(f"copy {copy / 1e9:.0f} GB/s, bf16 product " + (f"{peak / 1e12:.0f} TFLOP/s" if peak else "not measured"))
    print("\n| kernel | time, us | GB/s | of copy | TFLOP/s | of peak | PyTorch, us | faster |\n|---|--:|--:|--:|--:|--:|--:|--:|")
    for row in rows:
        seconds = row["seconds"]
        flops = row["flops"] / seconds
        other = torch.get(row["kernel"])
        cells = [
            row["kernel"],
            f"{seconds * 1e6:.2f}",
            f"{row['bytes'] / seconds / 1e9:.0f}",
            f"{100 * row['bytes'] / seconds / copy:.1f}%",
            f"{flops / 1e12:.1f}",
            f"{100 * flops / peak:.1f}%" if peak else "",
            f"{other * 1e6:.2f}" if other else "",
            f"{other / seconds:.2f}x" if other else "",
        ]
        print("| " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
