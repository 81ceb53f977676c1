"""Models whose answers a network learns from (knowledge distillation)."""
