// Constraints on an answer: their editor's values, and whether a text meets them.

export const KINDS = [
  ["none", "none"], ["schema", "JSON schema"], ["regex", "regular expression"],
  ["grammar", "grammar (EBNF or Lark)"], ["choice", "choice, one per line"],
];

export const SAMPLES = {
  none: "",
  schema: JSON.stringify({
    type: "object",
    properties: { city: { type: "string" }, rainy: { type: "boolean" } },
    required: ["city", "rainy"],
    additionalProperties: false,
  }, null, 2),
  regex: "[A-Z][a-z]+ is (rainy|sunny)\\.",
  grammar: 'root ::= "It is " ("rainy" | "sunny") "."',
  choice: "rainy\nsunny",
};

// The value of a request's field. Throws SyntaxError for a schema that is not JSON.
export function valueOf(kind, text) {
  if (kind === "schema") return JSON.parse(text);
  if (kind === "choice") return text.split("\n").filter(line => line !== "");
  return text;
}

const MAX_CHECKED = 100_000; // characters: a pattern with much to try would stop the page

// { state: met | broken | open | unchecked, detail }
export function verdict({ kind, value }, text, finished) {
  if (kind === "none" || text.length > MAX_CHECKED) return { state: "unchecked", detail: "" };
  if (kind === "grammar") {
    return { state: "unchecked", detail: "the engine enforces it; the page has no grammar parser" };
  }
  if (kind === "choice") return choiceVerdict(value, text, finished);
  if (kind === "regex") return regexVerdict(value, text, finished);
  let parsed;
  try { parsed = JSON.parse(text); } catch (error) {
    return finished ? { state: "broken", detail: error.message }
      : { state: "open", detail: "JSON is not complete yet" };
  }
  let problems;
  try { problems = schemaProblems(value, parsed); } catch (error) {  // such as a pattern of Python's
    return { state: "unchecked", detail: `the page cannot check this schema: ${error.message}` };
  }
  return problems.length ? { state: "broken", detail: problems.join("; ") }
    : { state: "met", detail: "matches the schema" };
}

function choiceVerdict(choices, text, finished) {
  if (choices.includes(text)) return { state: "met", detail: "is one of the choices" };
  const begins = choices.some(each => each.startsWith(text));
  if (!finished && begins) return { state: "open", detail: "begins as a choice" };
  return { state: "broken", detail: "is none of the choices" };
}

function regexVerdict(pattern, text, finished) {
  if (!finished) return { state: "open", detail: "checked at the end" };
  let expression;
  try { expression = new RegExp(`^(?:${pattern})$`, "su"); } catch {
    return { state: "unchecked", detail: "the browser does not know this syntax" };
  }
  return expression.test(text) ? { state: "met", detail: "matches the expression" }
    : { state: "broken", detail: "does not match the expression" };
}

const typeOf = value => value === null ? "null" : Array.isArray(value) ? "array" : typeof value;

const isType = (value, type) => type === "integer" ? Number.isInteger(value)
  : typeOf(value) === type;

const same = (a, b) => JSON.stringify(a) === JSON.stringify(b);

function resolve(root, reference) {
  const steps = reference.replace(/^#\/?/, "").split("/").filter(Boolean);
  return steps.reduce(
    (at, step) => at?.[step.replaceAll("~1", "/").replaceAll("~0", "~")], root);
}

const LIMITS = [
  ["minimum", (value, limit) => typeof value !== "number" || value >= limit],
  ["maximum", (value, limit) => typeof value !== "number" || value <= limit],
  ["exclusiveMinimum", (value, limit) => typeof value !== "number" || value > limit],
  ["exclusiveMaximum", (value, limit) => typeof value !== "number" || value < limit],
  ["minLength", (value, limit) => typeof value !== "string" || [...value].length >= limit],
  ["maxLength", (value, limit) => typeof value !== "string" || [...value].length <= limit],
  ["minItems", (value, limit) => !Array.isArray(value) || value.length >= limit],
  ["maxItems", (value, limit) => !Array.isArray(value) || value.length <= limit],
  ["pattern", (value, limit) => typeof value !== "string" || new RegExp(limit, "u").test(value)],
  ["enum", (value, limit) => limit.some(each => same(each, value))],
  ["const", (value, limit) => same(limit, value)],
];

// What a value has against a schema: the keywords that engines enforce.
export function schemaProblems(schema, value, at = "$", root = schema) {
  if (schema === true || schema === undefined) return [];
  if (schema === false) return [`${at} is not allowed`];
  if (schema.$ref) return schemaProblems(resolve(root, schema.$ref), value, at, root);
  const types = schema.type === undefined ? [] : [schema.type].flat();
  if (types.length && !types.some(type => isType(value, type))) {
    return [`${at} is ${typeOf(value)}, not ${types.join(" or ")}`];
  }
  return [
    ...LIMITS.filter(([name, holds]) => name in schema && !holds(value, schema[name]))
      .map(([name]) => `${at} is outside ${name}`),
    ...combined(schema, value, at, root),
    ...(typeOf(value) === "object" ? inObject(schema, value, at, root) : []),
    ...(typeOf(value) === "array" ? inArray(schema, value, at, root) : []),
  ];
}

function combined(schema, value, at, root) {
  const matches = each => schemaProblems(each, value, at, root).length === 0;
  return [
    ...(schema.allOf ?? []).flatMap(each => schemaProblems(each, value, at, root)),
    ...(schema.anyOf && !schema.anyOf.some(matches) ? [`${at} matches none of anyOf`] : []),
    ...(schema.oneOf && schema.oneOf.filter(matches).length !== 1
      ? [`${at} does not match exactly one of oneOf`] : []),
  ];
}

function inObject(schema, value, at, root) {
  const known = schema.properties ?? {};
  return [
    ...(schema.required ?? []).filter(name => !(name in value)).map(name => `${at}.${name} is missing`),
    ...Object.entries(value).flatMap(([name, each]) => schemaProblems(
      Object.hasOwn(known, name) ? known[name] : schema.additionalProperties ?? true,
      each, `${at}.${name}`, root)),
  ];
}

function inArray(schema, value, at, root) {
  const first = schema.prefixItems ?? [];
  return value.flatMap((each, index) =>
    schemaProblems(first[index] ?? schema.items ?? true, each, `${at}[${index}]`, root));
}
