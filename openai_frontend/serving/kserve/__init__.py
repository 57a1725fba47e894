"""What the requests of KServe's v2 protocol mean: no HTTP, no bytes of tensors."""
