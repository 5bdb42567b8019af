"""Train Millrace's demo model from nothing: corpus, tokenizer, weights. One command: `python train.py`.

Everything is seeded: the documents, their order and the first weights are always the same, so two runs differ only by
rounding. Each worker process reads documents of its own and computes on one thread; gradients are averaged after each
step. So the number of workers is part of the recipe. A stopped run goes on from its last checkpoint (under `scratch/`,
which is removed at the end).
"""

import argparse
import itertools
import json
import os
import random
import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import corpus
from grammar.sums import sum_key
from grammar.units import is_held_out
from grammar.words import VALUES

HERE = Path(__file__).resolve().parent
END_OF_TEXT, IM_START, IM_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
# Answers teach more than prompts, and short exact answers would drown among the many story tokens.
PROMPT_WEIGHT = 0.1
ANSWER_WEIGHT = {"story": 0.4, "question": 2.0, "json": 1.5, "sum": 1.5, "fact": 1.0}
# (row length, steps, several facts in a passage, share of quizzes). Short rows first: they hold few tasks, and sums and copying are
# learnt soon. Passages of several facts are in the training although a model of this size does not learn within this time to
# find the right one; they teach it to copy. The last phases have what it is to do, and long chats.
PHASES = [(128, 600, True, 0.0), (256, 400, True, 0.0), (256, 600, True, 0.6), (256, 220, False, 0.0), (1024, 100, False, 0.0)]
# (step, factor on the learning rates), with straight lines between them.
SCHEDULE = [(0, 0.0), (60, 1.0), (700, 1.0), (1000, 0.7), (1640, 0.6), (1920, 0.0)]
STEP = 4096  # tokens of one worker's share of a step
WORKERS = 2
# Small, so that it learns much in little time on two cores; it starts at once and answers quickly everywhere.
HIDDEN, MLP, LAYERS, HEAD_DIM = 128, 384, 5, 16
TOKENIZER_DOCUMENTS = 12_000
# Added so often, the words that answers copy become one token each, with and without a space before.
WORD_REPEATS = 1000

Row = tuple[list[int], list[float]]  # token ids and their weights in the loss
Batch = tuple[torch.Tensor, torch.Tensor]  # rows, stacked


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Byte-level BPE of 1024 ids. Digits stand alone, so that sums are done digit by digit."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=1024,
        special_tokens=[END_OF_TEXT, IM_START, IM_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    sample = itertools.islice(corpus.documents(seed, several=True), TOKENIZER_DOCUMENTS)
    texts = (document.text or "\n".join(f"{m['role']}\n{m['content']}" for m in document.messages)
             for document in sample)
    words = (f' {word} "{word}"' for word in VALUES for _ in range(WORD_REPEATS))
    tokenizer.train_from_iterator(itertools.chain(texts, words), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT, model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(seed: int, tokenizer: PreTrainedTokenizerFast) -> LlamaForCausalLM:
    """Heads divide by 4 and the inner size by 64, so that the model can be split over devices."""
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=1024, hidden_size=HIDDEN, intermediate_size=MLP, num_hidden_layers=LAYERS, num_attention_heads=8,
        num_key_value_heads=4, head_dim=HEAD_DIM, max_position_embeddings=1024, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, rms_norm_eps=1e-5,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    ))
    with torch.no_grad():
        # Blocks that add nothing at first leave the tokens themselves in view, so that copying is found soon.
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        # A word with and without a space before it is one word: let both tokens begin almost alike.
        embedding = model.model.embed_tokens.weight.normal_(std=0.05)
        vocabulary = tokenizer.get_vocab()
        for word, at in vocabulary.items():
            if (other := vocabulary.get("Ġ" + word)) is not None:
                embedding[at].mul_(0.5).add_(embedding[other], alpha=0.85)
    return model


def segments(document: corpus.Document) -> list[tuple[str, float]]:
    """The document as pieces of text, each with the weight of its tokens in the loss."""
    if not document.messages:
        return [(document.text + END_OF_TEXT, ANSWER_WEIGHT[document.kinds[0]])]
    pieces: list[tuple[str, float]] = []
    kinds = iter(document.kinds)
    for message in document.messages:
        content = message["content"] + IM_END
        if message["role"] == "assistant":
            pieces += [(IM_START + "assistant\n", PROMPT_WEIGHT), (content, ANSWER_WEIGHT[next(kinds)]),
                       ("\n", PROMPT_WEIGHT)]
        else:
            pieces.append((f"{IM_START}{message['role']}\n{content}\n", PROMPT_WEIGHT))
    return pieces + [(END_OF_TEXT, PROMPT_WEIGHT)]


def encoded(stream: Iterator[corpus.Document], tokenizer: Tokenizer) -> Iterator[Row]:
    for batch in iter(lambda: list(itertools.islice(stream, 256)), []):
        pieces = [segments(document) for document in batch]
        encodings = iter(tokenizer.encode_batch([text for piece in pieces for text, _ in piece]))
        for piece in pieces:
            ids: list[int] = []
            weights: list[float] = []
            for (_, weight), encoding in zip(piece, encodings):
                ids += encoding.ids
                weights += [weight] * len(encoding.ids)
            yield ids, weights


def packed(stream: Iterator[Row], length: int) -> Iterator[Row]:
    """Pack whole documents into rows, each into the first of sixteen open rows that has room.

    Documents of a row do not see each other.
    """
    rows: list[Row] = [([], []) for _ in range(16)]
    for ids, weights in stream:
        if len(ids) > length:
            continue
        room = next((row for row in rows if len(row[0]) + len(ids) <= length), None)
        if room is None:
            room = max(rows, key=lambda row: len(row[0]))
            rows.remove(room)
            gap = length - len(room[0])
            yield room[0] + [0] * gap, room[1] + [0.0] * gap
            room = ([], [])
            rows.append(room)
        room[0].extend(ids)
        room[1].extend(weights)


def batches(seed: int, worker: int, first: int, scale: float, tokenizer: Tokenizer) -> Iterator[Batch]:
    """One worker's shares of all steps from `first` on, checked against the held-out tasks."""
    step = 0
    for phase, (length, steps, several, quizzes) in enumerate(PHASES):
        stream = corpus.documents((seed * 10 + phase) * 10 + worker, several, quizzes)
        rows = packed(encoded(checked(stream), tokenizer), length)
        for _ in range(int(steps * scale)):
            ids, weights = zip(*itertools.islice(rows, STEP // length))
            if step >= first:
                yield torch.tensor(ids), torch.tensor(weights)
            step += 1


def checked(stream: Iterator[corpus.Document]) -> Iterator[corpus.Document]:
    """Stop the training if a held-out problem is about to be learnt, by its key and by its text."""
    tasks, keys = corpus.heldout()
    saved = [json.loads(line) for line in (HERE / "heldout.jsonl").read_text().splitlines()]
    assert saved == tasks, "heldout.jsonl is not what corpus.py makes: run corpus.py --heldout"
    first_turns = {task["messages"][0]["content"] for task in saved}
    for document in stream:
        assert keys.isdisjoint(document.keys), document
        for message in document.messages:
            assert message["role"] != "user" or message["content"] not in first_turns, message
        text = document.text or "\n".join(message["content"] for message in document.messages)
        for x, op, y in re.findall(r"(\d+) ([+-]) (\d+)", text):
            assert not is_held_out(sum_key(int(x), op, int(y))), text
        yield document


class Muon:
    """Momentum whose update for each matrix is made orthogonal, which learns faster than Adam at this size.

    Matrices of one shape are stacked, so that the iteration is a few large products. Everything that is no
    hidden matrix (embedding, norms) is left to Adam.
    """

    def __init__(self, parameters: list[torch.nn.Parameter], momentum: float = 0.95, decay: float = 0.01):
        self.groups: dict[torch.Size, list[torch.nn.Parameter]] = {}
        for parameter in parameters:
            self.groups.setdefault(parameter.shape, []).append(parameter)
        self.momentum, self.decay = momentum, decay
        self.velocity = {shape: torch.zeros(len(group), *shape) for shape, group in self.groups.items()}

    @torch.no_grad()
    def step(self, rate: float) -> None:
        for shape, group in self.groups.items():
            gradient = torch.stack([parameter.grad for parameter in group])
            velocity = self.velocity[shape].lerp_(gradient, 1 - self.momentum)
            update = gradient.lerp_(velocity, self.momentum)
            wide = shape[0] <= shape[1]
            update = orthogonal(update if wide else update.mT)
            update = update if wide else update.mT
            # Scale to an update of about the size that Adam would make, whatever the shape.
            scale = 0.2 * max(shape) ** 0.5
            for parameter, change in zip(group, update):
                parameter.mul_(1 - rate * self.decay).add_(change, alpha=-rate * scale)


def orthogonal(x: torch.Tensor, steps: int = 5) -> torch.Tensor:
    """Bring all singular values near one by an odd quintic polynomial, applied a few times."""
    x = x / (x.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(steps):
        square = x @ x.mT
        x = 3.4445 * x + (-4.7750 * square + 2.0315 * (square @ square)) @ x
    return x


def own_document(ids: torch.Tensor) -> torch.Tensor:
    """Who may look at whom, [rows, 1, tokens, tokens]: at earlier tokens of the same document only."""
    ends = ids == 0
    document = ends.cumsum(1) - ends.long()
    same = document[:, :, None] == document[:, None, :]
    return (same & torch.ones_like(same[0]).tril())[:, None]


class Trainer:
    """One worker's copy of the model, kept equal to the others' by averaging gradients."""

    def __init__(self, model: LlamaForCausalLM, compiled: bool):
        self.model = model
        self.forward = torch.compile(model.model, dynamic=False) if compiled else model.model
        self.parameters = list(model.parameters())
        embedding = model.model.embed_tokens.weight
        hidden = [p for p in self.parameters if p.ndim == 2 and p is not embedding]
        self.muon = Muon(hidden)
        rest = [embedding] + [p for p in self.parameters if p.ndim < 2]
        self.adam = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)

    def step(self, batch: Batch, factor: float, muon_rate: float, adam_rate: float) -> float:
        """One step of all workers; the loss per weight of this one's share."""
        ids, weights = batch[0], batch[1][:, 1:].flatten()
        hidden = self.forward(input_ids=ids, attention_mask=own_document(ids), use_cache=False).last_hidden_state
        logits = F.linear(hidden[:, :-1].flatten(0, 1), self.model.model.embed_tokens.weight)
        losses = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights).sum() / weights.sum()
        loss.backward()
        flat = torch.cat([parameter.grad.flatten() for parameter in self.parameters])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        flat *= min(1.0, 1.0 / (flat.norm().item() + 1e-6))
        sizes = [parameter.numel() for parameter in self.parameters]
        for parameter, gradient in zip(self.parameters, flat.split(sizes)):
            parameter.grad.copy_(gradient.view_as(parameter))
        for group in self.adam.param_groups:
            group["lr"] = adam_rate * factor
        self.adam.step()
        self.muon.step(muon_rate * factor)
        self.model.zero_grad()
        return loss.item()


def schedule(at: float) -> float:
    """The factor on the learning rates at a step of the full training."""
    for (start, low), (end, high) in itertools.pairwise(SCHEDULE):
        if at < end:
            return low + (high - low) * (at - start) / (end - start)
    return 0.0


def save(model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerFast) -> None:
    """Write the files of a Hugging Face model directory, the weights as bf16."""
    copy = LlamaForCausalLM(model.config)
    copy.load_state_dict(model.state_dict())
    copy.to(torch.bfloat16).save_pretrained(HERE)
    tokenizer.save_pretrained(HERE)
    # Written by hand: readers differ in which spelling of these fields they know, so keep to the common one.
    path = HERE / "config.json"
    config = json.loads(path.read_text())
    config.pop("dtype", None)
    config.pop("rope_parameters", None)
    config |= {"torch_dtype": "bfloat16", "rope_theta": 10000.0}
    path.write_text(json.dumps(config, indent=2, sort_keys=True) + "\n")
    (HERE / "generation_config.json").write_text(
        # At temperature 1 a model of this size puts together words that do not exist.
        json.dumps({"do_sample": True, "eos_token_id": [2, 0], "pad_token_id": 0, "temperature": 0.2},
                   indent=2) + "\n")
    (HERE / "tokenizer_config.json").write_text(json.dumps({
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": IM_END, "model_max_length": 1024,
        "pad_token": END_OF_TEXT, "tokenizer_class": "PreTrainedTokenizerFast",
    }, indent=2) + "\n")
    for extra in ("chat_template.jinja", "special_tokens_map.json"):
        (HERE / extra).unlink(missing_ok=True)


def work(worker: int, args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    random.seed(args.seed)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(args.port))
    dist.init_process_group("gloo", rank=worker, world_size=WORKERS)
    tokenizer = build_tokenizer(args.seed)
    model = build_model(args.seed, tokenizer)
    trainer = Trainer(model, not args.no_compile)
    steps = sum(int(steps * args.scale) for _, steps, *_ in PHASES)
    say = print if worker == 0 else lambda *_, **__: None
    say(f"{sum(p.numel() for p in model.parameters())} weights, {steps} steps of {STEP * WORKERS} tokens", flush=True)

    scratch = HERE / "scratch"
    scratch.mkdir(exist_ok=True)
    checkpoint = scratch / f"{args.scale}-{args.seed}.pt"
    first = 0
    if checkpoint.exists():
        state = torch.load(checkpoint)
        first = state["step"]
        model.load_state_dict(state["model"])
        trainer.adam.load_state_dict(state["adam"])
        trainer.muon.velocity = state["muon"]
        say(f"going on from step {first}", flush=True)

    start = time.time()
    stream = batches(args.seed, worker, first, args.scale, tokenizer.backend_tokenizer)
    for step, batch in enumerate(stream, first):
        loss = trainer.step(batch, schedule((step + 1) / args.scale), args.muon_rate, args.adam_rate)
        if step % 20 == 0 or step == steps - 1:
            speed = (step + 1 - first) * STEP * WORKERS / (time.time() - start)
            say(f"step {step}/{steps} loss {loss:.4f} {speed:.0f} tokens/s", flush=True)
        if worker == 0 and step % 100 == 99:
            torch.save({"step": step + 1, "model": model.state_dict(), "adam": trainer.adam.state_dict(),
                        "muon": trainer.muon.velocity}, scratch / "next.pt")
            (scratch / "next.pt").replace(checkpoint)
    dist.barrier()
    if worker == 0:
        save(model, tokenizer)
        shutil.rmtree(scratch)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="length of the training, for a quick try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--port", type=int, default=29555, help="loopback port on which the workers meet")
    parser.add_argument("--muon-rate", type=float, default=0.006)
    parser.add_argument("--adam-rate", type=float, default=0.004)
    parser.add_argument("--no-compile", action="store_true", help="do without a C++ compiler, at half the speed")
    torch.multiprocessing.spawn(work, args=(parser.parse_args(),), nprocs=WORKERS)


if __name__ == "__main__":
    main()
