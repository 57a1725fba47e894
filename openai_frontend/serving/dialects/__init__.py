"""The APIs for text from prompts: each reads its requests, and writes the events of the output."""
