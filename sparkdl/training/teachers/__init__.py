"""Knowledge distillation: models from whose outputs a network learns."""
