"""Reports of a run: figures of steps, times, progress, and the verdict on its bottleneck."""
