"""Generated input for the parsers of untrusted bytes: `make fuzz`."""
