"""Tests LangChain's client for OpenAI's API, unchanged, on a scripted model."""

import openai
import pytest
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel

HELLO = "Hello! This answer was written down before, and it has a few tokens."
SUNNY = "The tool says that it will be sunny in Oslo."


@tool
def weather(city: str, days: int) -> str:
    """A forecast for a city."""
    return f"It will be sunny in {city} for {days} days."


@pytest.fixture(params=["chat completions", "responses"])
def model(server, request):
    responses = request.param == "responses"
    return ChatOpenAI(
        model="gpt-4o", base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, use_responses_api=responses
    )


def test_chat(model):
    answer = model.invoke("Hello")
    assert answer.text == HELLO
    assert answer.usage_metadata["output_tokens"] > 4


def test_stream(model):
    parts = [chunk.text for chunk in model.stream("Hello")]
    assert "".join(parts) == HELLO
    assert sum(bool(part) for part in parts) > 4


def test_tool_turn(model):
    bound = model.bind_tools([weather])
    messages = [HumanMessage("What will the weather be like?")]
    answer = bound.invoke(messages)
    [call] = answer.tool_calls
    assert (call["name"], call["args"]) == ("weather", {"city": "Oslo", "days": 3})
    result = weather.invoke(call)
    assert isinstance(result, ToolMessage)
    assert bound.invoke([*messages, answer, result]).text == SUNNY


def test_an_object(model):
    class Fox(BaseModel):
        hungry: bool
        legs: int

    assert isinstance(model.with_structured_output(Fox).invoke("A fox"), Fox)


def test_a_prompt_that_is_too_long(model):
    with pytest.raises(openai.BadRequestError) as error:
        model.invoke("word " * 140_000)
    assert error.value.code == "context_length_exceeded"
