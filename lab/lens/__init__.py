"""TransformerLens around a model: its surface, its old checkpoints, the way to its own models.

Nothing here computes an activation: that is `lab.model`.
"""
