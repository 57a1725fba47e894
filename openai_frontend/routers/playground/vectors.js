// Embeddings with their similarities, reranking, classification and moderation.

import { call, serves } from "./api.js";
import { button, element, field, problem, select, table } from "./dom.js";
import { codePanel } from "./inspect.js";

const TEXTS = "A warm day\nSunny weather\nBread is baked in an oven";
const QUERY = "What is the weather like?";

const lines = control => control.value.split("\n").filter(line => line.trim() !== "");

export function vectorsView(models) {
  const able = name => models.filter(each => each.capabilities[name]).map(each => each.id);
  return element("div", { class: "cards" },
    embeddings(able("embeddings")), reranking(able("rerank")),
    ifServed("/v1/classify", able("classification"), classification),
    ifServed("/v1/moderations", able("moderation"), moderation));
}

// A card that is shown if the server has the route and models for it.
function ifServed(path, names, card) {
  const shown = element("div");
  serves(path).then(known => known && names.length && shown.replaceChildren(card(names)));
  return shown;
}

// A card with a form; `run` gets the model's name, a function that sends its request, and where the
// answer is shown. It returns what the answer shows.
export function task(title, names, fields, run) {
  const heading = element("h2", {}, title);
  if (!names.length) {
    return element("section", { class: "card", "aria-label": title }, heading,
      element("p", {}, "No model is able to do this."));
  }
  const model = select(names, names[0]);
  const output = element("div", { "aria-live": "polite" });
  const start = button("Run", async () => {
    start.disabled = true;
    const began = performance.now();
    let wire;
    const send = (path, body) => call(path, (wire = { path, body }).body);
    try {
      const shown = await run(model.value, send, output);
      const took = element("p", { class: "figures" },
        `${(performance.now() - began).toFixed(0)} ms`);
      if (shown) output.replaceChildren(...[shown].flat(), took);
      else output.append(took);
      if (wire) {
        output.append(element("details", { class: "inside" }, element("summary", {}, "Code"),
          codePanel({ wire })));
      }
    } catch (error) { output.replaceChildren(problem(error)); } finally { start.disabled = false; }
  }, { class: "primary" });
  return element("section", { class: "card", "aria-label": title }, heading,
    field("Model", model), fields, element("div", { class: "row" }, start), output);
}

function embeddings(names) {
  const texts = element("textarea", { rows: 4 }, TEXTS);
  return task("Embeddings", names, [field("Texts, one per line", texts)], async (model, send) => {
    const input = lines(texts);
    const answer = await send("v1/embeddings", { model, input });
    const vectors = answer.data.map(each => each.embedding);
    const rows = vectors.map((vector, index) => [input[index],
      ...vectors.map(other => similarity(cosine(vector, other)))]);
    return [
      element("p", {}, `${vectors[0].length} dimensions, ${answer.usage.prompt_tokens} tokens`),
      table("Cosine similarities", ["text", ...input.map((_, index) => `${index + 1}`)], rows),
    ];
  });
}

export function cosine(a, b) {
  const dot = (x, y) => x.reduce((sum, value, index) => sum + value * y[index], 0);
  return dot(a, b) / Math.sqrt(dot(a, a) * dot(b, b));
}

const similarity = value => element("span", { class: `similar-${Math.max(0, Math.floor(value * 4.99))}` },
  value.toFixed(3));

function reranking(names) {
  const query = element("input", { value: QUERY });
  const documents = element("textarea", { rows: 4 }, TEXTS);
  const fields = [field("Query", query), field("Documents, one per line", documents)];
  return task("Rerank", names, fields, async (model, send) => {
    const texts = lines(documents);
    const answer = await send("v1/rerank", { model, query: query.value, documents: texts });
    return table("Documents by relevance", ["document", "score"],
      answer.results.map(each => [texts[each.index], each.relevance_score.toFixed(4)]));
  });
}

function classification(names) {
  const texts = element("textarea", { rows: 4 }, TEXTS);
  return task("Classify", names, [field("Texts, one per line", texts)], async (model, send) => {
    const input = lines(texts);
    const answer = await send("v1/classify", { model, input });
    return table("Labels", ["text", "label", "probability"], answer.data.map(each =>
      [input[each.index], each.label ?? "", Math.max(...each.probs).toFixed(4)]));
  });
}

function moderation(names) {
  const texts = element("textarea", { rows: 4 }, TEXTS);
  return task("Moderate", names, [field("Texts, one per line", texts)], async (model, send) => {
    const input = lines(texts);
    const answer = await send("v1/moderations", { model, input });
    return table("Moderation", ["text", "flagged", "highest category", "score"],
      answer.results.map((each, index) => {
        const [name, score] = Object.entries(each.category_scores)
          .reduce((most, other) => (other[1] > most[1] ? other : most));
        return [input[index], each.flagged ? "yes" : "no", name, score.toFixed(4)];
      }));
  });
}
