"""What a network is called with: one tensor, or several by name. Knows neither Spark nor files.

What a task imports to read or write rows needs no torch, so that names are imported from the files themselves.
"""
