"""Greedy exact match on heldout.jsonl: `python evaluate.py`. The bf16 weights are computed with in f32."""

import argparse
import json
from collections import Counter
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

HERE = Path(__file__).resolve().parent


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=HERE)
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--show", type=int, default=20, help="how many wrong answers to print")
    args = parser.parse_args()

    tokenizer = AutoTokenizer.from_pretrained(args.model, padding_side="left")
    model = AutoModelForCausalLM.from_pretrained(args.model, dtype=torch.float32).eval()
    tasks = [json.loads(line) for line in (HERE / "heldout.jsonl").read_text().splitlines()]
    right: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for at in range(0, len(tasks), args.batch):
        batch = tasks[at:at + args.batch]
        prompts = [
            tokenizer.apply_chat_template(task["messages"], tokenize=False, add_generation_prompt=True) for task in batch
        ]
        inputs = tokenizer(prompts, return_tensors="pt", padding=True, return_token_type_ids=False)
        with torch.inference_mode():
            output = model.generate(**inputs, max_new_tokens=64, do_sample=False)
        answers = tokenizer.batch_decode(output[:, inputs["input_ids"].shape[1]:], skip_special_tokens=True)
        for task, answer in zip(batch, answers):
            total[task["kind"]] += 1
            right[task["kind"]] += answer == task["answer"]
            if answer != task["answer"] and args.show > 0:
                args.show -= 1
                print(f"{task['messages'][-1]['content']!r}\n  expected {task['answer']!r}\n  got      {answer!r}")
    for kind in sorted(total):
        print(f"{kind:9} {right[kind]:4} of {total[kind]:4}  {right[kind] / total[kind]:.1%}")
    print(f"{'all':9} {right.total():4} of {total.total():4}  {right.total() / total.total():.1%}")


if __name__ == "__main__":
    main()
