"""What each head reads and writes: its value and output weights, of a HookedGPT or another model.

One matrix for every query head, however many share a key head; norms can be folded into what reads
them. Nothing here runs a model.
"""

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.model_bridge.generalized_components import (
    LayerNormPreBridge,
    NormalizationBridge,
    RMSNormPreBridge,
)
from transformer_lens.model_bridge.generalized_components.base import GeneralizedComponent

from lab.norms import LayerNorm, NoNorm, RMSNorm
from probes.reading.observed_model import ReadableModel, config_of

OutputWeights = Float[Tensor, "head d_value d_model"]
ValueWeights = Float[Tensor, "head d_model d_value"]


def part_of(module: Any, name: str) -> Any:
    """Return a part of a model or block, by TransformerLens's name.

    Raises:
        ValueError: There is no such part.
    """
    part = getattr(module, name, None)
    if part is None:
        raise ValueError(
            f"a model whose weights are read must have {name}, got a {type(module).__name__} "
            "without it; load the weights with HookedGPT.from_pretrained"
        )
    return part


def block_of(model: ReadableModel, layer: int) -> Any:
    """Return one block of a model.

    Raises:
        ValueError: The model has no such block.
    """
    blocks = part_of(model, "blocks")
    if layer >= len(blocks):
        raise ValueError(f"layer must be below {len(blocks)}, got {layer}")
    return blocks[layer]


def weight_of(module: Any, name: str) -> Tensor:
    """Return one weight of a part of a model, detached.

    Raises:
        ValueError: There is no such weight.
    """
    weight: Tensor = part_of(module, name)
    return weight.detach()


def output_weights(model: ReadableModel, layer: int) -> OutputWeights:
    """Return W_O of each head of a layer.

    Raises:
        ValueError: The model does not show them head by head.
    """
    return head_weight(model, layer, "W_O")


def value_weights(
    model: ReadableModel, layer: int
) -> tuple[ValueWeights, Float[Tensor, "head d_value"]]:
    """Return W_V and b_V of each query head of a layer.

    Raises:
        ValueError: The model does not show them head by head.
    """
    W_V = head_weight(model, layer, "W_V")
    heads = key_heads(model, layer, len(head_weight(model, layer, "W_O")), len(W_V))
    bias = getattr(part_of(block_of(model, layer), "attn"), "b_V", None)
    b_V = W_V.new_zeros(len(W_V), W_V.shape[2]) if bias is None else bias.detach()
    return W_V[heads], b_V[heads]


def head_weight(model: ReadableModel, layer: int, name: str) -> Float[Tensor, "head rows columns"]:
    """Return one weight of a layer's heads.

    Raises:
        ValueError: It is not one matrix a head.
    """
    weight = weight_of(part_of(block_of(model, layer), "attn"), name)
    if weight.ndim != 3:
        raise ValueError(
            f"{name} of layer {layer} must be one matrix a head, got shape {list(weight.shape)}; "
            "load the weights with HookedGPT.from_pretrained"
        )
    return weight


def key_heads(model: ReadableModel, layer: int, heads: int, kv_heads: int) -> list[int]:
    """Return the place of the key head that each query head reads: pruning makes groups uneven."""
    config = config_of(model)
    if config is None:
        return [head * kv_heads // heads for head in range(heads)]
    left = config.kv_heads_of(layer)
    return [left.index(config.kv_head(head)) for head in config.heads_of(layer)]


def through_norm(
    norm: Any, weight: Float[Tensor, "*head d_model columns"]
) -> Float[Tensor, "*head d_model columns"]:
    """Return a weight that reads a norm as it reads the stream before it, in float64, on the CPU.

    The norm's own weight goes in, and what a LayerNorm's centring does; its division by the
    standard deviation, one positive number a position, stays out, and so does its bias.

    Raises:
        ValueError: The norm is of an unknown kind.
    """
    scale, centred = norm_parts(norm)
    found = weight.detach().cpu().double()
    if scale is not None:
        found = scale.detach().cpu().double().unsqueeze(-1) * found
    return found - found.mean(dim=-2, keepdim=True) if centred else found


def norm_parts(norm: Any) -> tuple[Float[Tensor, " d_model"] | None, bool]:
    """Return a norm's weight (None: it has none), and whether it subtracts the mean."""
    if isinstance(norm, LayerNorm | RMSNorm):
        return norm.w, isinstance(norm, LayerNorm)
    if isinstance(norm, LayerNormPreBridge | RMSNormPreBridge):
        return None, isinstance(norm, LayerNormPreBridge)
    if isinstance(norm, NormalizationBridge):
        weight: Any = norm.weight
        scale: Tensor = 1.0 + weight if norm.uses_weight_offset else weight
        return scale, not norm.uses_rms_norm
    inner = norm.original_component if isinstance(norm, GeneralizedComponent) else norm
    if isinstance(inner, NoNorm | nn.Identity):
        return None, False
    raise ValueError(
        f"a norm must be a LayerNorm, an RMSNorm or none, got {type(norm).__name__}; load the "
        "weights with HookedGPT.from_pretrained"
    )


def written_shape(W_O: OutputWeights) -> Float[Tensor, "head d_value rank"]:
    """Return matrices S with |z S| = |z W_O| for every z, in float64, on the CPU.

    S, of d_value columns at most, is the transposed triangle of a QR decomposition. Unlike the
    product of W_O with itself it loses nothing of what a head hardly writes to rounding.
    """
    return torch.linalg.qr(W_O.detach().cpu().double().mT, mode="r").R.mT
