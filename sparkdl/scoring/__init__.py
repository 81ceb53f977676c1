"""A registered model over a DataFrame, or over a few rows in memory.

Nothing is imported here: scoring tasks import this room too, and have no use for MLflow.
"""
