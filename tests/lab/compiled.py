"""Compile small models, hook them, and print what happened as JSON: run by test_compile.

In a process of its own, because the tests' shape checks wrap every function and Dynamo traces them.
"""

import json
import sys
import warnings
from typing import Any

import torch
import torch._dynamo
from torch import Tensor

from lab.config import ModelConfig
from lab.gates import HeadGates
from lab.hooked_gpt import HookedGPT

KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {
        "positional_embedding_type": "rotary",
        "normalization_type": "RMS",
        "gated_mlp": True,
        "act_fn": "silu",
        "n_key_value_heads": 2,
    },
}
HOOKS = {
    "gpt2": (
        "hook_embed",
        "blocks.0.attn.hook_pattern",
        "blocks.0.attn.hook_z",
        "blocks.0.mlp.hook_post",
    ),
    "llama": ("blocks.0.attn.hook_rot_q", "blocks.0.attn.hook_result", "blocks.0.hook_mlp_in"),
}
"""Hooks of every sort: on what is computed anyway, on the matrix, and on what only they ask for."""
TOKENS = torch.arange(8).unsqueeze(0)


def small(kind: str) -> HookedGPT:
    """Return a model of a kind."""
    sizes = {"n_layers": 1, "n_heads": 4, "d_model": 16, "d_vocab": 11, "n_ctx": 16}
    return HookedGPT(ModelConfig(**sizes, initializer_range=0.2, **KINDS[kind])).eval()


def apart(a: Tensor, b: Tensor) -> float:
    """Return the largest difference."""
    return (a - b).abs().max().item()


def turned(x: Tensor, *, hook: object) -> Tensor:
    """Turn the last axis round: no normalisation undoes that."""
    return x.flip(-1)


def checks_of(kind: str) -> dict[str, Any]:
    """Return {check: what was found}."""
    torch._dynamo.reset()
    model = small(kind)
    whole = torch.compile(model, backend="aot_eager", fullgraph=True)
    found: dict[str, Any] = {"logits": apart(whole(TOKENS), model(TOKENS))}
    whole(TOKENS, return_type="loss").backward()
    gradients = [parameter.grad for parameter in model.parameters()]
    model.zero_grad()
    model(TOKENS, return_type="loss").backward()
    found["gradients"] = max(
        apart(parameter.grad, gradient)
        for parameter, gradient in zip(model.parameters(), gradients, strict=True)
    )
    torch._dynamo.reset()
    model = small(kind)
    compiled = torch.compile(model, backend="eager")
    before = compiled(TOKENS)
    for name in HOOKS[kind]:
        model.add_hook(name, turned)
        hooked, expected = compiled(TOKENS), model(TOKENS)
        model.reset_hooks()
        found[name] = {
            "apart": apart(hooked, expected),
            "effect": apart(hooked, before),
            "left": apart(compiled(TOKENS), before),
        }
    gates = HeadGates.ablate([(0, 1)], like=model)
    gated = compiled(TOKENS, gates=gates)
    found["gates"] = {
        "apart": apart(gated, model(TOKENS, gates=gates)),
        "effect": apart(gated, before),
        "left": apart(compiled(TOKENS), before),
    }
    seen: list[int] = []
    compiled(TOKENS, observe=lambda layer, _: seen.append(layer))
    return {**found, "observed": seen}


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    # Every state of the hooks is a graph of its own, never the interpreted fallback.
    torch._dynamo.config.recompile_limit = 64
    json.dump({kind: checks_of(kind) for kind in KINDS}, sys.stdout)
