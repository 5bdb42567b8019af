"""Subscribes to the prefix cache with libzmq, and decodes the events as vLLM's structures."""

import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Optional, Union

import msgspec
import pytest
import zmq

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from time_limits import PATIENCE  # noqa: E402  (it lies two folders above)

TOPIC = b"kv@pod@demo"
# The number in the message that ends the earlier batches.
END = (2**64 - 1).to_bytes(8, "big")
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Event(msgspec.Struct, array_like=True, omit_defaults=True, gc=False, tag=True):
    """The base of all events, with the options that vLLM gives its structures."""


class BlockStored(Event):
    block_hashes: list[Union[bytes, int]]
    parent_block_hash: Optional[Union[bytes, int]]
    token_ids: list[int]
    block_size: int
    lora_id: Optional[int]
    medium: Optional[str]
    lora_name: Optional[str] = None


class BlockRemoved(Event):
    block_hashes: list[Union[bytes, int]]
    medium: Optional[str]


class AllBlocksCleared(Event):
    pass


class Batch(msgspec.Struct, array_like=True, omit_defaults=True, gc=False):
    ts: float
    events: list[Union[BlockStored, BlockRemoved, AllBlocksCleared]]
    data_parallel_rank: Optional[int] = None


class Index:
    """The blocks of a server, by hash, with all tokens up to the end of the block."""

    def __init__(self):
        self.blocks, self.stored, self.removed = {}, 0, 0

    def apply(self, payload):
        batch = msgspec.msgpack.decode(payload, type=Batch)
        assert batch.ts > 1.7e9 and batch.data_parallel_rank == 0
        for event in batch.events:
            if isinstance(event, BlockStored):
                self.store(event)
            elif isinstance(event, BlockRemoved):
                for name in event.block_hashes:
                    del self.blocks[name]
                self.removed += len(event.block_hashes)
            else:
                self.blocks.clear()

    def store(self, event):
        parent, size = event.parent_block_hash, event.block_size
        assert len(event.token_ids) == size * len(event.block_hashes)
        for number, name in enumerate(event.block_hashes):
            before = [] if parent is None else self.blocks[parent]
            assert name not in self.blocks and len(name) == 16
            self.blocks[name] = before + event.token_ids[number * size : (number + 1) * size]
            parent = name
        self.stored += len(event.block_hashes)


def ask(url, path, body):
    request = urllib.request.Request(url + path, json.dumps(body).encode(), {"content-type": "application/json"})
    with OPENER.open(request, timeout=PATIENCE) as answer:
        return json.load(answer)


@pytest.fixture
def context():
    context = zmq.Context()
    yield context
    context.destroy(linger=0)


def test_an_index_follows_the_prefix_cache(url, context):
    subscriber = context.socket(zmq.SUB)
    subscriber.setsockopt(zmq.SUBSCRIBE, b"kv@")
    subscriber.bind(os.environ["MILLRACE_EVENTS"])
    index, last = Index(), None

    def follow_until(holds):
        """Applies the batches that come until `holds` returns true."""
        nonlocal last
        while not holds():
            assert subscriber.poll(PATIENCE * 1000), "a batch"
            topic, number, payload = subscriber.recv_multipart()
            number = int.from_bytes(number, "big")
            assert topic == TOPIC
            # What the server had kept may also wait in the subscription.
            if last is None or number > last:
                assert last in (None, number - 1), "no batch is missing"
                last = number
                index.apply(payload)

    # The server connects within seconds. Until then events are lost, so the index begins with the
    # events that the server has kept.
    def fetch():
        nonlocal last
        earlier = context.socket(zmq.DEALER)
        earlier.connect(os.environ["MILLRACE_REPLAY"])
        earlier.send_multipart([b"", (0).to_bytes(8, "big")])
        while True:
            assert earlier.poll(PATIENCE * 1000), "an answer"
            delimiter, topic, number, payload = earlier.recv_multipart()
            assert delimiter == b""
            if number == END:
                assert topic == payload == b""
                return
            last = int.from_bytes(number, "big")
            assert topic == TOPIC
            index.apply(payload)

    def complete(text, **fields):
        return ask(url, "/v1/completions", {"model": "demo", "prompt": text, "max_tokens": 4, **fields})

    def tokens_of(text):
        return [token["id"] for token in ask(url, "/tokenize", {"inputs": text})]

    def longest(tokens):
        """Returns the number of tokens at the beginning of a prompt whose blocks are in the index."""
        return max((len(known) for known in index.blocks.values() if tokens[: len(known)] == known), default=0)

    question = "Once upon a time there was a miller who had three sons. " * 4
    until = time.monotonic() + PATIENCE
    attempt = 0
    while not subscriber.poll(200):
        assert time.monotonic() < until, "no event comes"
        complete(f"{attempt} {question}")
        attempt += 1
    fetch()
    assert index.stored > 0 and last is not None

    # The index has the blocks of a new prompt, with its tokens.
    size = min(len(known) for known in index.blocks.values())

    def complete_and_follow(text):
        tokens = tokens_of(text)
        complete(text)
        follow_until(lambda: longest(tokens) == len(tokens) // size * size)

    complete_and_follow("A stranger asked: " + question)

    # A prompt with a salt is nobody else's business. The events of the prompt after it show that no
    # earlier ones are missing.
    secret = "A secret is told here. " + question
    complete(secret, cache_salt="salt")
    complete_and_follow("Another stranger asked: " + question)
    assert longest(tokens_of(secret)) == 0

    # The cache is small, so blocks are evicted. The server's own count agrees.
    for number in range(30):
        complete(f"Story {number}: " + question)
    complete_and_follow("The last story: " + question)
    assert index.removed > 10
    with OPENER.open(url + "/metrics?name[]=millrace_prefix_cache_evicted_blocks_total", timeout=PATIENCE) as answer:
        evicted = [float(line.split()[-1]) for line in answer.read().decode().splitlines() if line[:1] not in ("", "#")]
    # Blocks of the salted prompt are evicted without an event.
    assert index.removed <= evicted[0]

    # Who has missed everything can rebuild the same index.
    rebuilt, index = index, Index()
    fetch()
    assert index.blocks == rebuilt.blocks


def test_the_first_event_clears_the_index(url, context):
    earlier = context.socket(zmq.REQ)
    earlier.connect(os.environ["MILLRACE_REPLAY"])
    earlier.send((0).to_bytes(8, "big"))
    assert earlier.poll(PATIENCE * 1000)
    topic, number, payload = earlier.recv_multipart()
    assert (topic, int.from_bytes(number, "big")) == (TOPIC, 0)
    first = msgspec.msgpack.decode(payload, type=Batch)
    assert first.events == [AllBlocksCleared()], "an earlier run of the server is forgotten"
