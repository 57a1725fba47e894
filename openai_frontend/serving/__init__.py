"""The meaning of OpenAI's fields: requests to generations, deltas to answers. No HTTP, no
tensors.
"""
