"""Turns a DataFrame into a dataset: rows are split, checked, ordered, and written as row groups of equal size."""
