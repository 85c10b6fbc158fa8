"""Benchmarks: one module each, progress on stderr, one JSON object last on stdout."""
