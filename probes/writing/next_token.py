"""What a model would say next, with and without some of its heads, token by token.

Which heads are gated, and what fills their place, is said by the gates that are handed in.
"""

import pandas as pd
import torch
from jaxtyping import Float64
from torch import Tensor

from lab.checks import require_whole
from lab.config import SampleConfig
from lab.gates import GateTensors, HeadGates
from lab.generation import next_token_probabilities
from lab.hooked_gpt import HookedGPT
from lab.shapes import Tokens
from lab.vocab import Vocab
from probes.attention.maps import token_labels
from probes.reading.observed_model import model_device, provenance, require_gates, vocab_of
from probes.schemas import columns as c
from probes.tables import make_table

NEXT_TOKEN = c.schema(
    "next_token",
    c.whole("query_pos", "position whose next token is predicted"),
    c.whole_or_none("token_id", "next token; none: all others"),
    c.text("token", "name of the token; the rest: (rest)"),
    c.number("baseline", "probability in the whole model"),
    c.number("gated", "probability with the gates"),
)

REST = "(rest)"
"""What the row of all tokens that have no row of their own is called."""


@torch.no_grad()
def next_token_table(
    model: HookedGPT,
    tokens: Tokens,
    *,
    gates: HeadGates | GateTensors | None = None,
    vocab: Vocab | None = None,
    k: int = 5,
) -> pd.DataFrame:
    """Compare what may come next at every position of one sequence, with and without gates.

    One row per position and token: the k likeliest of either model, by falling baseline
    probability, then all other tokens in one row. Probabilities are over the whole vocabulary, so
    the rows of a position sum to 1.

    >>> from lab import ModelConfig
    >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=5, n_ctx=4))
    >>> gates = HeadGates.ablate([(0, 1)], like=model)
    >>> table = next_token_table(model, torch.tensor([[0, 1, 2]]), gates=gates, k=1)
    >>> table.groupby("query_pos")[["baseline", "gated"]].sum().round(3).values.tolist()
    [[1.0, 1.0], [1.0, 1.0], [1.0, 1.0]]

    Args:
        model: A HookedGPT.
        tokens: One sequence.
        gates: The intervention; None: both columns are the whole model's.
        vocab: Names of the token ids; None: those of the model's tokenizer, or the ids themselves.
        k: How many tokens of either model get a row.

    Raises:
        ValueError: Not one sequence, or k below 1.
    """
    require_gates(model)
    require_whole("k", k, 1)
    if len(tokens) != 1:
        raise ValueError(f"tokens must be one sequence, got {len(tokens)}; pass tokens[:1]")
    on_device = tokens.to(model_device(model))
    as_it_is = SampleConfig(temperature=1.0)
    both = torch.stack(
        [
            next_token_probabilities(model(on_device, gates=some)[0], as_it_is)
            for some in (None, gates)
        ],
        dim=-1,
    )
    rows = [row for query_pos, here in enumerate(both) for row in position_rows(query_pos, here, k)]
    ids = [row[1] for row in rows]
    names = vocab_of(model, vocab)
    labels = iter(token_labels([i for i in ids if i is not None], names))
    columns = {
        "query_pos": [row[0] for row in rows],
        "token_id": ids,
        "token": [REST if i is None else next(labels) for i in ids],
        "baseline": [row[2] for row in rows],
        "gated": [row[3] for row in rows],
    }
    return make_table(columns, NEXT_TOKEN, provenance(model, tokens))


def position_rows(
    query_pos: int, probabilities: Float64[Tensor, "d_vocab 2"], k: int
) -> list[tuple[int, int | None, float, float]]:
    """Return (query_pos, token id, baseline, gated) of one position, the rest last."""
    k = min(k, len(probabilities))
    likeliest = set(probabilities.topk(k, dim=0).indices.flatten().tolist())
    order = probabilities[:, 0].argsort(descending=True, stable=True).tolist()
    named = [i for i in order if i in likeliest]
    others = [i for i in order if i not in likeliest]
    rows = [(query_pos, i, *probabilities[i].tolist()) for i in named]
    return [*rows, (query_pos, None, *probabilities[others].sum(dim=0).tolist())]
