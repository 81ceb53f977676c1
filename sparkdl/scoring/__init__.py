"""Applies a registered model to a DataFrame, or to rows in memory.

This file imports nothing, because scoring tasks import the package, too, and do not need MLflow.
"""
