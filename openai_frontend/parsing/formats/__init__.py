"""How models write tool calls, one file per syntax: its parser, and the families that use it."""
