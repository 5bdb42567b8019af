"""Tests the InferenceClient of huggingface_hub, unchanged."""

import json

import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import BadRequestError, ValidationError
from time_limits import PATIENCE

PROMPT = "Once upon a time"
MESSAGES = [{"role": "user", "content": "Tell me a story about a fox."}]


@pytest.fixture(scope="module")
def client(url, key):
    return InferenceClient(model=url, provider="hf-inference", token=key, timeout=PATIENCE)


def test_text_generation(client):
    # TGI's route for old clients repeats the prompt by default.
    assert client.text_generation(PROMPT, max_new_tokens=8).startswith(PROMPT)
    asked = {"max_new_tokens": 8, "return_full_text": False}
    text = client.text_generation(PROMPT, **asked)
    assert text and not text.startswith(PROMPT)
    details = client.text_generation(PROMPT, **asked, details=True, top_n_tokens=2)
    assert details.generated_text == text and details.details.finish_reason == "length"
    assert "".join(token.text for token in details.details.tokens) == text
    assert all(len(top) >= 2 for top in details.details.top_tokens)
    assert "".join(client.text_generation(PROMPT, **asked, stream=True)) == text
    *parts, last = client.text_generation(PROMPT, **asked, stream=True, details=True)
    assert last.generated_text == text and last.details.generated_tokens == 8 and parts[0].details is None
    assert last.details.input_length > 0


def test_grammar_and_errors(client):
    grammar = {"type": "regex", "value": "[0-9]{3}"}
    assert client.text_generation(PROMPT, max_new_tokens=8, return_full_text=False, grammar=grammar).isdigit()
    for stream in (False, True):
        with pytest.raises(ValidationError, match="`temperature` must be strictly positive"):
            list(client.text_generation(PROMPT, max_new_tokens=8, temperature=-1.0, stream=stream))
    with pytest.raises(ValidationError, match="`adapter_id` other is not known: the server has no adapters"):
        client.text_generation(PROMPT, max_new_tokens=8, adapter_id="other")


def test_chat_completion(client):
    asked = {"messages": MESSAGES, "max_tokens": 12, "temperature": 0.0}
    answer = client.chat_completion(**asked, logprobs=True, top_logprobs=1)
    choice = answer.choices[0]
    assert choice.message.content and choice.logprobs.content and answer.usage.total_tokens > 12
    streamed = list(client.chat_completion(**asked, stream=True, stream_options={"include_usage": True}))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in streamed if chunk.choices)
    assert text == choice.message.content and streamed[-1].usage.completion_tokens == answer.usage.completion_tokens
    also = client.chat.completions.create(**asked)
    assert also.choices[0].message.content == text
    with pytest.raises(BadRequestError):
        client.chat_completion(**{**asked, "max_tokens": 0})
    with pytest.raises(BadRequestError):
        client.chat_completion(messages=[7])


def test_structured_output_and_tools(client, weather):
    asked = {"messages": MESSAGES, "max_tokens": 200, "temperature": 0.0}
    format = {"type": "json_schema", "json_schema": {"name": "weather", "schema": weather, "strict": True}}
    answer = client.chat_completion(**asked, response_format=format)
    assert json.loads(answer.choices[0].message.content)["city"] in ("Rome", "Oslo")
    tools = [{"type": "function", "function": {"name": "weather", "parameters": weather, "description": "d"}}]
    answer = client.chat_completion(**asked, tools=tools, tool_choice="required")
    [call] = answer.choices[0].message.tool_calls[:1]
    assert call.function.name == "weather" and json.loads(call.function.arguments)["city"] in ("Rome", "Oslo")
    arguments = ""
    for chunk in client.chat_completion(**asked, tools=tools, tool_choice="required", stream=True):
        for part in chunk.choices[0].delta.tool_calls or []:
            arguments += part.function.arguments if part.index == 0 else ""
    assert json.loads(arguments) == json.loads(call.function.arguments)


def test_the_model_is_described(client):
    info = client.get_endpoint_info()
    assert info["router"] == "text-generation-router" and info["max_total_tokens"] > 0
    assert client.health_check()
