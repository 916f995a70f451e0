"""Direct logit attribution: what each part of the model adds to the answer's logit by itself.

TransformerLens's `direct_logit_attribution` makes the terms; here the heads, the biases that belong
to no head and the unembedding's bias come into one table that sums to the logit. What a part does
through later layers is not in it: that is the business of ablation and patching.
"""

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import torch
from jaxtyping import Float
from torch import Tensor, nn
from transformer_lens.tools.analysis import direct_logit_attribution

from lab.hooked_gpt import HookedGPT
from lab.lens.folding import fold_norms
from lab.naming import parse_head
from lab.shapes import Tokens
from lab.tasks.base import Batch
from probes.borrowed.answers import Answers, require_asked, tokens_of
from probes.intervals import bootstrap_interval, mean_over_rows
from probes.reading.bridge import reading_mode
from probes.reading.observed_model import (
    ReadableModel,
    config_of,
    model_device,
    provenance,
    require_finite,
)
from probes.schemas.borrowed import ATTRIBUTION
from probes.tables import make_table

NUMBERS_AT_ONCE = 2**26
"""Numbers of all heads' outputs that are held at once, unless one sequence has more: 256 MB."""

WORST_SUM = 1e-3
"""How far the sum may be off, as a share of the largest logit: rounding stays far below."""

CENTRED = 1e-5
"""Mean over the tokens, as a share of the largest number of W_U, below which it is rounding."""

TINIEST = torch.finfo(torch.float32).tiny


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """One term of the sum."""

    kind: str
    """embed, pos_embed, head, b_O, mlp or b_U."""
    layer: int | None = None
    head: int | None = None


Terms = dict[Part, Float[Tensor, "batch pos"]]


@torch.no_grad()
def logit_attribution(
    model: ReadableModel, batch_or_tokens: Batch | Tokens, *, answers: Answers | None = None
) -> pd.DataFrame:
    """Split the answers' logits into what each part writes to them: one row a part.

    attribution = (c - mean(c)) / sigma . W_U[:, answer], in logits, mean over the rows that count;
    c is what the part adds to the stream, sigma the last norm's scale of the whole run, with the
    norm's own weights folded into W_U (without the mean after an RMSNorm). Parts: the embeddings,
    each head, each layer's b_O, each MLP, and b_U, the constant of the answer. They sum to the
    answers' mean logit, which attrs["logit"] holds.

    The split is that of the weights read, and TransformerLens's compatibility mode changes two
    things about them by default. It centres W_U over the tokens, so that each logit is taken
    against the mean logit (differences of answers are as before), and folds the value biases into
    b_O, so that b_V W_O is b_O's and not the head's. attrs["unembed_centred"] and
    attrs["value_biases_in_heads"] say what was found; a HookedGPT and its bridge have one table
    after `enable_compatibility_mode(center_unembed=False, fold_value_biases=False)`.

    Range: logits, with their sign.

    Source: Elhage et al. 2021; Wang et al. 2023, Interpretability in the wild.

    Caveat: Direct only: what a head does through later layers is not in it. A logit alone has no
    zero: give wrong answers to compare with.

    >>> from probes import repeated_batch
    >>> from probes.planted import PlantedHead, plant
    >>> copy = PlantedHead(kind="induction", writes="copy")
    >>> model = plant([[PlantedHead(kind="previous", writes="tokens")], [copy]]).model
    >>> table = logit_attribution(model, repeated_batch(model, block=5))
    >>> table[table["part"] == "head"][["layer", "head", "attribution"]].round(2).values.tolist()
    [[0, 0, 0.0], [1, 0, 1.0]]

    Args:
        model: A HookedGPT, which is read through a folded copy, or a TransformerLens model in its
            compatibility mode; in half precision, a copy in float32.
        batch_or_tokens: A task's batch, or plain tokens.
        answers: Whose logits are split; with wrong answers, the differences. None:
            `Answers.of(batch_or_tokens)`.

    Raises:
        ValueError: The norms cannot be folded, heads were pruned, no row counts, the parts do not
            sum to the logits, or a weight is no number.
    """
    require_finite(model)
    tokens = tokens_of(batch_or_tokens).to(model_device(model))
    asked = (Answers.of(batch_or_tokens) if answers is None else answers).to(tokens.device)
    require_asked(asked, tokens)
    require_whole_layers(model)
    exact = in_float32(model)
    folded: Any = fold_norms(exact) if isinstance(exact, HookedGPT) else exact
    heads_width = folded.cfg.n_layers * folded.cfg.n_heads * folded.cfg.d_model
    step = max(1, NUMBERS_AT_ONCE // (heads_width * tokens.shape[1]))
    found: dict[Part, list[Tensor]] = {}
    # Autocast would round the terms but not the sum that they are compared with, or the reverse.
    with reading_mode(folded), torch.autocast(tokens.device.type, enabled=False):
        for start in range(0, len(tokens), step):
            some = slice(start, start + step)
            for part, terms in attributed(folded, tokens[some], asked[some]).items():
                found.setdefault(part, []).append((terms * asked.rows[some]).sum(dim=1))
    totals = torch.stack([torch.cat(sums) for sums in found.values()], dim=1).cpu().double().numpy()
    counts = asked.rows.sum(dim=1).cpu().double().numpy()
    low, high = bootstrap_interval(totals, counts)
    means = mean_over_rows(totals, counts)
    parts = list(found)
    columns = {
        "part": [part.kind for part in parts],
        "layer": [part.layer for part in parts],
        "head": [part.head for part in parts],
        "attribution": means,
        "ci_low": low,
        "ci_high": high,
        "n_sequences": np.full(len(parts), int((counts > 0).sum())),
        "n_rows": np.full(len(parts), int(counts.sum())),
        "unit": ["logits"] * len(parts),
    }
    return make_table(
        columns,
        ATTRIBUTION,
        {**provenance(model, tokens), "logit": float(means.sum()), **form_of_weights(folded)},
    )


def form_of_weights(model: Any) -> dict[str, bool]:
    """Return which of the forms that split the same logit otherwise the weights are in."""
    W_U = model.W_U.float()
    off_centre = W_U.mean(dim=1).abs().max() / W_U.abs().max().clamp(min=TINIEST)
    # A bridge has None, or no such attribute, where values have no bias.
    biases = [getattr(block.attn, "b_V", None) for block in model.blocks]
    return {
        "unembed_centred": bool(off_centre < CENTRED),
        "value_biases_in_heads": any(bias is not None and bool(bias.any()) for bias in biases),
    }


def require_whole_layers(model: ReadableModel) -> None:
    """Reject pruned models, whose heads TransformerLens would mislabel.

    Raises:
        ValueError: Heads were pruned.
    """
    config = config_of(model)
    if config is not None and config.kept_heads is not None:
        raise ValueError(
            "a model must have all its heads for logit_attribution, got one with pruned heads; "
            "repair_split (its direct effects), patch_activations and logit_lens take it"
        )


def in_float32(model: ReadableModel) -> ReadableModel:
    """Return a model whose parts sum to its logits: in half precision a copy of it that is wider.

    In half precision, rounding by folding and summing would look like a missing part.
    """
    if isinstance(model, nn.Module) and any(w.dtype.itemsize < 4 for w in model.parameters()):
        return copy.deepcopy(model).float()
    return model


def attributed(model: Any, tokens: Tokens, answers: Answers) -> Terms:
    """Return every part's attribution in every row, of a model whose norms are folded.

    Raises:
        ValueError: They do not sum to the logits.
    """
    logits, cache = model.run_with_cache(tokens, names_filter=stream_hooks(model))

    def split(unit: str) -> Iterator[tuple[str, Tensor]]:
        result = direct_logit_attribution(
            model,
            answer_tokens=answers.right,
            incorrect_tokens=answers.wrong,
            unit=unit,
            pos=None,
            cache=cache,
        )
        return zip(result.labels, result.attribution, strict=True)

    heads = {parse_head(label): terms for label, terms in split("head") if label != "remainder"}
    found: Terms = {}
    for label, terms in split("component"):
        layer, _, name = label.partition("_")
        if label in ("embed", "pos_embed"):
            found[Part(kind=label)] = terms
        elif name == "mlp_out":
            found[Part(kind="mlp", layer=int(layer))] = terms
        else:
            # What attention adds beyond its heads is its bias, which belongs to none of them.
            rest = terms
            for (block, head), own in heads.items():
                if block == int(layer):
                    found[Part(kind="head", layer=block, head=head)] = own
                    rest = rest - own
            found[Part(kind="b_O", layer=int(layer))] = rest
    found[Part(kind="b_U")] = answers.gaps(model.b_U.expand_as(logits))
    require_sum(torch.stack(list(found.values())).sum(dim=0), answers.gaps(logits))
    return found


def stream_hooks(model: Any) -> list[str]:
    """Return the hooks that the terms and the last norm's scale are read from."""
    names = ["hook_embed", "hook_pos_embed", "ln_final.hook_scale"]
    for layer in range(model.cfg.n_layers):
        parts = ("attn.hook_z", "hook_attn_out", "hook_mlp_out", "hook_resid_post")
        names += [f"blocks.{layer}.{part}" for part in parts]
    return [name for name in names if name in model.hook_dict]


def require_sum(total: Float[Tensor, "batch pos"], logits: Float[Tensor, "batch pos"]) -> None:
    """Reject terms that do not add up: some part of the model was missed.

    Raises:
        ValueError: The sum is another number than the logit.
    """
    off, largest = float((total - logits).abs().max()), float(logits.abs().max())
    if off > WORST_SUM * max(1.0, largest):
        raise ValueError(
            f"attributions must sum to the logits, got sums that are off by up to {off:.3g}: the "
            "model adds to its stream, or to its logits, what this tool does not know of"
        )
