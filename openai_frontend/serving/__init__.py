"""What OpenAI's fields mean: requests to generations, deltas to answers. No HTTP, no tensors."""
