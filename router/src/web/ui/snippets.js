// Programs that send a request.

const KEY = "MILLRACE_API_KEY";

/** A command for a shell. */
export function curl({ path, body }, base, hasKey) {
  const quoted = (text) => `'${text.replaceAll("'", "'\\''")}'`;
  const lines = [`curl -N ${quoted(base + path)}`, "-H 'content-type: application/json'"];
  if (hasKey) lines.push(`-H "authorization: Bearer $${KEY}"`);
  lines.push(`-d ${quoted(JSON.stringify(body, null, 2))}`);
  return lines.join(" \\\n  ");
}

/** The parameters of the `openai` package. Other fields go into `extra_body`. */
const NAMED = new Set([
  "model", "messages", "prompt", "stream", "stream_options", "temperature", "top_p", "max_tokens", "seed", "stop",
  "frequency_penalty", "presence_penalty", "logprobs", "top_logprobs", "reasoning_effort", "response_format", "tools",
]);

/** A program for Python's `openai` package. */
export function python({ path, body }, base, hasKey) {
  const isChat = path === "v1/chat/completions";
  const entries = Object.entries(body);
  // The package has the parameter response_format only for chats.
  const isNamed = ([name]) => NAMED.has(name) && (isChat || name !== "response_format");
  const named = entries.filter(isNamed).map(([name, value]) => [name, value]);
  const extra = entries.filter((entry) => !isNamed(entry));
  if (extra.length) named.push(["extra_body", Object.fromEntries(extra)]);
  return [
    ...(hasKey ? ["import os", ""] : []),
    "from openai import OpenAI",
    "",
    `client = OpenAI(base_url=${JSON.stringify(base + "v1")}, api_key=${hasKey ? `os.environ["${KEY}"]` : '"none"'})`,
    "",
    `stream = client.${isChat ? "chat.completions" : "completions"}.create(`,
    ...named.map(([name, value]) => `    ${name}=${literal(value, "    ")},`),
    ")",
    "for chunk in stream:",
    "    for choice in chunk.choices:",
    `        print(choice.${isChat ? 'delta.content or ""' : "text"}, end="", flush=True)`,
    "print()",
  ].join("\n");
}

/** A value in Python's syntax. A JSON string is also a Python string. */
function literal(value, indent) {
  if (value === true) return "True";
  if (value === false) return "False";
  if (value === null) return "None";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const items = Array.isArray(value)
    ? value.map((item) => literal(item, inner))
    : Object.entries(value).map(([name, item]) => `${JSON.stringify(name)}: ${literal(item, inner)}`);
  const [open, close] = Array.isArray(value) ? "[]" : "{}";
  if (items.length === 0) return open + close;
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

/** A JavaScript program without packages, for a browser or Node.js. */
export function javascript({ path, body }, base, hasKey) {
  const text = path === "v1/chat/completions" ? "delta.content" : "text";
  const headers = ['"content-type": "application/json"'];
  if (hasKey) headers.push(`authorization: \`Bearer \${process.env.${KEY}}\``);
  const json = JSON.stringify(body, null, 2).replaceAll("\n", "\n  ");
  return `const response = await fetch(${JSON.stringify(base + path)}, {
  method: "POST",
  headers: { ${headers.join(", ")} },
  body: JSON.stringify(${json}),
});
if (!response.ok) throw new Error(await response.text());
let answer = "";
let rest = "";
for await (const text of response.body.pipeThrough(new TextDecoderStream())) {
  const lines = (rest + text).split("\\n");
  rest = lines.pop();
  for (const line of lines) {
    if (!line.startsWith("data: {")) continue;
    const chunk = JSON.parse(line.slice(6));
    answer += chunk.choices[0]?.${text} ?? "";
  }
}
console.log(answer);`;
}
