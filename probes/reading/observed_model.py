"""Where probes meet a model: one observed forward pass over a batch, a few sequences at a time.

A HookedGPT hands each layer's `AttentionReads` to a function: no hook, and no matrix. Of any other
TransformerLens model the function gets `PatternReads`, which answer the same questions (see
`probes.reading.bridge`). The probes that use them are in their own modules.
"""

from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn
from transformer_lens.hook_points import HookPoint

from lab.attention_reads import Observer
from lab.checks import is_whole, require_whole
from lab.config import ModelConfig
from lab.families.token_text import token_vocab
from lab.inputs import checked_mask
from lab.naming import quoted
from lab.runtime import versions
from lab.shapes import GivenMask, PositionMask, Tokens
from lab.taps import listened
from lab.tasks.base import Batch
from lab.vocab import BOS_ID, SEP_ID, Vocab
from lab.weights import weight_not_finite
from probes.attention.targets import ProbeInput
from probes.reading.bridge import (
    LayerObserver,
    bridge_setting,
    observe_patterns,
    takes_observer,
    tokens_at_once,
)
from probes.reading.pattern_reads import LayerReads
from probes.tables import digest

SPECIAL_IDS = (BOS_ID, SEP_ID)
"""Ids of BOS and SEP in the vocabularies of `lab.tasks`."""

TOKENS_AT_ONCE = 16_384
"""Tokens in one forward pass of a probe, unless one sequence is longer."""

Measured = TypeVar("Measured")


@runtime_checkable
class ReadableModel(Protocol):
    """What a probe asks of a model: that one forward pass shows each layer's reads, in order."""

    def forward(
        self, input: Tokens, return_type: None = ..., *, observe: Observer | None = ...
    ) -> Any:
        """Run the model and call observe(layer, reads) once a layer."""
        ...


def require_differentiable(model: object) -> None:
    """Reject a model that autograd cannot differentiate, whatever mode it is read in.

    Raises:
        ValueError: Its weights were made in inference mode.
    """
    weights = model.parameters() if isinstance(model, nn.Module) else ()
    if any(weight.is_inference() for weight in weights):
        raise ValueError(
            "weights must be made outside of torch.inference_mode() to have gradients, got a model "
            "that was built in it; build or load the model before"
        )


def config_of(model: ReadableModel) -> ModelConfig | None:
    """Return the frozen description of a HookedGPT; None: the model is another library's."""
    config = getattr(model, "config", None)
    return config if isinstance(config, ModelConfig) else None


def require_gates(model: ReadableModel) -> None:
    """Reject models that take no gates: their heads cannot be ablated in a forward pass.

    Raises:
        ValueError: The model is another library's.
    """
    if config_of(model) is None:
        raise ValueError(
            "a model whose heads are ablated must be a HookedGPT, got a "
            f"{type(model).__name__}; load its weights with HookedGPT.from_pretrained"
        )


def tokenizer_of(model: ReadableModel) -> Any:
    """Return the tokenizer (or the vocabulary) that a model came with; None: it has none."""
    return getattr(model, "tokenizer", None)


def vocab_of(model: ReadableModel, vocab: Vocab | None) -> Vocab | None:
    """Return the names of the token ids: the given ones, else those of the model's tokenizer."""
    tokenizer, config = tokenizer_of(model), config_of(model)
    if vocab is not None or tokenizer is None:
        return vocab
    return token_vocab(tokenizer, None if config is None else config.d_vocab)


def probe_input(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    special_ids: tuple[int, ...] | None = None,
    attention_mask: GivenMask | None = None,
) -> ProbeInput:
    """Return what a probe may know of a task's batch, or of plain tokens.

    Args:
        model: The model that will read them: it says which keys a row sees.
        batch_or_tokens: The sequences.
        special_ids: Ids of BOS and SEP; None: see `special_ids_of`.
        attention_mask: Which tokens are real; None: all.

    Raises:
        ValueError: Neither a batch nor token ids, no sequence, no token, or a mask of another
            shape or without a real token in some sequence; or a weight of the model is NaN or
            infinite, so that no number could be trusted.
    """
    require_finite(model)
    return checked_input(model, batch_or_tokens, special_ids, attention_mask)


def checked_input(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens,
    special_ids: tuple[int, ...] | None = None,
    attention_mask: GivenMask | None = None,
) -> ProbeInput:
    """Return the same of a model whose weights are known to be finite: they are not read again."""
    if special_ids is None:
        special_ids = special_ids_of(model, batch_or_tokens)
    else:
        special_ids = require_ids(special_ids, known_ids(model))
    if isinstance(batch_or_tokens, Batch):
        tokens, sources = batch_or_tokens.tokens, batch_or_tokens.sources
    else:
        tokens, sources = require_tokens(batch_or_tokens), None
    if 0 in tokens.shape:
        raise ValueError(
            "tokens must be at least one sequence of at least one token, "
            f"got {tokens.shape[0]} sequences of {tokens.shape[1]}"
        )
    return ProbeInput(
        tokens=tokens,
        sources=sources,
        special_ids=special_ids,
        causal=sees_earlier_only(model),
        real=None if attention_mask is None else real_tokens(attention_mask, tokens),
    )


def require_finite(model: ReadableModel) -> None:
    """Reject weights that are NaN or infinite: every score would be NaN.

    Raises:
        ValueError: Some weight is NaN or infinite.
    """
    name = weight_not_finite(model) if isinstance(model, nn.Module) else None
    if name is not None:
        raise ValueError(
            f"weights must be finite, got nan or inf in {name}; restore them from a copy or "
            "train again"
        )


def known_ids(model: ReadableModel) -> int | None:
    """Return how many token ids the model knows; None: it does not say."""
    config = config_of(model)
    size = bridge_setting(model, "d_vocab") if config is None else config.d_vocab
    return size if is_whole(size) else None


def sees_earlier_only(model: ReadableModel) -> bool:
    """Return whether a row of the model sees the keys up to its own only."""
    config = config_of(model)
    if config is not None:
        return config.attention_dir == "causal"
    return bridge_setting(model, "attention_dir") != "bidirectional"


def require_tokens(value: Any) -> Tokens:
    """Return token ids of shape [batch, pos], or say what was given instead."""
    if not isinstance(value, Tensor):
        got = f"a value of type {type(value).__name__}"
    elif value.ndim != 2:
        got = f"a tensor of shape {list(value.shape)}"
    elif value.is_floating_point() or value.is_complex() or value.dtype == torch.bool:
        got = f"a tensor of {str(value.dtype).removeprefix('torch.')}"
    else:
        return value
    raise ValueError(
        f"tokens must be a task's batch or a tensor of token ids [batch, pos], got {got}; "
        "pass model.to_tokens(text) or torch.tensor([ids])"
    )


def as_batch(batch_or_tokens: Batch | Tokens) -> Batch:
    """Return a task's batch as it is; of plain tokens, one whose loss counts every next token.

    Raises:
        ValueError: Neither a batch nor token ids.
    """
    if isinstance(batch_or_tokens, Batch):
        return batch_or_tokens
    tokens = require_tokens(batch_or_tokens)
    loss_mask = torch.ones_like(tokens, dtype=torch.bool)
    loss_mask[:, -1:] = False  # the last row predicts nothing that is given
    return Batch(tokens, loss_mask, torch.full_like(tokens, -1).unsqueeze(2))


def require_ids(special_ids: Any, d_vocab: int | None) -> tuple[int, ...]:
    """Return the special token ids; raise ValueError for an id outside the vocabulary."""
    if not isinstance(special_ids, tuple | list):
        raise ValueError(
            f"special_ids must be a tuple of token ids, got {quoted(special_ids)}; "
            "pass () if there are no special tokens"
        )
    for one in special_ids:
        require_whole("an id of special_ids", one, 0)
        if d_vocab is not None:
            require_whole("an id of special_ids", one, 0, d_vocab - 1)
    return tuple(special_ids)


def real_tokens(mask: GivenMask, tokens: Tokens) -> PositionMask:
    """Return an attention_mask as True and False, once every sequence has a token to read."""
    real = checked_mask(mask, *tokens.shape, device=tokens.device)
    if not bool(real.any(dim=1).all()):
        raise ValueError(
            "attention_mask must have a real token in every sequence, got a sequence of padding; "
            "leave it out"
        )
    return real


def special_ids_of(model: ReadableModel, batch_or_tokens: Batch | Tokens) -> tuple[int, ...]:
    """Return the special token ids: BOS and SEP of a task, or BOS, EOS and PAD of a tokenizer.

    Plain tokens of a model without a tokenizer have no special ids.
    """
    tokenizer = tokenizer_of(model)
    if isinstance(batch_or_tokens, Batch) or isinstance(tokenizer, Vocab):
        return SPECIAL_IDS
    names = ("bos_token_id", "eos_token_id", "pad_token_id")
    ids = {getattr(tokenizer, name, None) for name in names}
    return tuple(sorted(i for i in ids if i is not None))


def model_device(model: ReadableModel) -> torch.device:
    """Return the device of the model's weights; of those offloaded to disk, where they compute."""
    weights = (w.device for w in model.parameters()) if isinstance(model, nn.Module) else ()
    return next((device for device in weights if device.type != "meta"), torch.device("cpu"))


def head_ids(model: ReadableModel, layer: int, n_heads: int) -> tuple[int, ...]:
    """Return the original ids of a layer's heads: in a pruned model they have gaps."""
    config = config_of(model)
    return tuple(range(n_heads)) if config is None else config.heads_of(layer)


def slices_of(
    x: ProbeInput, device: torch.device, at_once: int | None = None
) -> Iterator[ProbeInput]:
    """Yield the input a few sequences at a time, on the device of the model.

    Args:
        x: The input.
        device: The device.
        at_once: Tokens of one slice, unless one sequence is longer; None: TOKENS_AT_ONCE.
    """
    step = max(1, (TOKENS_AT_ONCE if at_once is None else at_once) // x.tokens.shape[1])
    for start in range(0, len(x.tokens), step):
        some = slice(start, start + step)
        yield ProbeInput(
            tokens=x.tokens[some].to(device),
            sources=None if x.sources is None else x.sources[some].to(device),
            special_ids=x.special_ids,
            causal=x.causal,
            real=None if x.real is None else x.real[some].to(device),
        )


def slices_for(
    model: ReadableModel, x: ProbeInput, at_once: int | None = None
) -> Iterator[ProbeInput]:
    """Yield the input as many sequences at a time as the model reads in little memory.

    Args:
        model: The model that will read them.
        x: The input.
        at_once: Tokens of one slice at most; None: TOKENS_AT_ONCE.
    """
    most = TOKENS_AT_ONCE if at_once is None else at_once
    if not takes_observer(model):
        most = tokens_at_once(model, x.tokens.shape[1], most)
    return slices_of(x, model_device(model), most)


@torch.no_grad()
def observe_layers(
    model: ReadableModel,
    tokens: Tokens,
    observe: LayerObserver,
    real: PositionMask | None = None,
) -> None:
    """Run the model on some sequences and show each layer's reads, in layer order.

    Raises:
        ValueError: The model shows no attention; or it is a HookedGPT with a hook on scores or
            pattern, whose edits no probe would see.
    """
    if not takes_observer(model):
        observe_patterns(model, tokens, observe, real)
        return
    require_unhooked(model)
    if real is None:
        model.forward(tokens, return_type=None, observe=observe)
    else:
        forward: Any = model.forward  # stand-ins of tests take no mask
        forward(tokens, return_type=None, observe=observe, attention_mask=real)


def measured_layers(
    model: ReadableModel,
    x: ProbeInput,
    measure: Callable[[int, LayerReads, ProbeInput], Measured],
    add: Callable[[Measured, Measured], Measured] | None = None,
) -> dict[int, list[Measured]]:
    """Return what measure(layer, reads, slice) makes of each slice of the input, layer by layer.

    Args:
        model: The model.
        x: The input, on any device.
        measure: Called once a layer and slice; what it returns should be small.
        add: Makes one of what two slices gave, so that one is kept; None: all are kept.
    """
    found: dict[int, list[Measured]] = {}

    def observer(part: ProbeInput) -> LayerObserver:
        def observe(layer: int, reads: LayerReads) -> None:
            new, kept = measure(layer, reads, part), found.setdefault(layer, [])
            if kept and add is not None:
                kept[0] = add(kept[0], new)
            else:
                kept.append(new)

        return observe

    for part in slices_for(model, x):
        observe_layers(model, part.tokens, observer(part), part.real)
    return dict(sorted(found.items()))


def require_unhooked(model: ReadableModel) -> None:
    """Reject hooks on scores and pattern: reads are made of q and k, from before such an edit."""
    if not isinstance(model, nn.Module):
        return
    for name, module in model.named_modules():
        late = name.endswith((".hook_attn_scores", ".hook_pattern"))
        if late and isinstance(module, HookPoint) and listened(module):
            raise ValueError(
                f"a probed model must have no hook on scores or pattern, got one on {name}: probes "
                "read q and k, from before it; call model.reset_hooks() or edit hook_q and hook_k"
            )


def provenance(model: ReadableModel, tokens: Tokens | None) -> dict[str, Any]:
    """Return what a table was measured on, as far as the model itself knows; None: on no tokens.

    `run`, `checkpoint_sha256` and `seed` are those of a saved run; reports fill them in.
    """
    weight = next(model.parameters(), None) if isinstance(model, nn.Module) else None
    foreign = weights_of(model)
    return {
        **({} if foreign is None else {"weights": foreign}),
        "run": None,
        "checkpoint_sha256": None,
        "seed": None,
        "device": str(model_device(model)),
        "dtype": None if weight is None else str(weight.dtype).removeprefix("torch."),
        "versions": versions(),
        "tokens_sha256": None
        if tokens is None
        else digest(tokens.cpu().contiguous().numpy().tobytes()),
    }


def weights_of(model: ReadableModel) -> str | None:
    """Return what tables say of weights that were trained elsewhere; None: they were not."""
    if config_of(model) is not None:
        return getattr(model, "provenance", None)
    name = bridge_setting(model, "model_name")
    return f"{type(model).__name__} of TransformerLens, {name}" if name else None
