"""Reads the files of a dataset into batches of tensors. Runs on ranks and in tasks."""
