"""Tests OpenAI's Python client, unchanged."""

import json
import time
import urllib.request
from enum import Enum

import openai
import pytest
from pydantic import BaseModel
from time_limits import PATIENCE

MODEL = "tgi"
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]
GREEDY = {"model": MODEL, "messages": MESSAGES, "temperature": 0, "max_tokens": 12}
WHOLE = {**GREEDY, "max_tokens": 400}


class Colour(str, Enum):
    red = "red"
    blue = "blue"


class Fox(BaseModel):
    colour: Colour
    legs: int
    hungry: bool


@pytest.fixture(scope="module")
def client(url, key):
    return openai.OpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


@pytest.fixture(scope="module")
def chat(client):
    return client.chat.completions


@pytest.fixture(scope="module")
def tools(weather):
    return [{"type": "function", "function": {"name": "weather", "description": "d", "parameters": weather, "strict": True}}]


def running(url):
    """Returns the number of sequences that the server is computing."""
    lines = urllib.request.urlopen(f"{url}/metrics").read().decode().splitlines()
    return sum(float(line.split()[-1]) for line in lines if line.startswith("vllm:num_requests_running "))


def test_models(client):
    models = client.models.list().data
    assert [model.object for model in models] == ["model"]
    assert client.models.retrieve(models[0].id).id == models[0].id
    with pytest.raises(openai.NotFoundError) as error:
        client.models.retrieve("other")
    assert error.value.code == "model_not_found"


def test_chat(chat):
    answer = chat.create(**GREEDY)
    choice = answer.choices[0]
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-") and answer.system_fingerprint
    assert choice.message.role == "assistant" and choice.message.content
    assert choice.message.tool_calls is None and choice.logprobs is None and choice.finish_reason in ("stop", "length")
    usage = answer.usage
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert usage.prompt_tokens_details.cached_tokens >= 0
    assert chat.create(**GREEDY).choices[0].message.content == choice.message.content


def test_chat_streams(chat):
    whole = chat.create(**GREEDY)
    chunks = list(chat.create(**GREEDY, stream=True, stream_options={"include_usage": True}))
    *parts, last = chunks
    assert all(chunk.object == "chat.completion.chunk" and chunk.id == last.id for chunk in chunks)
    assert parts[0].choices[0].delta.role == "assistant" and all(chunk.usage is None for chunk in parts)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in parts) == whole.choices[0].message.content
    assert parts[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert not last.choices and last.usage.completion_tokens == whole.usage.completion_tokens

    # This helper treats a truncated answer as an error.
    whole = chat.create(**WHOLE).choices[0]
    with chat.stream(**WHOLE) as stream:
        kinds = {event.type for event in stream}
    assert {"chunk", "content.delta", "content.done"} <= kinds
    final = stream.get_final_completion().choices[0]
    assert final.message.content == whole.message.content and final.finish_reason == "stop"


def test_several_choices_and_seeds(chat):
    asked = {"model": MODEL, "messages": MESSAGES, "max_tokens": 12, "temperature": 1.5, "n": 3, "seed": 7}
    texts = [choice.message.content for choice in chat.create(**asked).choices]
    assert len(texts) == 3 and len(set(texts)) > 1
    assert [choice.message.content for choice in chat.create(**asked).choices] == texts
    streamed = ["", "", ""]
    for chunk in chat.create(**asked, stream=True):
        for choice in chunk.choices:
            streamed[choice.index] += choice.delta.content or ""
    assert streamed == texts


def test_stop(chat):
    whole = chat.create(**{**GREEDY, "max_tokens": 40}).choices[0].message.content
    word = whole.split()[3]
    for stop in (word, [word, "never"]):
        choice = chat.create(**{**GREEDY, "max_tokens": 40}, stop=stop).choices[0]
        assert choice.message.content == whole.split(word)[0] and choice.finish_reason == "stop"


def test_logprobs(chat):
    answer = chat.create(**GREEDY, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    text = b"".join(bytes(token.bytes) for token in tokens).decode()
    assert text == answer.choices[0].message.content
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    # With greedy sampling, the chosen token is the most likely one.
    assert all(token.top_logprobs[0].token == token.token for token in tokens)
    streamed = []
    for chunk in chat.create(**GREEDY, logprobs=True, top_logprobs=2, stream=True):
        streamed += chunk.choices[0].logprobs.content
    assert [token.token for token in streamed] == [token.token for token in tokens]


def test_structured_output(chat):
    asked = {**GREEDY, "max_tokens": 100}
    answer = chat.parse(**asked, response_format=Fox)
    assert isinstance(answer.choices[0].message.parsed, Fox)
    with chat.stream(**asked, response_format=Fox) as stream:
        for _ in stream:
            pass
    assert stream.get_final_completion().choices[0].message.parsed == answer.choices[0].message.parsed
    # As with OpenAI, any object is allowed. The answer may be truncated, but it begins with an
    # object.
    text = chat.create(**asked, response_format={"type": "json_object"}).choices[0].message.content
    assert text.lstrip().startswith("{")


def test_tools(chat, tools):
    asked = {**GREEDY, "max_tokens": 200, "tools": tools, "tool_choice": "required", "parallel_tool_calls": False}
    choice = chat.create(**asked).choices[0]
    [call] = choice.message.tool_calls
    assert choice.finish_reason == "tool_calls" and call.type == "function" and call.id
    arguments = json.loads(call.function.arguments)
    assert call.function.name == "weather" and arguments["city"] in ("Rome", "Oslo") and 1 <= arguments["days"] <= 9

    name, streamed, ids = "", "", set()
    for chunk in chat.create(**asked, stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            ids.add(part.id)
            name += part.function.name or ""
            streamed += part.function.arguments or ""
    assert name == "weather" and json.loads(streamed) == arguments and len(ids - {None}) == 1

    with chat.stream(**asked) as stream:
        kinds = {event.type for event in stream}
    assert "tool_calls.function.arguments.done" in kinds
    final = stream.get_final_completion().choices[0].message.tool_calls[0]
    assert final.function.parsed_arguments == arguments


def test_results_of_tools_go_back(chat, tools):
    call = {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome", "days": 1}'}}
    messages = MESSAGES + [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
    ]
    for choice in ("auto", "none"):
        answer = chat.create(**{**GREEDY, "messages": messages}, tools=tools, tool_choice=choice)
        assert answer.choices[0].message.role == "assistant"


def test_errors(chat, client, url):
    for more, param in [
        ({"temperature": -1}, "temperature"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "nonsense"}}}}, "response_format"),
        ({"web_search_options": {}}, "web_search_options"),
    ]:
        for stream in (False, True):
            with pytest.raises(openai.BadRequestError) as error:
                chat.create(**{**GREEDY, **more}, stream=stream)
            assert error.value.param == param and error.value.type == "invalid_request_error" and error.value.request_id
    # Any model name is accepted, unless the server is started with names.
    assert chat.create(**{**GREEDY, "model": "gpt-4"}).model == client.models.list().data[0].id
    with pytest.raises(openai.AuthenticationError):
        openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0).completions.create(model=MODEL, prompt="a")
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a fox")


def test_completions(client):
    asked = {"model": MODEL, "prompt": "Once upon a time", "max_tokens": 8, "temperature": 0}
    answer = client.completions.create(**asked, logprobs=2)
    choice = answer.choices[0]
    assert answer.object == "text_completion" and choice.text and choice.finish_reason == "length"
    logprobs = choice.logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.top_logprobs) == len(logprobs.text_offset) == 8
    assert "".join(logprobs.tokens) == choice.text
    assert client.completions.create(**asked, echo=True).choices[0].text == asked["prompt"] + choice.text
    streamed = "".join(chunk.choices[0].text for chunk in client.completions.create(**asked, stream=True))
    assert streamed == choice.text
    scored = client.completions.create(**{**asked, "max_tokens": 0}, echo=True, logprobs=1).choices[0]
    assert scored.text == asked["prompt"] == "".join(scored.logprobs.tokens)
    assert all(logprob < 0 for logprob in scored.logprobs.token_logprobs[1:])

    several = {**asked, "prompt": ["Once upon a time", "The fox"], "n": 2}
    answer = client.completions.create(**several)
    assert [choice.index for choice in answer.choices] == [0, 1, 2, 3]
    assert answer.choices[0].text == choice.text == answer.choices[1].text
    ids = client.completions.create(**{**asked, "prompt": [[5, 6, 7]]}, extra_body={"return_token_ids": True})
    assert ids.choices[0].prompt_token_ids == [5, 6, 7]


def test_embeddings(client):
    texts = ["Once upon a time", "The fox"]
    # The client requests base64 by default.
    answer = client.embeddings.create(model=MODEL, input=texts)
    assert [embedding.index for embedding in answer.data] == [0, 1] and answer.usage.prompt_tokens > 0
    vectors = [embedding.embedding for embedding in answer.data]
    assert all(abs(sum(x * x for x in vector) - 1) < 1e-3 for vector in vectors) and vectors[0] != vectors[1]
    plain = client.embeddings.create(model=MODEL, input=texts[1], encoding_format="float", dimensions=8).data[0].embedding
    assert len(plain) == 8 and all((a > 0) == (b > 0) for a, b in zip(plain, vectors[1]))
    with pytest.raises(openai.BadRequestError) as error:
        client.embeddings.create(model=MODEL, input=[])
    assert error.value.param == "input"


def test_responses(client):
    asked = {"model": MODEL, "input": "Tell me a story about a fox.", "temperature": 0, "max_output_tokens": 12}
    answer = client.responses.create(**asked, instructions="Be brief.")
    assert answer.object == "response" and answer.id.startswith("resp_") and answer.output_text
    assert answer.status in ("completed", "incomplete") and answer.usage.output_tokens > 0
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": asked["input"]}]
    assert client.responses.create(**{**asked, "input": messages}).output_text == answer.output_text

    events = list(client.responses.create(**asked, instructions="Be brief.", stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created" and events[-1].type in ("response.completed", "response.incomplete")
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == answer.output_text == events[-1].response.output_text
    asked["max_output_tokens"] = 400
    with client.responses.stream(**asked) as stream:
        final = stream.get_final_response()
    assert final.status == "completed" and final.output_text == client.responses.create(**asked).output_text
    with pytest.raises(openai.BadRequestError) as error:
        client.responses.create(**asked, previous_response_id="resp_1")
    assert error.value.param == "previous_response_id"


def test_functions_of_responses(client, weather):
    tool = {"type": "function", "name": "weather", "description": "d", "parameters": weather, "strict": True}
    asked = {"model": MODEL, "input": "How is it in Rome?", "temperature": 0, "max_output_tokens": 200, "tools": [tool],
             "tool_choice": "required", "parallel_tool_calls": False}
    answer = client.responses.create(**asked)
    # The library creates its types without checking required fields, so this test checks them.
    type(answer).model_validate(answer.model_dump(mode="json", by_alias=True, exclude_unset=True))
    [call] = answer.output
    arguments = json.loads(call.arguments)
    assert (call.type, call.name) == ("function_call", "weather") and arguments["city"] in ("Rome", "Oslo")

    events = list(client.responses.create(**asked, stream=True))
    streamed = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert json.loads(streamed) == arguments
    with client.responses.stream(**asked) as stream:
        assert json.loads(stream.get_final_response().output[0].arguments) == arguments

    result = {"type": "function_call_output", "call_id": call.call_id, "output": "rain"}
    items = [{"role": "user", "content": "How is it in Rome?"}, call.model_dump(exclude_none=True), result]
    assert client.responses.create(**{**asked, "input": items, "tool_choice": "none"}).output_text


def test_structured_responses(client):
    answer = client.responses.parse(
        model=MODEL, input="A fox, please.", temperature=0, max_output_tokens=100, text_format=Fox
    )
    assert isinstance(answer.output_parsed, Fox)


def test_a_stream_that_is_left_frees_its_slot(client, url):
    # Without the tokens that end a text, the answer would continue up to the model's limit.
    stream = client.completions.create(
        model=MODEL, prompt="Once upon a time", stream=True, extra_body={"ignore_eos": True}
    )
    next(iter(stream))
    assert running(url) == 1
    stream.close()
    since = time.monotonic()
    while running(url):
        assert time.monotonic() - since < PATIENCE, "the abandoned answer is still being computed"
        time.sleep(0.01)
