"""OpenAI's wire format as types, one file for each resource. Imports nothing of the gateway's."""
