"""Training on existing Parquet files in place: nothing is copied, and a card describes the rows."""
