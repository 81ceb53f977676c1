"""Checks before a run begins, so that errors appear at once and not after hours."""
