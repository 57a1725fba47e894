"""Parts of a request: validated, and translated into what the model needs."""
