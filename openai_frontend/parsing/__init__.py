"""What a model's text means: content, reasoning and tool calls. No I/O, no HTTP, no OpenAI."""
