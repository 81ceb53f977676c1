"""Benchmarks: each prints one table, ours beside its rivals, measured in the same run."""
