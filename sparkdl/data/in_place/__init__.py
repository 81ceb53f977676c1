"""Training on the Parquet files of others, where they are: no copy, and a card that says what is in them."""
