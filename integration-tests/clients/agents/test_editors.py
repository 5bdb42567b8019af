"""Tests the requests of the editor extensions Cline and Continue, which cannot run here without
their editors. The requests have the same shape and are sent with OpenAI's client."""

import openai
import pytest

HELLO = "Hello! This answer was written down before, and it has a few tokens."
SUNNY = "The tool says that it will be sunny in Oslo."
WEATHER = {
    "name": "weather",
    "description": "A forecast",
    "parameters": {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 524288}, "days": {"type": "integer"}},
        "required": ["city", "days"],
        "additionalProperties": False,
    },
}


@pytest.fixture
def chat(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0).chat.completions


def text(stream):
    """Returns the text of a stream, whose last chunk must contain the usage."""
    chunks = list(stream)
    assert chunks[-1].usage.completion_tokens > 4
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_cline(chat):
    """Tests tools in the prompt, a user message with several parts, and default parameters."""
    messages = [
        {"role": "system", "content": "You are a coding assistant.\n\n# Tools\n\n<read_file><path>…</path></read_file>"},
        {"role": "user", "content": [{"type": "text", "text": "<task>Hello</task>"}, {"type": "text", "text": "<environment_details>none</environment_details>"}]},
    ]
    stream = chat.create(
        model="any/model:free", messages=messages, temperature=0, max_tokens=8192, stream=True,
        stream_options={"include_usage": True}, reasoning_effort="medium", extra_body={"transforms": ["middle-out"]},
    )
    assert text(stream) == HELLO


def test_continue(chat):
    """Tests tools in the request, calls in a stream, and an assistant message without content."""
    messages = [
        {"role": "system", "content": "You are in agent mode."},
        {"role": "user", "content": [{"type": "text", "text": "What will the weather be like?"}]},
    ]
    fixed = {
        "model": "gpt-4o", "max_tokens": 4096, "temperature": 0.5, "top_p": 1, "frequency_penalty": 0, "presence_penalty": 0,
        "stop": ["<|never|>"], "stream": True, "tools": [{"type": "function", "function": WEATHER}],
        "parallel_tool_calls": False, "stream_options": {"include_usage": True},
    }
    calls = {}
    for chunk in chat.create(messages=messages, **fixed):
        for call in (chunk.choices[0].delta.tool_calls or []) if chunk.choices else []:
            seen = calls.setdefault(call.index, {"id": call.id, "name": call.function.name, "arguments": ""})
            seen["arguments"] += call.function.arguments or ""
    [call] = calls.values()
    assert call["name"] == "weather"
    function = {"name": call["name"], "arguments": call["arguments"]}
    messages += [
        {"role": "assistant", "content": "", "tool_calls": [{"id": call["id"], "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": call["id"], "content": "It will be sunny."},
    ]
    assert text(chat.create(messages=messages, **fixed)) == SUNNY
