// Tensors of any model in KServe's protocol: Triton's models, whatever API they serve.

import { call, stream, Wire } from "./api.js";
import { button, code, element, field, problem, select, table } from "./dom.js";

export function tensorsView() {
  const root = element("section", { "aria-label": "Tensors" }, element("h2", {}, "Tensors"));
  call("v2/repository/index", { ready: true }).then(index => {
    const names = [...new Set(index.map(each => each.name))];
    if (names.length) root.append(chooser(names));
    else root.append(element("p", {}, "No model is ready."));
  }, error => root.append(problem(error)));
  return root;
}

function chooser(names) {
  const form = element("div");
  const show = async () => {
    const name = model.value;
    form.replaceChildren();
    const parts = await describe(name);
    if (model.value === name) form.replaceChildren(...parts); // else another one was selected
  };
  const model = select(names, names[0], show);
  show();
  return element("div", {}, field("Model in Triton", model), form);
}

async function describe(name) {
  const path = `v2/models/${encodeURIComponent(name)}`;
  let [metadata, config] = [];
  try {
    [metadata, config] = await Promise.all([call(path), call(`${path}/config`)]);
  } catch (error) { return [problem(error)]; }
  const decoupled = config.model_transaction_policy?.decoupled ?? false;
  const optional = new Set(config.input.filter(each => each.optional).map(each => each.name));
  const first = metadata.inputs[0]?.name;
  const inputs = metadata.inputs.map(each =>
    new Input(each, !optional.has(each.name) || (optional.has(first) && each.name === first)));
  const output = element("div", { "aria-live": "polite" });
  const run = button("Infer", () => infer(path, inputs, output, decoupled), { class: "primary" });
  const tensors = kind => metadata[kind].map(each =>
    [each.name, each.datatype, JSON.stringify(each.shape)]);
  return [
    table(`Outputs of ${name} (${metadata.platform})`, ["name", "datatype", "shape"],
      tensors("outputs")),
    element("h3", {}, "Inputs"), ...inputs.map(each => each.root),
    element("div", { class: "row" }, run), output,
  ];
}

// Unknown dimensions are 1 at first, and all values zero or an empty text.
class Input {
  constructor({ name, datatype, shape }, used) {
    Object.assign(this, { name, datatype });
    const dimensions = shape.map(each => each < 0 ? 1 : each);
    const count = dimensions.reduce((product, each) => product * each, 1);
    const value = { BYTES: "", BOOL: false }[datatype] ?? 0;
    this.used = element("input", { type: "checkbox", checked: used });
    this.shape = element("input", { value: JSON.stringify(dimensions) });
    this.data = element("textarea", { rows: 2, spellcheck: "false" },
      JSON.stringify(Array(Math.min(count, 10_000)).fill(value)));
    this.root = element("fieldset", {}, element("legend", {}, `${name}: ${datatype}`),
      field("Send", this.used), field("Shape", this.shape), field("Data, as JSON", this.data));
  }

  tensor() {
    return { name: this.name, datatype: this.datatype, shape: this.parse("shape"),
      data: this.parse("data") };
  }

  parse(part) {
    try { return JSON.parse(this[part].value); } catch (error) {
      throw new Error(`${this.name}, ${part}: ${error.message}`);
    }
  }
}

async function infer(path, inputs, output, decoupled) {
  const began = performance.now();
  output.replaceChildren();
  try {
    const tensors = inputs.filter(each => each.used.checked).map(each => each.tensor());
    if (decoupled) await generate(path, tensors, output);
    else {
      const { outputs } = await call(`${path}/infer`, { inputs: tensors });
      output.append(...outputs.flatMap(each => [
        element("h3", {}, `${each.name}: ${each.datatype} ${JSON.stringify(each.shape)}`),
        code(JSON.stringify(each.data), each.name),
      ]));
    }
    output.append(element("p", { class: "figures" },
      `${(performance.now() - began).toFixed(0)} ms`));
  } catch (error) { output.append(problem(error)); }
}

// A decoupled model sends any number of responses, which only a stream can carry.
async function generate(path, tensors, output) {
  const body = Object.fromEntries(tensors.map(each => [each.name, each.data]));
  const responses = document.createTextNode("");
  output.append(element("pre", { tabindex: "0", role: "region", "aria-label": "Responses" },
    responses));
  for await (const { data } of stream(new Wire(`${path}/generate_stream`, body))) {
    responses.appendData(`${data}\n`);
  }
}
