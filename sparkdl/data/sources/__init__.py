"""Opens raw tables of all formats as DataFrames. Runs on the driver and in tasks."""
