"""LoRA adapters: where they lie, what is wrong with them, and what a backend is told of them."""
