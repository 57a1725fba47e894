"""KServe's tensors: as JSON, as binary data, and as the fields of Triton's generate requests."""
