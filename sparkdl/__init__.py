"""Train deep networks on the Spark cluster you already have."""
