"""Facts about hook points by name: old name, the cfg flag that enables it, axes and size.

`lab.model` has the hook points, and `lab.lens.hooked_root` adds hooks to them.
"""

import re

from torch import nn
from transformer_lens.hook_points import HookPoint

from lab.config import ModelConfig
from lab.naming import unknown_name

FLAGGED_HOOKS = {
    "hook_result": "use_attn_result",
    "hook_q_input": "use_split_qkv_input",
    "hook_k_input": "use_split_qkv_input",
    "hook_v_input": "use_split_qkv_input",
    "hook_attn_in": "use_attn_in",
    "hook_mlp_in": "use_hook_mlp_in",
}
"""Hooks on activations that a forward pass computes only on request, and the cfg flag for each.

A hook that is added by name also requests its activation; a filter that matches it (for example
when everything is cached) does not.
"""

BY_HEAD = ("q", "k", "v", "z", "rot_q", "rot_k", "result", "q_input", "k_input", "v_input")
HEAD_HOOKS = frozenset(f"hook_{name}" for name in (*BY_HEAD, "attn_in"))
"""Hooks on [batch, pos, head, ...]; every other activation has its (query) position second last."""

WIDE_HEAD_HOOKS = ("hook_result", "hook_q_input", "hook_k_input", "hook_v_input", "hook_attn_in")
"""Hooks on a vector of d_model for each position and head: n_heads times the residual stream."""


def leaf(hook_name: str) -> str:
    """Return the last part of a hook's name.

    >>> leaf("blocks.0.attn.hook_z")
    'hook_z'
    """
    return hook_name.rpartition(".")[2]


def position_axis(hook_name: str) -> int:
    """Return the axis of positions (of queries, in a matrix), counted from the last axis.

    It also holds if the batch axis was removed.

    >>> position_axis("blocks.0.attn.hook_q_input"), position_axis("blocks.0.attn.hook_pattern")
    (-3, -2)
    """
    return -3 if leaf(hook_name) in HEAD_HOOKS else -2


def present_name(hook_name: str) -> str:
    """Return the present name of a hook that was on the block before TransformerLens 4.0.

    >>> present_name("blocks.1.hook_q_input")
    'blocks.1.attn.hook_q_input'
    """
    return re.sub(r"^(blocks\.\d+)\.(hook_(?:[qkv]_input|attn_in))$", r"\1.attn.\2", hook_name)


def numbers_kept(
    hook_name: str, config: ModelConfig, batch: int, n_pos: int, n_key: int | None = None
) -> int:
    """Return how many numbers an activation has.

    Args:
        hook_name: Name of the activation.
        config: The model.
        batch: Sequences.
        n_pos: Positions of this call.
        n_key: Positions of earlier calls too; None: n_pos.

    >>> config = ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=9)
    >>> numbers_kept("blocks.0.attn.hook_pattern", config, batch=3, n_pos=9)
    486
    """
    parts, name = hook_name.split("."), leaf(hook_name)
    heads = kv_heads = 0
    if parts[0] == "blocks":
        layer = int(parts[1])
        heads, kv_heads = config.n_heads_of(layer), len(config.kv_heads_of(layer))
    if name in ("hook_k", "hook_v", "hook_rot_k"):
        each = kv_heads * config.head_width
    elif name in ("hook_q", "hook_z", "hook_rot_q"):
        each = heads * config.head_width
    elif name in ("hook_attn_scores", "hook_pattern"):
        each = heads * (n_pos if n_key is None else n_key)
    elif name in WIDE_HEAD_HOOKS:
        each = (kv_heads if name in ("hook_k_input", "hook_v_input") else heads) * config.d_model
    elif name == "hook_scale":
        each = 1
    elif "mlp" in parts:
        each = config.mlp_width
    else:
        each = config.vocab_out if hook_name == "unembed.hook_out" else config.d_model
    return batch * n_pos * each


class NamedModules(dict[str, nn.Module]):
    """TransformerLens's table of modules by name, with an error for unknown names."""

    def __missing__(self, name: str) -> nn.Module:
        """Return a hook by its old name, or raise KeyError with the closest names."""
        present = present_name(name)
        if present in self:
            return self[present]
        raise unknown_hook(name, self)


def unknown_hook(name: str, modules: dict[str, nn.Module]) -> KeyError:
    """Return the error for an unknown hook, with the closest names."""
    hooks = [known for known, module in modules.items() if isinstance(module, HookPoint)]
    return KeyError(unknown_name("hook", name, hooks))
