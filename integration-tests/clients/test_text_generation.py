"""Tests TGI's Python client, unchanged. Its `chat(stream=True)` is left out, because it parses
`[DONE]`, which TGI also sends, as JSON."""

import asyncio

import pytest
from text_generation import AsyncClient, Client
from text_generation.errors import ValidationError
from text_generation.types import Grammar, GrammarType, Message, Tool
from time_limits import PATIENCE

PROMPT = "Once upon a time"


@pytest.fixture(scope="module")
def headers(key):
    return {"authorization": f"Bearer {key}"}


@pytest.fixture(scope="module")
def client(url, headers):
    return Client(url, headers=headers, timeout=PATIENCE)


def test_generate(client):
    answer = client.generate(PROMPT, max_new_tokens=8)
    assert answer.details.finish_reason == "length" and answer.details.generated_tokens == len(answer.details.tokens) == 8
    assert "".join(token.text for token in answer.details.tokens) == answer.generated_text
    assert answer.details.seed is None and all(token.logprob <= 0 for token in answer.details.tokens)
    assert client.generate(PROMPT, max_new_tokens=8, return_full_text=True).generated_text == PROMPT + answer.generated_text


def test_generate_stream(client):
    whole = client.generate(PROMPT, max_new_tokens=8, top_n_tokens=2)
    *parts, last = list(client.generate_stream(PROMPT, max_new_tokens=8, top_n_tokens=2))
    assert all(part.generated_text is None and part.details is None for part in parts)
    assert last.generated_text == whole.generated_text and last.details.generated_tokens == 8
    assert [part.token.id for part in parts + [last]] == [token.id for token in whole.details.tokens]
    assert all(len(part.top_tokens) >= 2 for part in parts)


def test_sampling(client):
    asked = {"max_new_tokens": 8, "do_sample": True, "seed": 3, "temperature": 1.5, "top_k": 50, "top_p": 0.9, "typical_p": 0.95,
             "repetition_penalty": 1.1, "frequency_penalty": 0.1, "truncate": 3}
    answer = client.generate(PROMPT, **asked)
    assert answer.details.seed == 3
    assert client.generate(PROMPT, **asked).generated_text == answer.generated_text
    best = client.generate(PROMPT, max_new_tokens=8, do_sample=True, best_of=2)
    assert len(best.details.best_of_sequences) == 1


def test_the_prompt_in_detail_and_watermarks(client):
    details = client.generate(PROMPT, max_new_tokens=4, decoder_input_details=True).details
    assert "".join(token.text for token in details.prefill) == PROMPT
    assert details.prefill[0].logprob is None and all(token.logprob < 0 for token in details.prefill[1:])
    assert client.generate(PROMPT, max_new_tokens=4, do_sample=True, seed=1, watermark=True).details.generated_tokens > 0


def test_stop(client):
    text = client.generate(PROMPT, max_new_tokens=20).generated_text
    word = text.split()[2]
    answer = client.generate(PROMPT, max_new_tokens=20, stop_sequences=[word])
    assert answer.details.finish_reason == "stop_sequence" and answer.generated_text.endswith(word)


def test_grammar(client, weather):
    number = Grammar(type=GrammarType.Regex, value="[0-9]{3}-[0-9]{4}")
    answer = client.generate(PROMPT, max_new_tokens=20, grammar=number)
    assert len(answer.generated_text) == 8 and answer.generated_text[3] == "-"
    streamed = list(client.generate_stream(PROMPT, max_new_tokens=20, grammar=number))
    assert streamed[-1].generated_text == answer.generated_text
    json = client.generate(PROMPT, max_new_tokens=80, grammar=Grammar(type=GrammarType.Json, value=weather))
    assert '"city"' in json.generated_text


def test_chat(client, weather):
    messages = [Message(role="user", content="Tell me a story.")]
    answer = client.chat(messages, max_tokens=8, temperature=0.5, seed=1, logprobs=True, top_logprobs=1)
    assert answer.choices[0].message.content and answer.choices[0].finish_reason == "length"
    tool = Tool(type="function", function={"name": "weather", "parameters": weather})
    answer = client.chat(messages, max_tokens=200, seed=1, tools=[tool], tool_choice="weather")
    assert answer.choices[0].message.tool_calls[0]["function"]["name"] == "weather"


def test_errors(client):
    for more in [{"max_new_tokens": 0}, {"max_new_tokens": 1_000_000}, {"top_n_tokens": 1000}]:
        with pytest.raises(ValidationError, match="Input validation error"):
            client.generate(PROMPT, **more)
        with pytest.raises(ValidationError, match="Input validation error"):
            list(client.generate_stream(PROMPT, **more))
    with pytest.raises(ValidationError, match="grammar is not valid"):
        client.generate(PROMPT, grammar=Grammar(type=GrammarType.Regex, value="("))


def test_the_asynchronous_client(url, headers, client):
    async def ask():
        own = AsyncClient(url, headers=headers, timeout=PATIENCE)
        whole = await own.generate(PROMPT, max_new_tokens=8)
        *_, last = [part async for part in own.generate_stream(PROMPT, max_new_tokens=8)]
        chat = await own.chat([Message(role="user", content="Tell me a story.")], max_tokens=4)
        with pytest.raises(ValidationError):
            await own.generate(PROMPT, max_new_tokens=0)
        return whole.generated_text, last.generated_text, chat.choices[0].message.content

    whole, streamed, chat = asyncio.run(ask())
    assert whole == streamed == client.generate(PROMPT, max_new_tokens=8).generated_text and chat
