// The conversation: settings on one side, one column for each answer that is compared.

import { call, stream, Wire } from "./api.js";
import { KINDS, SAMPLES, valueOf, verdict } from "./constraints.js";
import { button, element, field, problem, select, setOptions } from "./dom.js";
import { inspector } from "./inspect.js";
import { DIALECTS, newAnswer } from "./turn.js";

const WEATHER = {
  name: "get_weather",
  description: "The weather of a city.",
  parameters: {
    type: "object",
    properties: { city: { type: "string" } },
    required: ["city"],
    additionalProperties: false,
  },
  strict: true,
};

// Name -> the settings that it changes and the message
const EXAMPLES = {
  "A question": { text: "What is Triton?" },
  "A JSON schema": { text: "Is it rainy in Bergen?", constraint: "schema" },
  "A tool and a schema": {
    text: "Is it rainy in Bergen?", constraint: "schema", tools: [WEATHER], choice: "required",
  },
};

const number = control => control.value === "" ? undefined : Number(control.value);

const named = models => models.filter(model => model.capabilities.chat).map(model => model.id);

export function chatView(models) {
  const view = new Chat(named(models));
  view.root.update = changed => view.settings.setModels(named(changed));
  return view.root;
}

class Chat {
  constructor(models) {
    this.columns = [];
    this.turns = 0;
    this.attached = { images: [], audio: [] };
    this.settings = new Settings(models, () => this.reset());
    this.text = element("textarea", { rows: 3, onkeydown: event => this.onKey(event) });
    this.send = button("Send", () => this.sendText(), { class: "primary" });
    this.stop = button("Stop", () => this.columns.forEach(each => each.stop()), { disabled: true });
    this.media = element("ul", { class: "attached", "aria-label": "Attached" });
    this.failure = element("div");
    this.log = element("div", { class: "columns", role: "log", "aria-label": "Conversation" });
    this.root = element("div", { class: "chat" },
      this.settings.root,
      element("section", { class: "talk", "aria-label": "Chat" },
        element("div", { class: "row", role: "group", "aria-label": "Examples" },
          Object.keys(EXAMPLES).map(name => button(name, () => this.useExample(name)))),
        this.log,
        this.failure,
        field("Message", this.text, "Enter sends, Shift+Enter begins a line."),
        this.media,
        element("div", { class: "row" }, this.send, this.stop,
          button("Clear", () => this.reset()), this.attachButton())));
    this.reset();
  }

  reset() {
    this.columns.forEach(each => each.stop());
    this.columns = this.settings.columns().map(each => new Column(this, each));
    this.log.replaceChildren(...this.columns.map(each => each.root));
  }

  onKey(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    this.sendText();
  }

  useExample(name) {
    const { text, constraint = "none", tools = [], choice = "auto" } = EXAMPLES[name];
    this.settings.set(constraint, tools, choice);
    this.reset();
    this.text.value = text;
    this.send.focus();
  }

  attachButton() {
    const input = element("input", { type: "file", multiple: true, hidden: true,
      accept: "image/*,audio/*", "aria-label": "Images and audio",
      onchange: () => this.attach(input) });
    return [button("Attach images or audio", () => input.click()), input];
  }

  async attach(input) {
    for (const file of input.files) {
      const url = await dataUrl(file);
      const kind = file.type.startsWith("image/") ? "images" : "audio";
      const part = kind === "images" ? url
        : { data: url.split(",")[1], format: file.name.split(".").pop().toLowerCase() };
      this.attached[kind].push(part);
      const item = element("li", {},
        kind === "images" && element("img", { src: url, alt: file.name }), file.name,
        button("Remove", () => {
          this.attached[kind] = this.attached[kind].filter(each => each !== part);
          item.remove();
        }, { "aria-label": `Remove ${file.name}` }));
      this.media.append(item);
    }
    input.value = "";
  }

  sendText() {
    if (!this.stop.disabled || this.text.value.trim() === "") return;
    const message = { role: "user", text: this.text.value, ...this.attached, turn: this.turns++ };
    this.text.value = "";
    this.attached = { images: [], audio: [] };
    this.media.replaceChildren();
    this.run(this.columns, message);
  }

  // Sends a message in each of the columns; the settings are read once for all.
  async run(columns, ...messages) {
    let settings;
    try { settings = this.settings.read(); } catch (error) {
      this.failure.replaceChildren(problem(error));
      this.text.value ||= messages[0].text;
      return;
    }
    this.failure.replaceChildren();
    this.busy(true);
    try {
      await Promise.all(columns.map(column => column.run(settings, messages)));
    } finally { this.busy(false); }
  }

  busy(running) {
    this.send.disabled = running;
    this.stop.disabled = !running;
    this.log.setAttribute("aria-busy", String(running));
  }

  edit(message) {
    this.dropFrom(message.turn);
    this.text.value = message.text;
    this.text.focus();
  }

  resend(message) {
    this.dropFrom(message.turn);
    this.run(this.columns, message);
  }

  dropFrom(turn) {
    this.columns.forEach(each => each.dropFrom(turn));
  }
}

function dataUrl(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(reader.error);
    reader.readAsDataURL(file);
  });
}

class Settings {
  constructor(names, onColumns) {
    const amount = (min, max, step) => element("input", { type: "number", min, max, step });
    this.model = select(names, names[0], onColumns);
    this.second = select(names, names[1] ?? names[0], onColumns);
    this.compare = select([
      ["none", "one answer"], ["model", "two models"], ["dialects", "chat, Responses and Messages"],
    ], "none", () => { this.secondField.hidden = this.compare.value !== "model"; onColumns(); });
    this.dialect = select([["chat", "chat completions"], ["responses", "Responses"],
      ["messages", "Messages"]], "chat", onColumns);
    this.secondField = field("Second model", this.second);
    this.secondField.hidden = true;
    this.system = element("textarea", { rows: 2 });
    this.temperature = amount(0, 2, 0.1);
    this.topP = amount(0, 1, 0.05);
    this.seed = amount(0, 2 ** 31, 1);
    this.maxTokens = amount(1, 1e6, 1);
    this.effort = select([["", "default"], "none", "minimal", "low", "medium", "high"], "");
    this.logprobs = element("input", { type: "checkbox", checked: true });
    this.tools = element("textarea", { rows: 5, spellcheck: "false",
      oninput: () => this.checkSoon() });
    this.choice = select(["auto", "required", "none"], "auto");
    this.kind = select(KINDS, "none", () => this.useKind());
    this.constraint = element("textarea", { rows: 6, spellcheck: "false",
      oninput: () => this.checkSoon() });
    this.constraintField = field("Constraint", this.constraint);
    this.constraintField.hidden = true;
    this.checked = element("p", { role: "status", class: "check" });
    this.root = this.layout();
  }

  layout() {
    const group = (title, open, ...children) =>
      element("details", { open }, element("summary", {}, title), ...children);
    return element("aside", { class: "settings", "aria-label": "Settings" },
      group("Model", true, field("Model", this.model), field("API", this.dialect),
        field("Compare", this.compare), this.secondField),
      group("Constraint and tools", true,
        field("Answer", this.kind), this.constraintField,
        field("Tools, as JSON", this.tools, "An array of functions: name, description, parameters."),
        field("Tool choice", this.choice, "required becomes auto once a result was sent."),
        this.checked),
      group("Sampling", false, field("System message", this.system),
        field("Temperature", this.temperature), field("Top p", this.topP),
        field("Maximum tokens", this.maxTokens), field("Seed", this.seed),
        field("Reasoning effort", this.effort), field("Log probabilities", this.logprobs)));
  }

  setModels(names) {
    setOptions(this.model, names);
    setOptions(this.second, names);
  }

  columns() {
    const one = { model: this.model.value, dialect: this.dialect.value };
    if (this.compare.value === "model") return [one, { ...one, model: this.second.value }];
    if (this.compare.value === "dialects") {
      return Object.keys(DIALECTS).map(dialect => ({ ...one, dialect }));
    }
    return [one];
  }

  set(kind, tools, choice) {
    this.kind.value = kind;
    this.tools.value = tools.length ? JSON.stringify(tools, null, 2) : "";
    this.choice.value = choice;
    this.useKind();
  }

  useKind() {
    this.constraintField.hidden = this.kind.value === "none";
    this.constraint.value = SAMPLES[this.kind.value];
    this.checkSoon();
  }

  // Throws an Error that names the field.
  read() {
    const kind = this.kind.value;
    return {
      system: this.system.value,
      sampling: Object.fromEntries(Object.entries({
        temperature: number(this.temperature), top_p: number(this.topP), seed: number(this.seed),
      }).filter(([, value]) => value !== undefined)),
      maxTokens: number(this.maxTokens),
      effort: this.effort.value,
      logprobs: this.logprobs.checked,
      tools: reading("Tools", () => this.tools.value.trim() ? JSON.parse(this.tools.value) : []),
      toolChoice: this.choice.value,
      constraint: { kind, value: reading("Constraint", () => valueOf(kind, this.constraint.value)) },
    };
  }

  checkSoon() {
    clearTimeout(this.timer);
    this.timer = setTimeout(() => this.check(), 400);
  }

  // Whether this server accepts the constraint and the tools: it renders a prompt with them.
  async check() {
    const shown = text => this.checked.replaceChildren(text);
    let settings;
    try { settings = this.read(); } catch (error) { return shown(error.message); }
    if (settings.constraint.kind === "none" && !settings.tools.length) return shown("");
    const wanted = { ...settings, model: this.model.value, logprobs: false };
    const { stream: _, stream_options: __, ...body } = DIALECTS.chat.request(
      wanted, [{ role: "user", text: "?" }]);
    try {
      await call("v1/chat/completions/render", body);
      shown("The server accepts these.");
    } catch (error) { shown(`The server refuses these. ${error.message}`); }
  }
}

function reading(name, read) {
  try { return read(); } catch (error) { throw new Error(`${name}: ${error.message}`); }
}

class Column {
  constructor(chat, { model, dialect }) {
    Object.assign(this, { chat, model, dialect, messages: [], abort: null });
    this.list = element("ol", { class: "messages" });
    this.root = element("section", { "aria-label": `${model}, ${dialect}` },
      element("h2", {}, `${model} · ${dialect}`), this.list);
  }

  stop() { this.abort?.abort(); }

  dropFrom(turn) {
    this.messages = this.messages.filter(each => each.turn < turn);
    for (const item of [...this.list.children]) if (item.turn >= turn) item.remove();
  }

  append(message, ...children) {
    const item = element("li", { class: message.role }, ...children);
    item.turn = message.turn;
    this.list.append(item);
    item.scrollIntoView({ block: "nearest" });
    return item;
  }

  add(message) {
    this.messages.push(message);
    if (message.role === "tool") {
      this.append(message, element("h3", {}, `Result of ${message.name}`),
        element("p", { class: "text" }, message.text));
      return;
    }
    this.append(message, element("h3", {}, "You"), element("p", { class: "text" }, message.text),
      message.images.map((url, at) => element("img", { src: url, alt: `Attached image ${at + 1}` })),
      message.audio.map(each => element("p", {}, `Attached audio (${each.format})`)),
      element("div", { class: "row" },
        button("Edit", () => this.chat.edit(message)),
        button("Resend", () => this.chat.resend(message))));
  }

  async run(settings, messages) {
    messages.forEach(each => this.add(each));
    const answered = messages.some(each => each.role === "tool");
    const toolChoice = answered && settings.toolChoice === "required" ? "auto" : settings.toolChoice;
    const own = { ...settings, model: this.model, toolChoice };
    const answer = { ...newAnswer(), turn: messages[0].turn };
    const shown = new ShownAnswer(this, own, answer);
    this.abort = new AbortController();
    try {
      refuse(this.dialect, own, this.messages);
      await shown.receive(DIALECTS[this.dialect], this.messages, this.abort.signal);
    } catch (error) {
      if (error.name === "AbortError") answer.finish = "stopped";
      else shown.fail(error);
    }
    if (answer.text || answer.calls.length) this.messages.push(answer);
    shown.end();
  }
}

// What the other APIs cannot express is an error, not left out.
function refuse(dialect, { constraint }, messages) {
  if (dialect === "chat") return;
  if (!["none", "schema"].includes(constraint.kind)) {
    throw new Error(`Only chat completions take the constraint ${constraint.kind}.`);
  }
  if (messages.some(each => each.audio?.length)) {
    throw new Error("Only chat completions take audio.");
  }
}

class ShownAnswer {
  constructor(column, settings, answer) {
    Object.assign(this, { column, settings, answer, frame: 0, first: null, last: null });
    this.text = document.createTextNode("");
    this.reasoning = document.createTextNode("");
    this.thought = element("details", { class: "reasoning", hidden: true },
      element("summary", {}, "Reasoning"), element("p", { class: "text" }, this.reasoning));
    this.calls = element("div");
    this.verdict = element("p", { class: "check" });
    this.figures = element("p", { class: "figures" });
    this.failure = element("div");
    this.inside = element("details", { class: "inside", ontoggle: () => this.showInside() },
      element("summary", {}, "Inside: wire, tokens, prompt, code"), element("div"));
    column.append(answer, element("h3", {}, "Answer"), this.thought,
      element("p", { class: "text" }, this.text), this.calls, this.failure, this.verdict,
      this.figures, this.inside);
  }

  async receive(dialect, messages, signal) {
    const body = dialect.request(this.settings, messages);
    const chatBody = DIALECTS.chat.request(this.settings, messages);
    this.wire = Object.assign(new Wire(dialect.path, body), { sent: dialect.headers });
    this.turn = { wire: this.wire, answer: this.answer, chatBody };
    for await (const event of stream(this.wire, signal)) {
      const before = this.size();
      dialect.read(this.answer, event);
      if (this.size() > before) this.last = this.wire.since(), this.first ??= this.last;
      this.frame ||= requestAnimationFrame(() => this.paint());
    }
  }

  size() {
    const { text, reasoning, calls } = this.answer;
    return text.length + reasoning.length
      + calls.reduce((sum, each) => sum + each.name.length + each.arguments.length, 0);
  }

  paint(finished = false) {
    this.frame = 0;
    const { text, reasoning, calls } = this.answer;
    this.text.appendData(text.slice(this.text.length));
    this.reasoning.appendData(reasoning.slice(this.reasoning.length));
    this.thought.hidden = reasoning === "";
    if (!finished) {
      this.calls.replaceChildren(...calls.map(each => element("p", { class: "text call" },
        `${each.name}(${each.arguments})`)));
    }
    const { state, detail } = text === "" ? { state: "unchecked", detail: "" }
      : verdict(this.settings.constraint, text, finished);
    this.verdict.className = `check ${state}`;
    this.verdict.textContent = { met: `✓ ${detail}`, broken: `✗ ${detail}` }[state] ?? detail;
  }

  fail(error) {
    this.failure.replaceChildren(problem(error));
  }

  end() {
    cancelAnimationFrame(this.frame);
    this.paint(true);
    this.figures.textContent = this.measured().join(" · ");
    this.showCalls();
    if (this.inside.open) this.showInside();
    if (!this.turn) this.inside.remove();
  }

  measured() {
    const { usage, finish } = this.answer;
    const found = [];
    if (this.first !== null) found.push(`first token after ${this.first.toFixed(0)} ms`);
    const seconds = (this.last - this.first) / 1000;
    if (usage?.output > 1 && seconds > 0) {
      found.push(`${((usage.output - 1) / seconds).toFixed(1)} tokens/s`);
    }
    if (usage) found.push(`${usage.prompt} prompt tokens, ${usage.output} output tokens`);
    if (usage?.prompt) found.push(`${Math.round(100 * (usage.cached ?? 0) / usage.prompt)} % cached`);
    if (finish) found.push(`ended by ${finish}`);
    return found;
  }

  showCalls() {
    const { calls, turn } = this.answer;
    if (!calls.length) return;
    const results = calls.map(() => element("textarea", { rows: 2 },
      JSON.stringify({ temperature: 11, rain: true })));
    const answer = button("Send the results", () => {
      answer.remove();
      this.column.chat.run([this.column], ...calls.map((each, at) => ({
        role: "tool", id: each.id, name: each.name, text: results[at].value, turn,
      })));
    }, { class: "primary" });
    this.calls.replaceChildren(...calls.map((each, at) => element("fieldset", {},
      element("legend", {}, `Call of ${each.name}`),
      element("pre", { tabindex: "0", role: "region", "aria-label": "Arguments" }, each.arguments),
      field("Result", results[at]))), answer);
    if (this.answer.finish !== "stopped") answer.focus();
  }

  showInside() {
    if (!this.inside.open || !this.turn) return;
    this.inside.lastChild.replaceChildren(inspector(this.turn));
  }
}

