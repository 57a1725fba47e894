"""How models write tool calls, one file per kind; each is configured by a row of a family."""
