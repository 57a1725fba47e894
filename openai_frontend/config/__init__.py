"""Settings, model options and their sources: flags, environment, YAML."""
