"""The axis words of the project: one word an axis, everywhere.

The same words stand in tensor annotations, in einops patterns, in the columns of every table and on
the axes of every plot. Nothing else belongs here, torch least of all.
"""

LAYER = "layer"
BATCH = "batch"
POS = "pos"
QUERY_POS = "query_pos"
KEY_POS = "key_pos"
HEAD = "head"
D_MODEL = "d_model"
D_HEAD = "d_head"
D_MLP = "d_mlp"
D_VOCAB = "d_vocab"
