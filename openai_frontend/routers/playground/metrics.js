// The text of /metrics as samples, and figures of the time between two of them.

const LINE = /^([a-zA-Z_:][\w:]*)(?:\{(.*)\})? (\S+)/;
const LABEL = /(\w+)="((?:[^"\\]|\\.)*)"/g;

// Name -> samples as { labels, value }
export function parse(text) {
  const samples = new Map();
  for (const line of text.split("\n")) {
    const found = LINE.exec(line);
    if (!found) continue;
    const [, name, labels = "", value] = found;
    if (!samples.has(name)) samples.set(name, []);
    samples.get(name).push({ value: Number(value),
      labels: Object.fromEntries([...labels.matchAll(LABEL)].map(([, key, each]) => [key, each])) });
  }
  return samples;
}

const matching = (scrape, name, fits) => (scrape.samples.get(name) ?? []).filter(
  each => fits(each.labels));
const all = () => true;

// The sum by a label's value
export function sums(scrape, name, label, fits = all) {
  const found = new Map();
  for (const { labels, value } of matching(scrape, name, fits)) {
    const key = labels[label] ?? "";
    found.set(key, (found.get(key) ?? 0) + value);
  }
  return found;
}

// Increase per second by a label's value. A counter that fell was reset in between.
export function rates(earlier, now, name, label, fits = all) {
  const before = sums(earlier, name, label, fits);
  const seconds = (now.at - earlier.at) / 1000;
  return new Map([...sums(now, name, label, fits)].map(([key, value]) => {
    const start = before.get(key) ?? 0;
    return [key, seconds > 0 ? (value >= start ? value - start : value) / seconds : 0];
  }));
}

// A quantile of a histogram over all its series, linear within a bucket; null without observations.
export function quantile(earlier, now, name, share) {
  const buckets = [...rates(earlier, now, `${name}_bucket`, "le")]
    .map(([bound, count]) => [bound === "+Inf" ? Infinity : Number(bound), count])
    .sort(([a], [b]) => a - b);
  const total = buckets.at(-1)?.[1] ?? 0;
  if (!total) return null;
  let [low, below] = [0, 0];
  for (const [bound, count] of buckets) {
    if (count >= share * total) {
      if (bound === Infinity || count === below) return low;
      return low + (bound - low) * (share * total - below) / (count - below);
    }
    [low, below] = [bound, count];
  }
  return low;
}
