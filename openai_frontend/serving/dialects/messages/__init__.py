"""Anthropic's Messages API: blocks in, blocks out, as one message or a stream of events."""
