"""LoRA adapters: their files, the catalog of each model, and the models that they make."""
