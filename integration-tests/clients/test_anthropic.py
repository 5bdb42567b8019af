"""Tests Anthropic's Python client, unchanged."""

import anthropic
import pytest

ASKED = {
    "model": "tgi",
    "max_tokens": 12,
    # The client no longer has a parameter for it.
    "extra_body": {"temperature": 0},
    "messages": [{"role": "user", "content": "Tell me a story about a fox."}],
}


@pytest.fixture(scope="module")
def client(url, key):
    return anthropic.Anthropic(base_url=url, api_key=key, max_retries=0)


def test_messages(client):
    message = client.messages.create(**ASKED, system="Be brief.")
    [block] = message.content
    assert message.type == "message" and message.role == "assistant" and block.type == "text" and block.text
    assert message.stop_reason in ("end_turn", "max_tokens") and message.usage.output_tokens > 0
    blocks = [{"type": "text", "text": ASKED["messages"][0]["content"]}]
    same = client.messages.create(
        **{**ASKED, "messages": [{"role": "user", "content": blocks}]}, system=[{"type": "text", "text": "Be brief."}]
    )
    assert same.content[0].text == block.text


def test_stream(client):
    whole = client.messages.create(**ASKED)
    with client.messages.stream(**ASKED) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
    kinds = [event.type for event in client.messages.create(**ASKED, stream=True)]
    assert kinds[0] == "message_start" and kinds[1] == "content_block_start"
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_stop_sequences(client):
    text = client.messages.create(**{**ASKED, "max_tokens": 40}).content[0].text
    word = text.split()[3]
    message = client.messages.create(**{**ASKED, "max_tokens": 40}, stop_sequences=[word])
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", word)
    assert message.content[0].text == text.split(word)[0]


def test_tools(client, weather):
    tools = [{"name": "weather", "description": "d", "input_schema": weather}]
    choice = {"type": "any", "disable_parallel_tool_use": True}
    asked = {**ASKED, "max_tokens": 200, "tools": tools, "tool_choice": choice}
    message = client.messages.create(**asked)
    type(message).model_validate(message.model_dump(mode="json", by_alias=True, exclude_unset=True))
    [block] = message.content
    assert message.stop_reason == "tool_use" and block.type == "tool_use" and block.name == "weather"
    assert block.input["city"] in ("Rome", "Oslo") and 1 <= block.input["days"] <= 9
    with client.messages.stream(**asked) as stream:
        final = stream.get_final_message()
    assert final.stop_reason == "tool_use" and final.content[0].input == block.input

    result = {"type": "tool_result", "tool_use_id": block.id, "content": "rain"}
    turns = [{"role": "assistant", "content": [block.model_dump()]}, {"role": "user", "content": [result]}]
    messages = ASKED["messages"] + turns
    answer = client.messages.create(**{**asked, "messages": messages, "tool_choice": {"type": "none"}})
    assert answer.content[0].type == "text"
    plain = client.messages.count_tokens(model="tgi", messages=ASKED["messages"]).input_tokens
    assert client.messages.count_tokens(model="tgi", messages=ASKED["messages"], tools=tools).input_tokens > plain


def test_count_tokens(client):
    counted = client.messages.count_tokens(model="tgi", messages=ASKED["messages"]).input_tokens
    usage = client.messages.create(**ASKED).usage
    assert counted == usage.input_tokens + usage.cache_read_input_tokens


def test_errors(client, url):
    with pytest.raises(anthropic.BadRequestError) as error:
        client.messages.create(**{**ASKED, "messages": []})
    assert error.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.BadRequestError):
        with client.messages.stream(**{**ASKED, "extra_body": {"temperature": -1}}) as stream:
            stream.get_final_message()
    with pytest.raises(anthropic.NotFoundError):
        client.models.retrieve("claude")
    with pytest.raises(anthropic.AuthenticationError):
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0).messages.create(**ASKED)
