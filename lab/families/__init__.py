"""How each family of transformers models writes down what a HookedGPT computes.

One file a family: its config and its weights in both directions, as tables. The list of families
is `lab.families.registry`'s; files, folders and live models are `lab.pretrained`'s.
"""
