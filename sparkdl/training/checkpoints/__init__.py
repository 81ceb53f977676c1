"""Checkpoints and the record of a run: the state between two steps, shards and manifests, and the run's owner."""
