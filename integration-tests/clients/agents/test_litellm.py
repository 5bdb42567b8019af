"""Tests litellm, unchanged, on a scripted model."""

import json

import litellm
import pytest

HELLO = "Hello! This answer was written down before, and it has a few tokens."
SUNNY = "The tool says that it will be sunny in Oslo."
ASKED = [{"role": "user", "content": "What will the weather be like?"}]
PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
TOOLS = [{"type": "function", "function": {"name": "weather", "description": "A forecast", "parameters": PARAMETERS}}]


@pytest.fixture(params=["openai/gpt-4o", "hosted_vllm/any", "anthropic/claude-sonnet-4-5"])
def complete(server, request):
    # The client for Anthropic adds the API version itself.
    base = server.url if request.param.startswith("anthropic/") else f"{server.url}/v1"

    def complete(messages, **more):
        return litellm.completion(
            model=request.param, messages=messages, api_base=base, api_key=server.key, num_retries=0, **more
        )

    return complete


def test_chat(complete):
    answer = complete([{"role": "user", "content": "Hello"}])
    assert answer.choices[0].message.content == HELLO
    assert answer.usage.completion_tokens > 4


def test_stream(complete):
    parts = [chunk.choices[0].delta.content or "" for chunk in complete([{"role": "user", "content": "Hello"}], stream=True)]
    assert "".join(parts) == HELLO
    assert sum(bool(part) for part in parts) > 4


def test_tool_turn(complete):
    message = complete(ASKED, tools=TOOLS).choices[0].message
    [call] = message.tool_calls
    assert json.loads(call.function.arguments) == {"city": "Oslo", "days": 3}
    result = {"role": "tool", "tool_call_id": call.id, "content": "It will be sunny."}
    answer = complete([*ASKED, message.model_dump(), result], tools=TOOLS)
    assert answer.choices[0].message.content == SUNNY


def test_a_prompt_that_is_too_long(complete):
    with pytest.raises(litellm.ContextWindowExceededError):
        complete([{"role": "user", "content": "word " * 140_000}])
