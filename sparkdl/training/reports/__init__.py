"""What a run says of itself: figures of steps, where time goes, progress, and the verdict."""
