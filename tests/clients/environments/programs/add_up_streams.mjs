// Runs each case with the AI SDK's providers, whole and streamed, and prints what it has added up.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const [url, given, folder] = process.argv.slice(2);
const require = createRequire(`${folder}/package.json`);
const load = (name) => import(pathToFileURL(require.resolve(name)));
const { generateText, streamText, jsonSchema, tool, stepCountIs, Output } = await load("ai");
const { createOpenAI } = await load("@ai-sdk/openai");
const { createAnthropic } = await load("@ai-sdk/anthropic");
const { createOpenResponses } = await load("@ai-sdk/open-responses");

const baseURL = `${url}/v1`;
const openai = createOpenAI({ baseURL, apiKey: "none" });
const anthropic = createAnthropic({ baseURL, apiKey: "none" });
const open = createOpenResponses({ name: "open", url: `${baseURL}/responses`, apiKey: "none" });
const models = {
  "@ai-sdk/openai": (name) => openai.responses(name),
  "@ai-sdk/anthropic": (name) => anthropic(name),
  "@ai-sdk/open-responses": (name) => open(name),
};
const city = jsonSchema({
  type: "object",
  properties: { city: { type: "string" } },
  required: ["city"],
  additionalProperties: false,
});
const results = { weather: "sunny", now: "noon" };

function options(model, it) {
  const tools = {};
  for (const [name, result] of Object.entries(results)) {
    const execute = it.loop ? { execute: async () => result } : {};
    tools[name] = tool({ description: "d", inputSchema: city, ...execute });
  }
  return {
    model: model(it.model),
    prompt: it.prompt,
    maxRetries: 0,
    stopWhen: stepCountIs(3),
    providerOptions: { openai: { store: false, reasoningSummary: "auto", forceReasoning: true } },
    ...(it.tools ? { tools } : {}),
    ...(it.schema ? { output: Output.object({ schema: city }) } : {}),
    ...(it.max_tokens ? { maxOutputTokens: it.max_tokens } : {}),
    onError: () => {},
  };
}

// A stream's provider adds a part with what it was told first.
const isAnswer = (part) => part.kind !== "anthropic.message_start";

async function outcome(model, it, stream) {
  try {
    const result = (stream ? streamText : generateText)(options(model, it));
    if (stream) {
      let failure;
      for await (const part of result.fullStream) if (part.type === "error") failure = part.error;
      if (failure) return { error: failure.message ?? String(failure) };
    }
    const all = stream ? await result.steps : (await result).steps;
    return all.map((step) => ({
      content: step.content.filter(isAnswer),
      text: step.text,
      reasoning: step.reasoningText,
      calls: step.toolCalls,
      finish: step.finishReason,
      usage: step.usage,
      messages: step.response.messages.map((each) =>
        Array.isArray(each.content) ? { ...each, content: each.content.filter(isAnswer) } : each),
    }));
  } catch (error) {
    return { error: error.message };
  }
}

const found = {};
for (const [name, model] of Object.entries(models)) {
  found[name] = {};
  for (const it of JSON.parse(given))
    found[name][it.name] = [await outcome(model, it, false), await outcome(model, it, true)];
}
process.stdout.write(JSON.stringify(found));
