"""The files of a dataset become batches of tensors. Runs on ranks and in tasks."""
