"""Conversion of config and weights between transformers families and HookedGPT.

Each family has one file, with tables for its config and weights in both directions;
`lab.families.registry` lists them. Other modules read foreign weights (live models, folders, GGUF
files), cache converted ones and handle tokenizers. `lab.pretrained` is the entry point.
"""
