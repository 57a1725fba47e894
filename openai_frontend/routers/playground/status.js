// The last minutes of the server, from /metrics alone.

import { call } from "./api.js";
import { element, problem, table } from "./dom.js";
import { parse, quantile, rates, sums } from "./metrics.js";

const INTERVAL_MS = 2000;
const KEPT = 150; // points: five minutes
const WINDOW = 5; // scrapes over which rates and quantiles are computed

const OWN = "openai_frontend";
const TTFT = `${OWN}_time_to_first_token_seconds`;
const GAPS = ["vllm:inter_token_latency_seconds", `${OWN}_time_per_output_token_seconds`];

const number = value => value >= 100 || Number.isInteger(value) ? value.toFixed(0) : value.toFixed(1);
const seconds = value => value >= 1 ? `${value.toFixed(2)} s` : `${(value * 1000).toFixed(1)} ms`;
const percent = value => `${(100 * value).toFixed(0)} %`;
const gibibytes = value => `${(value / 2 ** 30).toFixed(1)} GiB`;

const quantiles = (earlier, now, name) => new Map([0.5, 0.9, 0.99].map(
  share => [`p${100 * share}`, quantile(earlier, now, name, share)]));

const added = (...maps) => {
  const total = new Map();
  for (const [key, value] of maps.flatMap(each => [...each])) {
    total.set(key, (total.get(key) ?? 0) + value);
  }
  return total;
};

// Title, unit, and the series of two scrapes: name -> value, or null without observations
const PANELS = [
  ["Requests running", number, (_, now) => sums(now, `${OWN}_requests_running`, "model")],
  ["Requests waiting", number, (_, now) => added(
    sums(now, `${OWN}_requests_waiting`, "model"), sums(now, "vllm:num_requests_waiting", "model"),
    sums(now, "nv_trt_llm_request_metrics", "model", each => each.request_type === "waiting"))],
  ["Output tokens per second", number,
    (earlier, now) => rates(earlier, now, `${OWN}_output_tokens_total`, "model")],
  ["Time to first token", seconds, (earlier, now) => quantiles(earlier, now, TTFT)],
  ["Time between tokens", seconds, (earlier, now) => quantiles(earlier, now,
    GAPS.find(name => now.samples.has(`${name}_bucket`)) ?? GAPS[1])],
  ["KV cache", percent, (_, now) => added(sums(now, "vllm:kv_cache_usage_perc", "model"),
    sums(now, "nv_trt_llm_kv_cache_block_metrics", "model",
      each => each.kv_cache_block_type === "fraction"))],
  ["GPU memory", gibibytes, (_, now) => sums(now, "nv_gpu_memory_used_bytes", "gpu_uuid")],
  ["Errors per second", number, (earlier, now) => new Map([
    ["5xx", total(rates(earlier, now, `${OWN}_requests_total`, "status",
      each => each.status.startsWith("5")))],
    ["rejected", total(rates(earlier, now, `${OWN}_requests_rejected_total`, "reason"))],
  ])],
];

const total = map => [...map.values()].reduce((sum, each) => sum + each, 0);

export function statusView() {
  const failure = element("div");
  const panels = PANELS.map(panel => new Panel(...panel));
  const scrapes = [];
  const root = element("section", { "aria-label": "Status" }, element("h2", {}, "Status"), failure,
    element("div", { class: "cards plots" }, panels.map(each => each.root)));

  async function scrape() {
    try {
      const text = await call("metrics");
      scrapes.push({ at: performance.now(), samples: parse(text) });
      if (scrapes.length > WINDOW) scrapes.shift();
      panels.forEach(each => each.add(scrapes[0], scrapes.at(-1)));
      failure.replaceChildren();
    } catch (error) {
      scrapes.length = 0;
      failure.replaceChildren(problem(error));
    }
  }

  // Asks the server only while someone can see the answer.
  async function loop() {
    if (!root.isConnected) { running = false; return; }
    if (!document.hidden) await scrape();
    setTimeout(loop, INTERVAL_MS);
  }
  let running = false;
  root.shown = () => { if (!running) { running = true; loop(); } };
  root.update = () => {};
  return root;
}

const SVG = "http://www.w3.org/2000/svg";
const [WIDTH, HEIGHT] = [300, 90];
const COLOURS = 6;

class Panel {
  constructor(title, unit, read) {
    Object.assign(this, { title, unit, read, points: [] });
    this.svg = document.createElementNS(SVG, "svg");
    this.svg.setAttribute("viewBox", `0 0 ${WIDTH} ${HEIGHT}`);
    this.svg.setAttribute("preserveAspectRatio", "none");
    this.svg.setAttribute("role", "img");
    this.top = element("p", { class: "figures" });
    this.latest = element("div");
    this.root = element("section", { class: "card", "aria-label": title },
      element("h3", {}, title), this.top, this.svg, this.latest);
  }

  add(earlier, now) {
    this.points.push(this.read(earlier, now));
    if (this.points.length > KEPT) this.points.shift();
    this.paint();
  }

  paint() {
    const names = [...new Set(this.points.flatMap(each => [...each.keys()]))].sort();
    const values = this.points.flatMap(each => [...each.values()]).filter(Number.isFinite);
    const peak = Math.max(...values, 0);
    this.top.textContent = !names.length ? "The server reports none."
      : values.length ? `highest: ${this.unit(peak)}` : "No observations yet.";
    this.svg.setAttribute("aria-label", `${this.title}, last ${KEPT * INTERVAL_MS / 60000} minutes`);
    this.svg.replaceChildren(...names.map((name, index) => this.line(name, index, peak || 1)));
    const shown = value => Number.isFinite(value) ? this.unit(value) : "–";
    this.latest.replaceChildren(names.length ? table(`${this.title} now`, ["series", "now"],
      names.map((name, index) => [
        element("span", { class: `series series-${index % COLOURS}` }, name || "server"),
        shown(this.points.at(-1).get(name)),
      ])) : "");
  }

  line(name, index, peak) {
    let pen = "M";
    const steps = this.points.map((point, at) => {
      const value = point.get(name);
      if (!Number.isFinite(value)) { pen = "M"; return ""; }
      const x = WIDTH - (this.points.length - 1 - at) * WIDTH / (KEPT - 1);
      const step = `${pen}${x.toFixed(1)} ${(HEIGHT - 3 - (HEIGHT - 6) * value / peak).toFixed(1)}`;
      pen = "L";
      return step;
    });
    const path = document.createElementNS(SVG, "path");
    path.setAttribute("d", steps.join(""));
    path.setAttribute("class", `line-${index % COLOURS}`);
    return path;
  }
}
