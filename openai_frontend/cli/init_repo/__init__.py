"""`init-repo`: a model repository for a Hugging Face model, every field filled."""
