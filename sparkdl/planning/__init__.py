"""Predicts what training takes on a cluster: measures exchanges and steps, and extrapolates to other numbers of ranks.

The driver calls `plan_training` and `train`. Nothing is imported here, because most runs have nothing to plan.
"""
