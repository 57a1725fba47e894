"""What a request and a streamed token cost; `docs/benchmarks.md` says how it is measured."""
