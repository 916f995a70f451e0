"""Conversion of config and weights between transformers families and HookedGPT.

One file a family: its config and its weights in both directions, as tables. The list of families
is `lab.families.registry`'s. Beside them stand where foreign weights come from (live models,
folders, GGUF files), where translated ones are kept, and tokenizers; the door is `lab.pretrained`.
"""
