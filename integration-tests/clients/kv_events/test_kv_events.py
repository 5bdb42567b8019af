"""Subscribes to the prefix cache with libzmq, and decodes the events as vLLM's structures."""

import json
import os
import urllib.request
from typing import Optional, Union

import msgspec
import pytest
import zmq

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
    with OPENER.open(request, timeout=60) as answer:
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

    def follow(patience=300):
        """Applies the batches that come; waits for each of them for so many milliseconds."""
        nonlocal last
        while subscriber.poll(patience):
            topic, number, payload = subscriber.recv_multipart()
            number = int.from_bytes(number, "big")
            assert topic == TOPIC and last in (None, number - 1), "no batch is missing"
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
            assert earlier.poll(10_000), "an answer"
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

    question = "Once upon a time there was a miller who had three sons. " * 4
    for attempt in range(100):
        complete(f"{attempt} {question}")
        if subscriber.poll(200):
            break
    else:
        pytest.fail("no event comes")
    # What waits in the subscription comes again with what the server has kept.
    while subscriber.poll(300):
        subscriber.recv_multipart()
    fetch()
    assert index.stored > 0 and last is not None

    # The index has the blocks of a new prompt, with its tokens.
    text = "A stranger asked: " + question
    tokens = [token["id"] for token in ask(url, "/tokenize", {"inputs": text})]
    complete(text)
    follow()
    longest = max((known for known in index.blocks.values() if tokens[: len(known)] == known), key=len)
    size = len(min(index.blocks.values(), key=len))
    assert len(longest) == len(tokens) // size * size

    # A prompt with a salt is nobody else's business.
    before = index.stored
    complete("A secret is told here. " + question, cache_salt="salt")
    follow()
    assert index.stored == before

    # The cache is small, so blocks are evicted. The server's own count agrees.
    for number in range(30):
        complete(f"Story {number}: " + question)
    follow()
    assert index.removed > 10
    with OPENER.open(url + "/metrics?name[]=millrace_prefix_cache_evicted_blocks_total", timeout=60) as answer:
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
    assert earlier.poll(10_000)
    topic, number, payload = earlier.recv_multipart()
    assert (topic, int.from_bytes(number, "big")) == (TOPIC, 0)
    first = msgspec.msgpack.decode(payload, type=Batch)
    assert first.events == [AllBlocksCleared()], "an earlier run of the server is forgotten"
