"""Benchmarks: each runs against a named rival in the same run, and prints a ratio. No test asserts a time."""
