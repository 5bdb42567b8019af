"""Train Millrace's demo model from nothing: corpus, tokenizer, weights. One command: `python train.py`.

Everything is seeded: the documents, their order and the first weights are always the same, so two runs differ only by
the rounding that comes from the order in which threads finish. A stopped run goes on from its last checkpoint
(under `scratch/`, which is removed at the end).
"""

import argparse
import itertools
import json
import random
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import corpus

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
# (row length, steps). Short rows first: they hold one or two small tasks without older text that distracts, and
# copying is learnt soon. Stories come with the longer rows, and the last phase lets long chats work.
PHASES = [(128, 320), (256, 230), (512, 90), (1024, 30)]
MICRO_BATCH = 1024  # tokens that one thread works on at a time: its activations should stay in the cache
STEP = 4 * MICRO_BATCH  # tokens of one optimiser step
TOKENIZER_DOCUMENTS = 12_000
# Added so often, the words that answers copy become one token each, with and without a space before.
WORD_REPEATS = 1000

Row = tuple[list[int], list[float]]


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
    sample = itertools.islice(corpus.documents(seed), TOKENIZER_DOCUMENTS)
    texts = (document.text or "\n".join(f"{m['role']}\n{m['content']}" for m in document.messages)
             for document in sample)
    words = (f' {word} "{word}"' for word in corpus.VALUES for _ in range(WORD_REPEATS))
    tokenizer.train_from_iterator(itertools.chain(texts, words), trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=IM_END, pad_token=END_OF_TEXT, model_max_length=1024,
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = CHAT_TEMPLATE
    return fast


def build_model(seed: int) -> LlamaForCausalLM:
    """Heads divide by 4 and the inner size by 64, so that the model can be split over devices."""
    torch.manual_seed(seed)
    return LlamaForCausalLM(LlamaConfig(
        vocab_size=1024, hidden_size=192, intermediate_size=448, num_hidden_layers=6, num_attention_heads=8,
        num_key_value_heads=4, head_dim=32, max_position_embeddings=1024, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0}, rms_norm_eps=1e-5,
        bos_token_id=None, eos_token_id=2, pad_token_id=0,
    ))


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

    A document sees the ones before it in its row. That is deliberate: it learns to leave older text alone.
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


def micro_batches(scale: float, seed: int, tokenizer: Tokenizer) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """The whole training set in order: (ids, weights) pairs of MICRO_BATCH tokens each, checked against the
    held-out tasks."""
    batches: list[tuple[torch.Tensor, torch.Tensor]] = []
    for phase, (length, steps) in enumerate(PHASES):
        rows = packed(encoded(checked(corpus.documents(seed + phase)), tokenizer), length)
        for _ in range(int(steps * scale) * (STEP // MICRO_BATCH)):
            ids, weights = zip(*itertools.islice(rows, MICRO_BATCH // length))
            batches.append((torch.tensor(ids, dtype=torch.int16), torch.tensor(weights)))
    return batches


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
            assert not corpus.is_held_out(corpus.sum_key(int(x), op, int(y))), text
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


class Trainer:
    """Two threads with a replica each over shared weights; a micro-batch goes to whichever thread is free.

    One operation on one thread, rather than every operation on two, keeps the machine busy even when it has
    other work, and small micro-batches stay in the cache.
    """

    def __init__(self, model: LlamaForCausalLM, threads: int, compiled: bool):
        torch.set_num_threads(1)
        self.model = model
        self.parameters = list(model.parameters())
        self.replicas = [LlamaForCausalLM(model.config) for _ in range(threads)]
        for replica in self.replicas:
            for own, shared in zip(replica.parameters(), self.parameters):
                own.data = shared.data
        self.forwards = [torch.compile(r.model, dynamic=False) if compiled else r.model for r in self.replicas]
        self.free = list(range(threads))
        self.pool = ThreadPoolExecutor(threads)
        self.warm: set[torch.Size] = set()
        embedding = model.model.embed_tokens.weight
        hidden = [p for p in self.parameters if p.ndim == 2 and p is not embedding]
        self.muon = Muon(hidden)
        self.adam = torch.optim.AdamW([
            {"params": [embedding]}, {"params": [p for p in self.parameters if p.ndim < 2]},
        ], betas=(0.9, 0.95), weight_decay=0.0)

    def work(self, batch: tuple[torch.Tensor, torch.Tensor]) -> tuple[float, float]:
        """Forward and backward of one micro-batch on a free replica: the weighted loss and the weight, summed."""
        ids, weights = batch[0].long(), batch[1][:, 1:].flatten()
        at = self.free.pop()
        hidden = self.forwards[at](input_ids=ids, use_cache=False).last_hidden_state
        logits = F.linear(hidden[:, :-1].flatten(0, 1), self.replicas[at].model.embed_tokens.weight)
        losses = F.cross_entropy(logits, ids[:, 1:].flatten(), reduction="none")
        loss = (losses * weights).sum()
        loss.backward()
        self.free.append(at)
        return loss.item(), weights.sum().item()

    def step(self, batches: list[tuple[torch.Tensor, torch.Tensor]], factor: float, muon_rate: float,
             adam_rate: float) -> float:
        shape = batches[0][0].shape
        if shape not in self.warm:
            # Compile on this thread first, once for each replica: the compiler is not made for two at once.
            self.warm.add(shape)
            for _ in self.replicas:
                self.work(batches[0])
                self.free.reverse()
            for replica in self.replicas:
                replica.zero_grad()
        results = list(self.pool.map(self.work, batches))
        total = sum(weight for _, weight in results)
        for shared, *owns in zip(self.parameters, *(replica.parameters() for replica in self.replicas)):
            gradients = [own.grad for own in owns if own.grad is not None]
            shared.grad = torch.stack(gradients).sum(0) / total
        for replica in self.replicas:
            replica.zero_grad()
        self.adam.param_groups[0]["lr"] = adam_rate * factor
        self.adam.param_groups[1]["lr"] = adam_rate * factor
        self.adam.step()
        torch.set_num_threads(len(self.replicas))
        self.muon.step(muon_rate * factor)
        torch.set_num_threads(1)
        return sum(loss for loss, _ in results) / total


def schedule(step: int, steps: int) -> float:
    """A short rise, a plateau, and a straight fall to nothing."""
    return min(1.0, (step + 1) / 40, (steps - step) / (0.6 * steps))


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
        json.dumps({"do_sample": False, "eos_token_id": [2, 0], "pad_token_id": 0}, indent=2) + "\n")
    (HERE / "tokenizer_config.json").write_text(json.dumps({
        "add_bos_token": False, "add_prefix_space": False, "bos_token": None, "chat_template": CHAT_TEMPLATE,
        "clean_up_tokenization_spaces": False, "eos_token": IM_END, "model_max_length": 1024,
        "pad_token": END_OF_TEXT, "tokenizer_class": "PreTrainedTokenizerFast",
    }, indent=2) + "\n")
    for extra in ("chat_template.jinja", "special_tokens_map.json"):
        (HERE / extra).unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scale", type=float, default=1.0, help="length of the training, for a quick try")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--muon-rate", type=float, default=0.01)
    parser.add_argument("--adam-rate", type=float, default=0.004)
    parser.add_argument("--no-compile", action="store_true", help="do without a C++ compiler, at half the speed")
    args = parser.parse_args()

    random.seed(args.seed)
    tokenizer = build_tokenizer(args.seed)
    batches = micro_batches(args.scale, args.seed, tokenizer.backend_tokenizer)
    per_step = STEP // MICRO_BATCH
    steps = len(batches) // per_step
    model = build_model(args.seed)
    print(f"{sum(p.numel() for p in model.parameters())} weights, {steps} steps of {STEP} tokens", flush=True)
    trainer = Trainer(model, args.threads, not args.no_compile)

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
        print(f"going on from step {first}", flush=True)

    start = time.time()
    for step in range(first, steps):
        group = batches[step * per_step:(step + 1) * per_step]
        loss = trainer.step(group, schedule(step, steps), args.muon_rate, args.adam_rate)
        if step % 20 == 0 or step == steps - 1:
            speed = (step + 1 - first) * STEP / (time.time() - start)
            print(f"step {step}/{steps} loss {loss:.4f} {speed:.0f} tokens/s", flush=True)
        if step % 100 == 99:
            torch.save({"step": step + 1, "model": model.state_dict(), "adam": trainer.adam.state_dict(),
                        "muon": trainer.muon.velocity}, scratch / "next.pt")
            (scratch / "next.pt").replace(checkpoint)
    save(model, tokenizer)
    shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
