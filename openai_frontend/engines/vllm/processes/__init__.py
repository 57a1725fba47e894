"""The processes of an engine: the core, its workers and what they inherit."""
