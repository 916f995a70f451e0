"""TransformerLens's own tools, with our tables."""
