// Every model with its state, what it can do, and why it cannot serve.

import { call, serves } from "./api.js";
import { button, element, problem, table } from "./dom.js";

// Name of the route below /v1/models/{id} -> the states in which it makes sense
const CHANGES = {
  load: ["unloaded", "failed", "loaded"],
  unload: ["loaded"],
  sleep: ["loaded"],
  wake: ["sleeping"],
};

const LABELS = { "load loaded": "reload" };

export function modelsView(models, reload) {
  const outcome = element("div", { role: "status" });
  const content = element("div");
  const root = element("section", { "aria-label": "Models" }, element("h2", {}, "Models"), outcome,
    element("div", { class: "row" }, button("Refresh", reload)), content);
  root.update = changed => {
    const lists = element("div", {}, changed.length
      ? element("ul", { class: "cards" }, changed.map(model => card(model, change)))
      : element("p", {}, "No model serves OpenAI's API."));
    repository(changed, change).then(found => lists.append(...found));
    content.replaceChildren(lists);
  };
  root.update(models);

  // The focus stays at the model, whose buttons are others afterwards.
  async function change(model, action) {
    outcome.replaceChildren(`${model.id}: ${action} …`);
    try {
      await call(`v1/models/${encoded(model.id)}/${action}`, {});
      await reload();
      outcome.replaceChildren(`${model.id}: ${action} done.`);
      const heads = [...content.querySelectorAll(".card h3")];
      (heads.find(each => each.textContent === model.id) ?? root.querySelector("button")).focus();
    } catch (error) { outcome.replaceChildren(problem(error)); }
  }
  return root;
}

// An id may contain slashes, which are part of the path.
const encoded = id => id.split("/").map(encodeURIComponent).join("/");

function card(model, change) {
  const state = model.status?.value ?? (model.ready ? "loaded" : "unknown");
  const abilities = Object.keys(model.capabilities).filter(name => model.capabilities[name]);
  const facts = [
    ["Context", model.max_model_len && `${model.max_model_len.toLocaleString("en")} tokens`],
    ["Longest answer", model.max_output_tokens && `${model.max_output_tokens} tokens`],
    ["Another name of", model.root !== model.id && model.root],
    ["Adapter of", model.parent],
    ["Description", model.description],
    ["Without", model.limitations?.join("; ")],
  ].filter(([, value]) => value);
  const actions = element("div", { class: "row" });
  for (const [action, states] of Object.entries(CHANGES)) {
    if (!states.includes(state)) continue;
    serves(`/v1/models/{id}/${action}`).then(known => known && actions.append(
      button(LABELS[`${action} ${state}`] ?? action, () => change(model, action),
        { "aria-description": model.id })));
  }
  return element("li", { class: "card" },
    element("h3", { tabindex: "-1" }, model.id), element("span", { class: `state ${state}` }, state),
    element("ul", { class: "marks", "aria-label": "Capabilities" },
      abilities.map(name => element("li", {}, name))),
    element("dl", {}, facts.map(([name, value]) =>
      element("div", {}, element("dt", {}, name), element("dd", {}, value)))),
    model.error && element("p", { class: "error" }, model.error),
    actions);
}

// Triton's list also has models that are not OpenAI's: steps of ensembles, plain tensors, and those
// that failed or are not loaded.
async function repository(models, change) {
  let index;
  try { index = await call("v2/repository/index", {}); } catch { return []; }
  const loads = await serves("/v1/models/{id}/load");
  const listed = new Set(models.map(model => model.id));
  const action = ({ name, state }) => loads && state !== "READY" && !listed.has(name)
    ? button("load", () => change({ id: name }, "load"), { "aria-label": `load ${name}` }) : "";
  const rows = index.map(each => [
    each.name, each.version ?? "", each.state ?? "", each.reason ?? "", action(each)]);
  return [element("h2", {}, "Model repository"),
    table("Triton's models", ["model", "version", "state", "reason", "action"], rows)];
}
