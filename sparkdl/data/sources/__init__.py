"""Raw tables, whatever they are stored as, opened as DataFrames. Runs on the driver and in tasks."""
