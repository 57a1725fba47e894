// What is inside of a turn: the wire, the tokens, the prompt that the model got, and the code that
// sends the request again.

import { address, call } from "./api.js";
import { code, element, problem, table, tabs } from "./dom.js";

const MAX_EVENTS = 1000; // shown; the browser would be slow with more

export function inspector(turn) {
  return tabs("Inside this turn", [
    ["Wire", () => wirePanel(turn)],
    ["Tokens", () => tokensPanel(turn)],
    ["Prompt", () => promptPanel(turn)],
    ["Code", () => codePanel(turn)],
  ]);
}

const pretty = value => JSON.stringify(value, null, 2);

function wirePanel({ wire }) {
  const events = wire.events.slice(0, MAX_EVENTS);
  const more = wire.events.length - events.length;
  return [
    element("h4", {}, "Request"),
    code(`POST /${wire.path}\n\n${pretty(wire.body)}`, "Request"),
    element("h4", {}, "Response"),
    code([`status ${wire.status ?? "none yet"}`,
      ...wire.headers.map(pair => pair.join(": "))].join("\n"), "Response headers"),
    element("h4", {}, `Events (${wire.events.length})`),
    element("ol", { class: "events", tabindex: "0", "aria-label": "Events" }, events.map(each =>
      element("li", {}, element("time", {}, `${each.ms.toFixed(1)} ms`), element("code", {},
        each.text)))),
    more > 0 && element("p", {}, `and ${more} more`),
  ].filter(Boolean);
}

// --- tokens ---

const LEVELS = 5;
// 0: certain, 4: below 2 %
const level = logprob => Math.min(LEVELS - 1, Math.floor(-logprob));
const percent = logprob => `${(100 * Math.exp(logprob)).toFixed(1)} %`;
const visible = token => token.replaceAll("\n", "⏎\n");

function tokensPanel({ answer }) {
  if (!answer.tokens.length) {
    return [element("p", {}, "No log probabilities. Switch them on in the settings; the Messages API "
      + "has none.")];
  }
  const detail = element("div", { "aria-live": "polite" });
  const show = token => detail.replaceChildren(alternatives(token));
  show(answer.tokens[0]);
  return [
    element("p", {}, "Choose a token to see its alternatives. From green to red, it is less probable."),
    element("div", { class: "tokens" }, answer.tokens.map(token => element("button", {
      type: "button", class: `token level-${level(token.logprob)}`,
      "aria-label": `${token.token} ${percent(token.logprob)}`, onclick: () => show(token),
    }, visible(token.token)))),
    detail,
  ];
}

function alternatives(token) {
  const rows = (token.top_logprobs ?? []).map(each => [
    element("code", {}, JSON.stringify(each.token)), percent(each.logprob),
    element("meter", { min: 0, max: 1, value: Math.exp(each.logprob),
      "aria-label": `Probability of ${each.token}` }),
  ]);
  return table(`${JSON.stringify(token.token)}: ${percent(token.logprob)}`,
    ["token", "probability", "share"], rows);
}

// --- prompt ---

function promptPanel({ chatBody }) {
  const panel = element("div", { "aria-busy": "true" });
  call("v1/chat/completions/render", { ...chatBody, stream: false, stream_options: undefined }).then(
    rendered => panel.replaceChildren(
      element("p", {}, `${rendered.count} tokens of ${rendered.max_model_len ?? "an unknown context"}`),
      code(rendered.prompt ?? "The model takes no text.", "Prompt"),
      element("h4", {}, "Parameters"),
      code(pretty(rendered.sampling_params), "Parameters")),
    error => panel.replaceChildren(problem(error)),
  ).finally(() => panel.setAttribute("aria-busy", "false"));
  return [panel];
}

// --- code ---

export function curlOf({ path, body, sent }) {
  const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
  const more = Object.entries(sent ?? {}).map(([name, value]) => ` \\\n  -H '${name}: ${value}'`);
  return `curl --no-buffer '${address(path)}' -H 'content-type: application/json'${more.join("")} \\
  -H "authorization: Bearer $OPENAI_API_KEY" \\
  -d '${quoted}'`;
}

// JSON's texts as Python's
function python(value, indent = "") {
  const inner = `${indent}    `;
  const lines = (open, parts, close) => parts.length
    ? `${open}\n${parts.map(part => `${inner}${part},\n`).join("")}${indent}${close}`
    : open + close;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return lines("[", value.map(each => python(each, inner)), "]");
  if (typeof value !== "object") return JSON.stringify(value);
  const known = Object.entries(value).filter(([, each]) => each !== undefined);  // as in JSON
  return lines("{", known.map(
    ([name, each]) => `${JSON.stringify(name)}: ${python(each, inner)}`), "}");
}

// Fields that only servers with vLLM's extensions know go beside OpenAI's.
const EXTRA = ["structured_outputs"];

const openaiClient = () =>
  `client = OpenAI(base_url="${address("v1")}", api_key=os.environ.get("OPENAI_API_KEY", "none"))`;

function openaiCode(body, create, show) {
  const own = Object.entries(body).filter(([name]) => !EXTRA.includes(name));
  const extra = Object.fromEntries(Object.entries(body).filter(([name]) => EXTRA.includes(name)));
  if (Object.keys(extra).length) own.push(["extra_body", extra]);
  const fields = own.map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("");
  return `import os

from openai import OpenAI

${openaiClient()}
${show(`client.${create}(\n${fields})`)}`;
}

const PYTHON = {
  "v1/embeddings": body => openaiCode(body, "embeddings.create", create => `\
for each in ${create}.data:
    print(each.embedding)
`),
  "v1/moderations": body => openaiCode(body, "moderations.create", create => `\
for each in ${create}.results:
    print(each.to_json(indent=None))
`),
  "v1/chat/completions": body => openaiCode(body, "chat.completions.create", create => `\
for chunk in ${create}:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`),
  "v1/responses": body => openaiCode(body, "responses.create", create => `\
for event in ${create}:
    if event.type == "response.output_text.delta":
        print(event.delta, end="", flush=True)
`),
  "v1/messages": body => `import os

from anthropic import Anthropic

client = Anthropic(base_url="${address(".").replace(/\/$/, "")}", api_key=os.environ.get("OPENAI_API_KEY", "none"))
for event in client.messages.create(
${Object.entries(body).map(([name, value]) => `    ${name}=${python(value, "    ")},\n`).join("")}):
    if event.type == "content_block_delta" and event.delta.type == "text_delta":
        print(event.delta.text, end="", flush=True)
`,
};

// Routes without a method in OpenAI's client
const otherCode = ({ path, body }) => `import os

import httpx
from openai import OpenAI

${openaiClient()}
answer = client.post("/${path.replace(/^v1\//, "")}", cast_to=httpx.Response, body=${python(body)})
print(answer.text)
`;

export function pythonOf(wire) {
  return PYTHON[wire.path]?.(wire.body) ?? otherCode(wire);
}

export function javascriptOf({ path, body, sent }) {
  const headers = { "content-type": "application/json", ...sent };
  return `const response = await fetch("${address(path)}", {
  method: "POST",
  headers: {
    ...${JSON.stringify(headers)},
    authorization: \`Bearer \${globalThis.process?.env.OPENAI_API_KEY ?? ""}\`,
  },
  body: JSON.stringify(${pretty(body).replaceAll("\n", "\n  ")}),
});
if (!response.ok) throw new Error(await response.text());
const decoder = new TextDecoder();
for await (const part of response.body) console.log(decoder.decode(part, { stream: true }));
`;
}

export function codePanel({ wire }) {
  return [tabs("Language", [
    ["curl", () => [code(curlOf(wire), "curl")]],
    ["Python", () => [code(pythonOf(wire), "Python")]],
    ["JavaScript", () => [code(javascriptOf(wire), "JavaScript")]],
  ])];
}
