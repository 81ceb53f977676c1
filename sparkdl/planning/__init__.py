"""What a training would take on this cluster: exchanges and steps are measured, and predicted for other ranks.

`plan_training` and `train` are what the driver calls. Nothing is imported here: most runs have nothing to plan.
"""
