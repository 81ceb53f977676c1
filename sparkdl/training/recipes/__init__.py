"""What the settings make of a step: optimizer, loss, batches, adapters, noise and pruning."""
