// Requests to this server. Addresses are relative to this file: the page also works below a proxy's
// prefix, with and without a slash after it.

const ROOT = new URL("..", import.meta.url);

export const address = path => new URL(path, ROOT).href;

const STORED = "openai-frontend-key"; // in this tab only

export const key = {
  get: () => sessionStorage.getItem(STORED),
  set: value => sessionStorage.setItem(STORED, value),
  forget: () => sessionStorage.removeItem(STORED),
};

export class ApiError extends Error {
  constructor(status, body) {
    super(`${status}: ${body?.error?.message ?? body?.error ?? "no message"}`);
    this.status = status;
  }
}

// The wire of one request: what was sent, and each part of the answer with its time in
// milliseconds since then.
export class Wire {
  constructor(path, body) {
    Object.assign(this, { path, body, events: [], status: null, headers: [], begun: null });
  }
  since() { return performance.now() - this.begun; }
  record(text) { this.events.push({ ms: this.since(), text }); }
}

function init(body, options) {
  const headers = new Headers(options.headers);
  if (key.get()) headers.set("authorization", `Bearer ${key.get()}`);
  if (body === undefined) return { ...options, headers };
  if (body instanceof FormData) {
    // The server takes no form without this header: any page could send one
    if (!key.get()) headers.set("authorization", "Bearer none");
    return { method: "POST", ...options, headers, body };
  }
  headers.set("content-type", "application/json");
  return { method: "POST", ...options, headers, body: JSON.stringify(body) };
}

async function read(response) {
  const text = await response.text();
  let body;
  try { body = JSON.parse(text); } catch { body = text; }
  if (!response.ok) throw new ApiError(response.status, body);
  return body;
}

// GET without a body, else POST. Resolves to JSON, or to text if the answer is none.
export async function call(path, body, options = {}) {
  return read(await fetch(address(path), init(body, options)));
}

// The server-sent events of a POST, as { event, data }; each is recorded in the wire.
export async function* stream(wire, signal) {
  wire.begun = performance.now();
  const response = await fetch(address(wire.path), init(wire.body, { signal, headers: wire.sent ?? {} }));
  wire.status = response.status;
  wire.headers = [...response.headers];
  if (!response.ok) {
    const body = await response.text();
    wire.record(body);
    let parsed;
    try { parsed = JSON.parse(body); } catch { parsed = null; }
    throw new ApiError(response.status, parsed);
  }
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  let rest = "";
  for (;;) {
    const { done, value } = await reader.read();
    if (done) break;
    const frames = (rest + decoder.decode(value, { stream: true })).split(/\r?\n\r?\n/);
    rest = frames.pop();
    for (const frame of frames) {
      wire.record(frame);
      const parsed = parse(frame);
      if (parsed.data !== "") yield parsed;
    }
  }
}

function parse(frame) {
  const found = { event: "message", data: [] };
  for (const line of frame.split(/\r?\n/)) {
    if (line.startsWith("event:")) found.event = line.slice(6).trim();
    if (line.startsWith("data:")) found.data.push(line.slice(5).replace(/^ /, ""));
  }
  return { event: found.event, data: found.data.join("\n") };
}

let paths;

// Whether this server has a route, by its OpenAPI document, which is read once.
export async function serves(path) {
  paths ??= call("openapi.json").then(document => new Set(Object.keys(document.paths)));
  try { return (await paths).has(path); } catch { return false; }
}
