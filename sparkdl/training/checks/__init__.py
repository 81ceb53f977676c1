"""What is tried before a run begins, so that nothing fails after hours."""
