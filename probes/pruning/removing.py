"""Heads removed for good: a smaller model with the gated model's logits, and the proof of it.

A gate of 0 multiplies a head's z by 0; pruning takes the head's rows and columns out of the
weights, which saves parameters, cache and time. Heads keep the ids of the original model, in
gates, tables and further prunings. Which heads to remove is decided elsewhere.
"""

import dataclasses
import hashlib
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from einops import einsum
from jaxtyping import Float
from torch import Tensor, nn

from lab.checks import require
from lab.config import ModelConfig
from lab.gates import GateTensors, HeadGates, Reference
from lab.hooked_gpt import HookedGPT
from lab.naming import quoted, unknown_name
from lab.shapes import Tokens
from lab.weights import weights_bytes
from probes.reading.observed_model import require_gates

MODES = ("zero", "mean")
PER_QUERY_HEAD = ("W_Q", "W_O", "b_Q")
PER_KEY_HEAD = ("W_K", "W_V", "b_K", "b_V")
"""Attention weights by what their first axis is; a key head is removed with its last reader."""

LIMITS = {torch.float32: 1e-5, torch.float64: 1e-12, torch.float16: 8e-3, torch.bfloat16: 6e-2}
"""Largest difference at which a pruned model counts as the gated one, by dtype.

Times the largest logit where that is above 1: rounding errors grow with it.
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParityCertificate:
    """What one step of pruning removed, and that the pruned model is the gated one."""

    heads: str
    """The heads removed in this step, in original ids: L0H1,L1H3."""
    heads_gone_before: str
    """Those that the model before this step lacked already, in original ids; "" of a whole one."""
    mode: str
    """What filled the gap of the heads removed in this step: zero or mean."""
    weights_sha256: str
    """Whose logits were compared: the sha256 of the pruned model's weights as .safetensors."""
    fine_tuned_steps: int = 0
    """Steps of training after that; where there are any, the weights saved are not these."""
    max_logit_difference: float
    """Largest |logit of the pruned model - logit of the gated model|."""
    limit: float
    """What the difference may be, in this dtype and for logits of this size; it is in logits."""
    dtype: str
    n_sequences: int
    """Sequences that were compared."""
    parameters_before: int
    """Numbers in all weights; zeros in place of biases that a family lacks are counted."""
    parameters_after: int
    cache_bytes_before: int
    """Bytes of keys and values that generation keeps for one token."""
    cache_bytes_after: int
    latency_ms_before: float
    """Median time of a forward pass over these sequences, both models in turn."""
    latency_ms_after: float
    repeats: int
    """Passes that are timed, after one that warms up."""

    @property
    def holds(self) -> bool:
        """Whether the two models agree within the limit."""
        return self.max_logit_difference <= self.limit

    def to_dict(self) -> dict[str, Any]:
        """Return plain data for JSON."""
        return {**dataclasses.asdict(self), "holds": self.holds}


def prune_heads(
    model: HookedGPT,
    heads: Iterable[tuple[int, int]],
    *,
    mode: str = "zero",
    reference: Reference | None = None,
) -> HookedGPT:
    """Return a smaller model without these heads, with the gated model's logits.

    A mean over all positions is a constant, so it is folded into b_O: b_O += mean z_h . W_O,h.

    >>> from lab import ModelConfig
    >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4))
    >>> prune_heads(model, [(0, 1)]).config.kept_heads
    ((0,),)

    Args:
        model: Any HookedGPT, pruned before or not; it is left as it is.
        heads: (layer, head) pairs in the ids of the original model.
        mode: "zero" or "mean".
        reference: In mode "mean", the mean over positions of every head's z:
            `mean_reference(model, batch, per_position=False)`.

    Raises:
        ValueError: The model has no such head (any more), or mode and reference do not fit: a
            reference in mode "zero", or one of another model.
    """
    pruned = pruned_view(model, heads, mode=mode, reference=reference)
    pruned.load_state_dict(
        {name: value.clone() for name, value in pruned.state_dict().items()}, assign=True
    )
    return pruned


def pruned_view(
    model: HookedGPT,
    heads: Iterable[tuple[int, int]],
    *,
    mode: str = "zero",
    reference: Reference | None = None,
) -> HookedGPT:
    """Return what prune_heads returns, made of the given model's own weights where it can be.

    It costs almost nothing and is read-only: weights that are not sliced are shared.

    Raises:
        ValueError: As of prune_heads.
    """
    check_filling(model, mode, reference)
    gone = HeadGates.ablate(heads, like=model).heads
    state = {name: parameter.detach() for name, parameter in model.named_parameters()}
    if reference is not None:
        for layer, written in mean_writes(model, gone, reference).items():
            state[f"blocks.{layer}.attn.b_O"] = state[f"blocks.{layer}.attn.b_O"] + written
    config = without_heads(model.config, gone)
    for layer in sorted({layer for layer, _ in gone}):
        had, had_keys = model.config.heads_of(layer), model.config.kv_heads_of(layer)
        rows = [had.index(head) for head in config.heads_of(layer)]
        kv_rows = [had_keys.index(head) for head in config.kv_heads_of(layer)]
        for names, kept in ((PER_QUERY_HEAD, rows), (PER_KEY_HEAD, kv_rows)):
            for name in names:
                key = f"blocks.{layer}.attn.{name}"
                state[key] = state[key][kept]
    with torch.device("meta"):  # no weight is drawn, and no memory taken for it
        pruned = HookedGPT(config)
    pruned.load_state_dict(state, assign=True)
    if config.positional_embedding_type == "sinusoidal":  # computed, and no weight
        pruned.pos_embed.W_pos = model.pos_embed.W_pos
    pruned.to(device=model.W_E.device, dtype=model.W_E.dtype)  # tells cfg, and changes no weight
    for name, parameter in pruned.named_parameters():
        parameter.requires_grad_(model.get_parameter(name).requires_grad)
    pruned.cfg.default_prepend_bos = model.cfg.default_prepend_bos
    pruned.tokenizer, pruned.provenance = model.tokenizer, model.provenance
    return pruned.train(model.training)


def without_heads(config: ModelConfig, gone: Iterable[tuple[int, int]]) -> ModelConfig:
    """Return the configuration of the model that is left; itself when nothing goes."""
    removed = set(gone)
    if not removed:
        return config
    kept = tuple(
        tuple(head for head in config.heads_of(layer) if (layer, head) not in removed)
        for layer in range(config.n_layers)
    )
    return dataclasses.replace(config, kept_heads=kept)


def check_filling(model: HookedGPT, mode: str, reference: Reference | None) -> None:
    """Raise ValueError unless a mode and what fills the gap fit each other and the model."""
    require_gates(model)
    if mode not in MODES:
        raise ValueError(unknown_name("pruning mode", mode, MODES))
    if mode == "zero":
        if reference is not None:
            raise ValueError(
                f"reference must be left out in mode 'zero', got {quoted(reference.name)}; take "
                "mode='mean' to put it in the gap"
            )
        return
    if reference is None or reference.z.shape[1] != 1:
        got = (
            "None"
            if reference is None
            else f"one mean for each of {reference.z.shape[1]} positions"
        )
        raise ValueError(
            f"reference must be one mean over all positions to be folded into b_O, got {got}; "
            "take mean_reference(model, batch, per_position=False)"
        )
    config = model.config
    own, got = (config.n_layers, config.n_heads, config.head_width), tuple(reference.z.shape)
    if (got[0], *got[2:]) != own:
        layers, _, n_heads, width = got
        raise ValueError(
            f"reference must be of this model ({own[0]} layers, {own[1]} heads, d_head {own[2]}), "
            f"got one of {layers} layers, {n_heads} heads, d_head {width}; take "
            "mean_reference(model, batch, per_position=False)"
        )


def mean_writes(
    model: HookedGPT, heads: Iterable[tuple[int, int]], reference: Reference
) -> dict[int, Float[Tensor, " d_model"]]:
    """Return what the mean z of some heads writes to the residual stream, by layer."""
    writes: dict[int, Tensor] = {}
    for layer, head in heads:
        row = model.config.heads_of(layer).index(head)
        W_O = model.blocks[layer].attn.W_O[row].detach()
        mean_z = reference.z[layer, 0, head].to(W_O)
        written = einsum(mean_z, W_O, "d_head, d_head d_model -> d_model")
        writes[layer] = writes.get(layer, torch.zeros_like(written)) + written
    return writes


def removed_heads(config: ModelConfig) -> tuple[tuple[int, int], ...]:
    """Return the (layer, head) pairs that a model lacks, in original ids."""
    return tuple(
        (layer, head)
        for layer in range(config.n_layers)
        for head in range(config.n_heads)
        if head not in config.heads_of(layer)
    )


@torch.no_grad()
def certify(
    model: HookedGPT,
    pruned: HookedGPT,
    gates: HeadGates | GateTensors | None,
    tokens: Tokens,
    *,
    mode: str,
    repeats: int = 7,
) -> ParityCertificate:
    """Compare a pruned model with the gated model that it must equal.

    Args:
        model: The model before pruning.
        pruned: The model after.
        gates: The gates whose effect was made permanent.
        tokens: Sequences to compare on.
        mode: What filled the gap.
        repeats: Timed forward passes of each model.

    Raises:
        ValueError: There is no token to compare on.
    """
    for each in (model, pruned):
        require_gates(each)
    require(tokens.numel() > 0, "tokens", "at least one sequence of one token", list(tokens.shape))
    gone_before = removed_heads(model.config)
    gone = tuple(head for head in removed_heads(pruned.config) if head not in gone_before)
    gated = model(tokens, gates=gates)
    difference = (pruned(tokens) - gated).abs().max().item()
    largest = max(1.0, gated.abs().max().item())
    before, after = latencies_ms([model, pruned], tokens, repeats)
    return ParityCertificate(
        heads=HeadGates(heads=gone).label,
        heads_gone_before=HeadGates(heads=gone_before).label,
        mode=mode,
        weights_sha256=weights_sha256(pruned),
        max_logit_difference=difference,
        limit=LIMITS[gated.dtype] * largest,
        dtype=str(gated.dtype).removeprefix("torch."),
        n_sequences=len(tokens),
        parameters_before=count_parameters(model),
        parameters_after=count_parameters(pruned),
        cache_bytes_before=cache_bytes(model),
        cache_bytes_after=cache_bytes(pruned),
        latency_ms_before=before,
        latency_ms_after=after,
        repeats=repeats,
    )


def weights_sha256(model: HookedGPT) -> str:
    """Return the sha256 of a model's weights, which is that of its model.safetensors once saved."""
    return hashlib.sha256(weights_bytes(model.state_dict())).hexdigest()


def count_parameters(model: nn.Module) -> int:
    """Count the numbers in a model's weights.

    A family without biases has them as zeros here, and they are counted.
    """
    return sum(parameter.numel() for parameter in model.parameters())


def cache_bytes(model: HookedGPT) -> int:
    """Return the bytes of keys and values that generation keeps for one token."""
    heads = sum(len(model.config.kv_heads_of(layer)) for layer in range(model.config.n_layers))
    return 2 * heads * model.config.head_width * model.W_E.element_size()


def latencies_ms(models: list[HookedGPT], tokens: Tokens, repeats: int) -> list[float]:
    """Return each model's median forward time, taken in turn so that drift hits all alike."""
    times: list[list[float]] = [[] for _ in models]
    for _ in range(repeats + 1):
        for model, own in zip(models, times, strict=True):
            start = time.perf_counter()
            model(tokens)
            if torch.accelerator.is_available():  # it returns before it is done
                torch.accelerator.synchronize()
            own.append(1e3 * (time.perf_counter() - start))
    return [statistics.median(own[1:]) for own in times]  # the first pass warms up
