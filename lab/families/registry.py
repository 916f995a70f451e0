"""The list of families that a HookedGPT converts from and to."""

from lab.families.family import Family
from lab.families.gpt2 import GPT2
from lab.families.gpt_neox import GPT_NEOX
from lab.families.llama import LLAMA
from lab.naming import quoted, unknown_name

FAMILIES: tuple[Family, ...] = (GPT2, LLAMA, GPT_NEOX)


def get_family(model_type: object) -> Family:
    """Return the family of a transformers model_type; an unknown one is an error that lists them.

    Raises:
        ValueError: No family is called so.
    """
    for family in FAMILIES:
        if family.name == model_type:
            return family
    got = model_type if isinstance(model_type, str) else quoted(model_type)
    raise ValueError(
        f"{unknown_name('model_type', got, [family.name for family in FAMILIES])}; analyse other "
        "families with TransformerBridge.boot_transformers"
    )
