"""`top`: how a running gateway is doing, model by model, in the terminal."""
