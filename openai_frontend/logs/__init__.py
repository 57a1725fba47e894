"""The format of the process' log, and how it is written."""
