"""What a model generates, as OpenAI's responses: whole or in chunks."""
