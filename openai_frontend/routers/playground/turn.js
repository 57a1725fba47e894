// One turn of a conversation by each API for text. A dialect writes the request from neutral
// messages, and reads its events into a neutral answer:
//   messages: { role: user | assistant | tool, text, reasoning, images, audio, calls, id, name }
//   answer: { text, reasoning, calls: [{ id, name, arguments }], tokens, usage, finish }

export const newAnswer = () => ({
  role: "assistant", text: "", reasoning: "", calls: [], tokens: [], usage: null, finish: null,
});

const parsed = text => { try { return JSON.parse(text); } catch { return {}; } };

// --- chat ---

function chatMessage(message) {
  if (message.role === "tool") {
    return { role: "tool", tool_call_id: message.id, content: message.text };
  }
  if (message.role === "assistant") {
    const calls = message.calls.map(each => ({
      id: each.id, type: "function", function: { name: each.name, arguments: each.arguments },
    }));
    return { role: "assistant", content: message.text || null,
      ...(calls.length && { tool_calls: calls }) };
  }
  const media = [
    ...(message.images ?? []).map(url => ({ type: "image_url", image_url: { url } })),
    ...(message.audio ?? []).map(input_audio => ({ type: "input_audio", input_audio })),
  ];
  const content = media.length ? [...media, { type: "text", text: message.text }] : message.text;
  return { role: "user", content };
}

function chatConstraint({ constraint: { kind, value } }) {
  if (kind === "schema") {
    return { response_format: { type: "json_schema",
      json_schema: { name: "answer", schema: value, strict: true } } };
  }
  return kind === "none" ? {} : { structured_outputs: { [kind]: value } };
}

const chat = {
  path: "v1/chat/completions",
  request: (settings, messages) => ({
    model: settings.model,
    messages: [
      ...(settings.system ? [{ role: "system", content: settings.system }] : []),
      ...messages.map(chatMessage),
    ],
    stream: true,
    stream_options: { include_usage: true },
    ...settings.sampling,
    ...(settings.effort && { reasoning_effort: settings.effort }),
    ...(settings.maxTokens && { max_completion_tokens: settings.maxTokens }),
    ...(settings.logprobs && { logprobs: true, top_logprobs: 5 }),
    ...chatConstraint(settings),
    ...(settings.tools.length && {
      tools: settings.tools.map(each => ({ type: "function", function: each })),
      tool_choice: settings.toolChoice,
    }),
  }),
  read(answer, { data }) {
    if (data === "[DONE]") return;
    const chunk = JSON.parse(data);
    if (chunk.error) throw new Error(chunk.error.message);
    if (chunk.usage) {
      answer.usage = { prompt: chunk.usage.prompt_tokens, output: chunk.usage.completion_tokens,
        cached: chunk.usage.prompt_tokens_details?.cached_tokens };
    }
    const choice = chunk.choices?.[0];
    if (!choice) return;
    answer.text += choice.delta.content ?? "";
    answer.reasoning += choice.delta.reasoning_content ?? choice.delta.reasoning ?? "";
    for (const part of choice.delta.tool_calls ?? []) {
      const call = answer.calls[part.index] ??= { id: part.id, name: "", arguments: "" };
      call.name += part.function?.name ?? "";
      call.arguments += part.function?.arguments ?? "";
    }
    answer.tokens.push(...(choice.logprobs?.content ?? []));
    answer.finish = choice.finish_reason ?? answer.finish;
  },
};

// --- Responses ---

function responseItems(message) {
  if (message.role === "tool") {
    return [{ type: "function_call_output", call_id: message.id, output: message.text }];
  }
  if (message.role === "assistant") {
    const text = { role: "assistant", content: [{ type: "output_text", text: message.text }] };
    return [...(message.text ? [text] : []), ...message.calls.map(each => ({
      type: "function_call", call_id: each.id, name: each.name, arguments: each.arguments,
    }))];
  }
  return [{ role: "user", content: [
    ...(message.images ?? []).map(image_url => ({ type: "input_image", image_url })),
    { type: "input_text", text: message.text },
  ] }];
}

const responses = {
  path: "v1/responses",
  request: (settings, messages) => ({
    model: settings.model,
    ...(settings.system && { instructions: settings.system }),
    input: messages.flatMap(responseItems),
    stream: true,
    store: false,
    ...settings.sampling,
    ...(settings.effort && { reasoning: { effort: settings.effort } }),
    ...(settings.maxTokens && { max_output_tokens: settings.maxTokens }),
    ...(settings.logprobs && {
      include: ["message.output_text.logprobs"], top_logprobs: 5,
    }),
    ...(settings.constraint.kind === "schema" && { text: { format: {
      type: "json_schema", name: "answer", schema: settings.constraint.value, strict: true,
    } } }),
    ...(settings.tools.length && {
      tools: settings.tools.map(each => ({ type: "function", ...each })),
      tool_choice: settings.toolChoice,
    }),
  }),
  read(answer, { data }) {
    if (data === "[DONE]") return;
    const event = JSON.parse(data);
    const call = () => answer.calls.find(each => each.item === event.item_id);
    const handlers = {
      "response.output_text.delta": () => {
        answer.text += event.delta;
        answer.tokens.push(...(event.logprobs ?? []));
      },
      "response.reasoning_text.delta": () => { answer.reasoning += event.delta; },
      "response.reasoning_summary_text.delta": () => { answer.reasoning += event.delta; },
      "response.output_item.added": () => {
        const item = event.item;
        if (item.type !== "function_call") return;
        answer.calls.push({ item: item.id, id: item.call_id, name: item.name, arguments: "" });
      },
      "response.function_call_arguments.delta": () => { call().arguments += event.delta; },
      error: () => { throw new Error(event.message ?? event.error?.message); },
    };
    handlers[event.type]?.();
    const { usage, status } = event.response ?? {};
    if (usage) {
      answer.usage = { prompt: usage.input_tokens, output: usage.output_tokens,
        cached: usage.input_tokens_details?.cached_tokens };
      answer.finish = status;
    }
  },
};

// --- Messages ---

function anthropicMessage(message) {
  if (message.role === "tool") {
    return { role: "user", content: [
      { type: "tool_result", tool_use_id: message.id, content: message.text },
    ] };
  }
  if (message.role === "assistant") {
    return { role: "assistant", content: [
      ...(message.text ? [{ type: "text", text: message.text }] : []),
      ...message.calls.map(each => ({
        type: "tool_use", id: each.id, name: each.name, input: parsed(each.arguments),
      })),
    ] };
  }
  return { role: "user", content: [
    ...(message.images ?? []).map(url => {
      const [, media_type, data] = /^data:([^;]+);base64,(.*)$/s.exec(url);
      return { type: "image", source: { type: "base64", media_type, data } };
    }),
    { type: "text", text: message.text },
  ] };
}

const CHOICES = { auto: { type: "auto" }, required: { type: "any" }, none: { type: "none" } };

const messages = {
  path: "v1/messages",
  headers: { "anthropic-version": "2023-06-01" },
  request: (settings, history) => ({
    model: settings.model,
    max_tokens: settings.maxTokens || 1024,
    ...(settings.system && { system: settings.system }),
    messages: history.map(anthropicMessage),
    stream: true,
    ...(settings.sampling.temperature !== undefined && {
      temperature: Math.min(settings.sampling.temperature, 1),
    }),
    ...(settings.sampling.top_p !== undefined && { top_p: settings.sampling.top_p }),
    ...(settings.constraint.kind === "schema" && { output_config: {
      format: { type: "json_schema", schema: settings.constraint.value },
    } }),
    ...(settings.tools.length && {
      tools: settings.tools.map(({ name, description, parameters }) => ({
        name, description, input_schema: parameters,
      })),
      tool_choice: CHOICES[settings.toolChoice],
    }),
  }),
  read(answer, { data }) {
    const event = JSON.parse(data);
    if (event.type === "error") throw new Error(event.error.message);
    if (event.type === "content_block_start" && event.content_block.type === "tool_use") {
      const { id, name } = event.content_block;
      answer.calls.push({ index: event.index, id, name, arguments: "" });
    }
    const { delta } = event;
    if (event.type === "content_block_delta") {
      answer.text += delta.text ?? "";
      answer.reasoning += delta.thinking ?? "";
      if (delta.partial_json !== undefined) {
        answer.calls.find(each => each.index === event.index).arguments += delta.partial_json;
      }
    }
    const usage = event.usage ?? event.message?.usage;
    if (usage) {
      const cached = usage.cache_read_input_tokens ?? answer.usage?.cached ?? 0;
      const fresh = usage.input_tokens ?? (answer.usage?.prompt ?? 0) - cached;
      answer.usage = { prompt: fresh + cached, cached, output: usage.output_tokens };
    }
    answer.finish = delta?.stop_reason ?? answer.finish;
  },
};

export const DIALECTS = { chat, responses, messages };
