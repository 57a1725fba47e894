"""`connect`: configurations of coding agents for a running server."""
