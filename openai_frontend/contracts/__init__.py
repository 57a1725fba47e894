"""Tensor contracts: pure translation between the narrow waist and a model's named tensors."""
