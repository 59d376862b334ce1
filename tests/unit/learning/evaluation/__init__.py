"""How well a model learns."""
