// OpenAI's client for JavaScript, unchanged.

const assert = require("node:assert/strict");
const { test } = require("node:test");
const OpenAI = require("openai");

const url = process.env.MILLRACE_URL;
const client = new OpenAI({ baseURL: `${url}/v1`, apiKey: process.env.MILLRACE_KEY, maxRetries: 0 });
const asked = {
  model: "tgi",
  messages: [{ role: "user", content: "Tell me a story about a fox." }],
  temperature: 0,
  max_tokens: 12,
};
const parameters = {
  type: "object",
  properties: { city: { enum: ["Rome", "Oslo"] }, days: { type: "integer", minimum: 1, maximum: 9 } },
  required: ["city", "days"],
  additionalProperties: false,
};

async function running() {
  const text = await (await fetch(`${url}/metrics`)).text();
  return Number(/^vllm:num_requests_running (\S+)$/m.exec(text)[1]);
}

test("models", async () => {
  const models = [];
  for await (const model of client.models.list()) models.push(model.id);
  assert.equal(models.length, 1);
  assert.equal((await client.models.retrieve(models[0])).id, models[0]);
});

test("chat, whole and streamed", async () => {
  const whole = await client.chat.completions.create({ ...asked, logprobs: true, top_logprobs: 1 });
  const choice = whole.choices[0];
  assert.ok(choice.message.content.length > 0 && choice.logprobs.content.length > 0);
  assert.equal(whole.usage.total_tokens, whole.usage.prompt_tokens + whole.usage.completion_tokens);

  let text = "";
  let usage = null;
  const options = { stream: true, stream_options: { include_usage: true } };
  for await (const chunk of await client.chat.completions.create({ ...asked, ...options })) {
    text += chunk.choices[0]?.delta?.content ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, choice.message.content);
  assert.equal(usage.completion_tokens, whole.usage.completion_tokens);
  assert.equal(await client.chat.completions.stream(asked).finalContent(), text);
});

test("structured output", async () => {
  const response_format = { type: "json_schema", json_schema: { name: "weather", strict: true, schema: parameters } };
  const answer = await client.chat.completions.parse({ ...asked, max_tokens: 100, response_format });
  assert.ok(["Rome", "Oslo"].includes(answer.choices[0].message.parsed.city));
});

test("tools, whole and streamed", async () => {
  const tools = [{ type: "function", function: { name: "weather", parameters } }];
  const body = { ...asked, max_tokens: 200, tools, tool_choice: "required", parallel_tool_calls: false };
  const [call] = (await client.chat.completions.create(body)).choices[0].message.tool_calls;
  assert.equal(call.function.name, "weather");
  const streamed = await client.chat.completions.stream(body).finalChatCompletion();
  assert.deepEqual(streamed.choices[0].message.tool_calls[0].function.arguments, call.function.arguments);
  assert.equal(streamed.choices[0].finish_reason, "tool_calls");
});

test("completions", async () => {
  const body = { model: "tgi", prompt: ["Once upon a time", "The fox"], max_tokens: 8, temperature: 0 };
  const whole = await client.completions.create(body);
  const texts = ["", ""];
  for await (const chunk of await client.completions.create({ ...body, stream: true })) {
    texts[chunk.choices[0].index] += chunk.choices[0].text;
  }
  assert.deepEqual(texts, whole.choices.map((choice) => choice.text));
});

test("embeddings", async () => {
  const { data } = await client.embeddings.create({ model: "tgi", input: ["Once upon a time", "The fox"] });
  assert.equal(data.length, 2);
  assert.ok(data.every(({ embedding }) => Math.abs(embedding.reduce((sum, x) => sum + x * x, 0) - 1) < 1e-3));
});

test("responses, whole and streamed", async () => {
  const body = { model: "tgi", input: "Tell me a story about a fox.", temperature: 0, max_output_tokens: 12 };
  const whole = await client.responses.create(body);
  assert.ok(whole.output_text.length > 0);
  let text = "";
  for await (const event of await client.responses.create({ ...body, stream: true })) {
    if (event.type === "response.output_text.delta") text += event.delta;
  }
  assert.equal(text, whole.output_text);
  assert.equal((await client.responses.stream(body).finalResponse()).output_text, text);
});

test("errors", async () => {
  await assert.rejects(client.chat.completions.create({ ...asked, temperature: -1 }), OpenAI.BadRequestError);
  await assert.rejects(client.chat.completions.create({ ...asked, max_tokens: 0, stream: true }), OpenAI.BadRequestError);
  await assert.rejects(client.models.retrieve("gpt-4"), OpenAI.NotFoundError);
  const stranger = new OpenAI({ baseURL: `${url}/v1`, apiKey: "wrong", maxRetries: 0 });
  await assert.rejects(stranger.chat.completions.create(asked), OpenAI.AuthenticationError);
});

test("a stream that is left frees its slot", async () => {
  const body = { model: "tgi", prompt: "Once upon a time", stream: true, ignore_eos: true };
  const stream = await client.completions.create(body);
  for await (const _ of stream) {
    assert.equal(await running(), 1);
    stream.controller.abort();
    break;
  }
  const since = Date.now();
  while ((await running()) > 0) {
    assert.ok(Date.now() - since < 30000, "the abandoned answer is still being computed");
    await new Promise((resolve) => setTimeout(resolve, 10));
  }
});
