"""Generated output as OpenAI's responses: complete or in chunks."""
