"""Checkpoints and the record of a run: the state between two steps, its shards and manifest, and who may write them."""
