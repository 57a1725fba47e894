"""OpenAI's Responses API, stateless: items in, items out, as one object or a stream of events."""
