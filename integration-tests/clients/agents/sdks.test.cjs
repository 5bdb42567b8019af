// JavaScript libraries, unchanged, each through a chat, a stream and a tool turn on a scripted model (scripted.py).

const assert = require("node:assert/strict");
const { test } = require("node:test");
const { createAnthropic } = require("@ai-sdk/anthropic");
const { createOpenAI } = require("@ai-sdk/openai");
const { createOpenAICompatible } = require("@ai-sdk/openai-compatible");
const { InferenceClient } = require("@huggingface/inference");
const { generateObject, generateText, stepCountIs, streamText, tool } = require("ai");
const { z } = require("zod");

const { MILLRACE_URL: url, MILLRACE_KEY: apiKey } = process.env;
const hello = "Hello! This answer was written down before, and it has a few tokens.";
const sunny = "The tool says that it will be sunny in Oslo.";
const asked = [{ role: "user", content: "What will the weather be like in Oslo?" }];

// The client sends the endpoint's URL as the name of the model.
const huggingFace = new InferenceClient(apiKey, { endpointUrl: url });

test("@huggingface/inference: chat", async () => {
  const answer = await huggingFace.chatCompletion({ messages: [{ role: "user", content: "Hello" }] });
  assert.equal(answer.choices[0].message.content, hello);
  assert.ok(answer.usage.completion_tokens > 4);
});

test("@huggingface/inference: stream", async () => {
  const parts = [];
  for await (const chunk of huggingFace.chatCompletionStream({ messages: [{ role: "user", content: "Hello" }] })) {
    parts.push(chunk.choices[0]?.delta?.content ?? "");
  }
  assert.equal(parts.join(""), hello);
  assert.ok(parts.length > 4);
});

test("@huggingface/inference: tool turn", async () => {
  const parameters = { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } };
  const tools = [{ type: "function", function: { name: "weather", description: "A forecast", parameters } }];
  const first = await huggingFace.chatCompletion({ messages: asked, tools });
  assert.equal(first.choices[0].finish_reason, "tool_calls");
  const [call] = first.choices[0].message.tool_calls;
  assert.deepEqual(JSON.parse(call.function.arguments), { city: "Oslo", days: 3 });
  const result = { role: "tool", tool_call_id: call.id, content: "It will be sunny." };
  const second = await huggingFace.chatCompletion({ messages: [...asked, first.choices[0].message, result], tools });
  assert.equal(second.choices[0].message.content, sunny);
});

test("@huggingface/inference: text generation, whole and streamed", async () => {
  // The mark that the scripted answer begins after; the client asks /v1/completions.
  const asked = { inputs: "<|say_3|>", parameters: { max_new_tokens: 4 } };
  const { generated_text: text } = await huggingFace.textGeneration(asked);
  assert.ok(text.length > 8 && hello.startsWith(text), text);
  const parts = [];
  for await (const part of huggingFace.textGenerationStream(asked)) parts.push(part.choices[0].text);
  assert.equal(parts.length, 4);
  assert.equal(parts.join(""), text);
});

function sdk(name, model) {
  test(`${name}: chat`, async () => {
    const { text, usage, finishReason } = await generateText({ model, prompt: "Hello", maxRetries: 0 });
    assert.equal(text, hello);
    assert.equal(finishReason, "stop");
    assert.ok(usage.inputTokens > 0 && usage.outputTokens > 4);
  });

  test(`${name}: stream`, async () => {
    const stream = streamText({ model, prompt: "Hello", maxRetries: 0, onError: ({ error }) => { throw error; } });
    const parts = [];
    for await (const part of stream.textStream) parts.push(part);
    assert.equal(parts.join(""), hello);
    assert.ok(parts.length > 4);
    assert.ok((await stream.usage).outputTokens > 4);
  });

  test(`${name}: tool turn`, async () => {
    const calls = [];
    const execute = async (input) => {
      calls.push(input);
      return "It will be sunny.";
    };
    const inputSchema = z.object({ city: z.string().max(600000), days: z.number().int() });
    const tools = { weather: tool({ description: "A forecast", inputSchema, execute }) };
    const more = { model, messages: asked, tools, stopWhen: stepCountIs(3), maxRetries: 0 };
    assert.equal((await generateText(more)).text, sunny);
    const stream = streamText({ ...more, onError: ({ error }) => { throw error; } });
    assert.equal((await stream.steps).at(-1).text, sunny);
    assert.deepEqual(calls, [{ city: "Oslo", days: 3 }, { city: "Oslo", days: 3 }]);
  });
}

const openai = createOpenAI({ baseURL: `${url}/v1`, apiKey });
const compatible = createOpenAICompatible({ name: "millrace", baseURL: `${url}/v1`, apiKey, includeUsage: true });
const anthropic = createAnthropic({ baseURL: `${url}/v1`, apiKey });
sdk("AI SDK, openai-compatible", compatible("any-name"));
sdk("AI SDK, openai chat", openai.chat("gpt-4o"));
sdk("AI SDK, openai responses", openai.responses("gpt-5"));
sdk("AI SDK, anthropic", anthropic("claude-sonnet-4-5"));

test("AI SDK: an object", async () => {
  const schema = z.object({ city: z.enum(["Oslo", "Rome"]), days: z.number().int().min(1).max(9) });
  const { object } = await generateObject({ model: openai.chat("gpt-4o"), schema, prompt: "Oslo", maxRetries: 0 });
  assert.ok(["Oslo", "Rome"].includes(object.city));
});
