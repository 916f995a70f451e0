"""Tensor types made of the project's axis words, each spelt once.

The axis words are layer, batch, pos, query_pos, key_pos, head, d_model, d_head, d_mlp and d_vocab.
Annotations, einops patterns, columns of tables and axes of plots use the same words. Only aliases
belong here: names for tensors that several modules pass to each other.
"""

from jaxtyping import Bool, Float, Int
from torch import Tensor

Tokens = Int[Tensor, "batch pos"]
Resid = Float[Tensor, "batch pos d_model"]
Logits = Float[Tensor, "batch pos d_vocab"]
HeadVectors = Float[Tensor, "batch pos head d_head"]
"""q, k, v or z: one vector for each position and head."""
Pattern = Float[Tensor, "batch head query_pos key_pos"]
"""Attention probabilities (each row sums to 1) or, before the softmax, scores."""
RowValue = Float[Tensor, "batch head query_pos"]
"""One number for each query row: log-sum-exp, entropy."""
PositionMask = Bool[Tensor, "batch pos"]
GivenMask = Bool[Tensor, "#batch pos"] | Int[Tensor, "#batch pos"]
"""An attention_mask as callers give it: True or 1 at real tokens, one row for all or for each."""
