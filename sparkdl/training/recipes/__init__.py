"""The parts of a training step that settings choose: optimizer, loss, batches, adapters, noise and pruning."""
