"""TransformerLens's own models as probes see them: one forward pass that shows every pattern.

A `TransformerBridge`, or any `HookedRootModule` with HookedTransformer's names, has hook points
`blocks.i.attn.hook_pattern` and `hook_v`. A temporary hook on each shows them; other hooks on
them act first, so that an edited pattern is read as it was edited.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from lab.attention import Sight
from lab.checks import is_whole
from lab.evaluation import eval_mode
from lab.naming import quoted
from lab.shapes import PositionMask, Tokens
from probes.reading.pattern_reads import LayerReads, PatternReads

PATTERN_NAME = re.compile(r"blocks\.(\d{1,4})\.attn\.hook_pattern")
PATTERN_NUMBERS = 2**26
"""Numbers of one layer's patterns in one forward pass, unless one sequence has more: 256 MB."""

LayerObserver = Callable[[int, LayerReads], None]


@runtime_checkable
class HookPointModel(Protocol):
    """A model of TransformerLens: its hook points by name, and a run with temporary hooks."""

    @property
    def hook_dict(self) -> Mapping[str, Any]:
        """Hook points by name."""
        ...

    def run_with_hooks(self, *args: Any, **kwargs: Any) -> Any:
        """Run the model with temporary hooks."""
        ...


def takes_observer(model: Any) -> bool:
    """Return whether the model itself shows each layer's reads, as HookedGPT does."""
    return "observe" in inspect.signature(model.forward).parameters


def bridge_setting(model: Any, name: str) -> Any:
    """Return a value of a TransformerLens model's cfg; None if it has no such value."""
    return getattr(getattr(model, "cfg", None), name, None)


def pattern_layers(model: Any) -> list[int]:
    """Return the layers of a TransformerLens model that have an attention pattern.

    Raises:
        ValueError: It has no such layer, or is not a model of TransformerLens.
    """
    if not isinstance(model, HookPointModel):
        raise ValueError(
            "model must be a HookedGPT or one of TransformerLens, got a value of type "
            f"{type(model).__name__}; pass HookedGPT.from_pretrained(model)"
        )
    found = [PATTERN_NAME.fullmatch(name) for name in model.hook_dict]
    layers = sorted({int(match[1]) for match in found if match is not None})
    if not layers:
        raise ValueError(
            "model must have attention patterns (hook points blocks.i.attn.hook_pattern), got a "
            f"{type(model).__name__} without one; there are no heads to probe"
        )
    return layers


def observe_patterns(
    model: Any, tokens: Tokens, observe: LayerObserver, real: PositionMask | None = None
) -> None:
    """Run a TransformerLens model on some sequences and show each layer's reads, in layer order.

    Raises:
        ValueError: The model has no patterns or does not show them, would drop out some of them,
            or cannot read these tokens.
    """
    layers = pattern_layers(model)
    require_evaluation(model)
    require_readable_tokens(model, tokens)
    sight = Sight(causal=bridge_setting(model, "attention_dir") != "bidirectional", real=real)
    values: dict[int, Tensor] = {}
    shown: list[int] = []

    def value_hook(layer: int) -> Callable[..., None]:
        def keep(value: Tensor, hook: Any) -> None:
            values[layer] = value if value.ndim == 4 else split_heads(model, value)

        return keep

    def pattern_hook(layer: int) -> Callable[..., None]:
        def show(pattern: Tensor, hook: Any) -> None:
            require_pattern(layer, pattern, tokens)
            shown.append(layer)
            observe(layer, PatternReads(pattern, values.pop(layer, None), sight=sight))

        return show

    names = model.hook_dict
    hooks: list[tuple[str, Callable[..., None]]] = []
    for layer in layers:
        value_name = f"blocks.{layer}.attn.hook_v"
        hooks += [(value_name, value_hook(layer))] if value_name in names else []
        hooks.append((f"blocks.{layer}.attn.hook_pattern", pattern_hook(layer)))
    with torch.no_grad():
        model.run_with_hooks(tokens, fwd_hooks=hooks, **forward_arguments(model, real))
    if shown != layers:
        raise ValueError(
            f"attention patterns of layers {layers} must be shown by their hooks, once each and "
            f"in order, got those of {shown}; load the model with attn_implementation='eager'"
        )


def forward_arguments(model: Any, real: PositionMask | None) -> dict[str, Any]:
    """Return what to pass to a forward pass beside the tokens: no logits wanted, and the mask.

    Raises:
        ValueError: There is padding, and the model takes no mask.
    """
    parameters = inspect.signature(model.forward).parameters
    found: dict[str, Any] = {}
    if "return_type" in parameters:
        found["return_type"] = None
    if real is not None:
        if "attention_mask" not in parameters:
            raise ValueError(
                f"forward of {type(model).__name__} must take an attention_mask to read padded "
                "sequences, got one that does not; leave the padding out"
            )
        found["attention_mask"] = real.long()
    return found


def require_evaluation(model: Any) -> None:
    """Reject a model that would drop out parts of its patterns.

    Raises:
        ValueError: It is in training mode, with dropout.
    """
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        if isinstance(module, nn.Dropout) and module.training and module.p > 0:
            raise ValueError(
                "a probed model must be in evaluation mode, got training mode with dropout in "
                f"{name}; call model.eval()"
            )


def reading_mode(model: Any) -> AbstractContextManager[None]:
    """Put a model into evaluation mode, as TransformerLens's tools want it, and back afterwards."""
    return eval_mode(model) if isinstance(model, nn.Module) else nullcontext()


def require_readable_tokens(model: Any, tokens: Tokens) -> None:
    """Reject token ids and lengths that the model, or a probe, cannot read.

    Raises:
        ValueError: A sequence is longer than the context, or than a window of attention (chance and
            entropy would take the hidden keys for seen ones); or an id is not of the vocabulary.
    """
    n_ctx, d_vocab = bridge_setting(model, "n_ctx"), bridge_setting(model, "d_vocab")
    if is_whole(n_ctx) and 0 < n_ctx < tokens.shape[1]:
        raise ValueError(f"a sequence must have 1 to n_ctx = {n_ctx} tokens, got {tokens.shape[1]}")
    for name in ("sliding_window", "window_size"):
        width = bridge_setting(model, name)
        if is_whole(width) and 0 < width < tokens.shape[1]:
            raise ValueError(
                f"a probed sequence must have at most {name} = {width} tokens, got "
                f"{tokens.shape[1]}: later rows do not see every key before them; cut it"
            )
    if is_whole(d_vocab) and d_vocab > 0:
        low, high = int(tokens.min()), int(tokens.max())
        if low < 0 or high >= d_vocab:
            raise ValueError(f"token ids must be from 0 to {d_vocab - 1}, got {low} to {high}")


def require_pattern(layer: int, pattern: Tensor, tokens: Tokens) -> None:
    """Reject what a hook shows unless it is a matrix of one layer's heads on these tokens.

    Raises:
        ValueError: It has another shape.
    """
    batch, n_pos = tokens.shape
    shape = tuple(pattern.shape)
    if len(shape) != 4 or (shape[0], *shape[2:]) != (batch, n_pos, n_pos):
        raise ValueError(
            f"attention pattern of layer {layer} must be of shape [{batch}, heads, {n_pos}, "
            f"{n_pos}], got {list(shape)}"
        )


def split_heads(model: Any, value: Tensor) -> Tensor:
    """Return values [batch, pos, kv_head, d_head] whose heads lie side by side.

    Raises:
        ValueError: The model's cfg does not say how wide a head is.
    """
    width = bridge_setting(model, "d_head")
    if not is_whole(width) or width < 1 or value.shape[-1] % width:
        raise ValueError(
            f"d_head of the model's cfg must divide the {value.shape[-1]} numbers of its values, "
            f"got {quoted(width)}"
        )
    return value.unflatten(-1, (-1, width))


def tokens_at_once(model: Any, n_pos: int, most: int) -> int:
    """Return how many tokens one forward pass of a TransformerLens model may read.

    Args:
        model: The model, which builds the pattern of every head.
        n_pos: Tokens of one sequence.
        most: What a model that builds none may read.
    """
    heads = bridge_setting(model, "n_heads")
    each = (heads if is_whole(heads) and heads > 0 else 1) * n_pos
    return max(1, min(most, PATTERN_NUMBERS // each))
