"""The attention that a planted head must have, from tokens and places alone: no weights, no model.

What `probes.planted.planted_models` makes of weights is held against this.
"""

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from lab.shapes import Tokens
from probes.planted.heads import PlantedHead, moved, place_scores
from probes.planted.one_hot_codes import (
    OFF,
    Codes,
    random_scores,
    rotary_gain,
    steps_back,
    wheel_speeds,
)

Expected = Float64[Tensor, "batch query_pos key_pos"]


def expected_pattern(
    head: PlantedHead, tokens: Tokens, codes: Codes, *, primary: bool = True
) -> Expected:
    """Return the attention of a planted head.

    Args:
        head: The head.
        tokens: The sequences, BOS first.
        codes: The sizes and the positions of the model.
        primary: Whether the head that a backup head stands in for is there.
    """
    n_pos = tokens.shape[1]
    causal = torch.ones(n_pos, n_pos, dtype=torch.bool).tril()
    scores = expected_scores(head, tokens, codes)
    if head.kind == "backup" and primary:
        scores = scores + OFF * head.beta * at_first(tokens)
    return scores.masked_fill(~causal, -math.inf).softmax(dim=-1)


def expected_scores(head: PlantedHead, tokens: Tokens, codes: Codes) -> Expected:
    """Return the scores of a planted head, up to a constant a row."""
    n_pos, beta = tokens.shape[1], head.beta
    equal = (tokens.unsqueeze(2) == tokens.unsqueeze(1)).double()
    if head.kind == "random":
        of = {"token": tokens, "place": torch.arange(n_pos).expand_as(tokens)}
        parts = [
            table[of[row].unsqueeze(2), of[key].unsqueeze(1)]
            for (row, key), table in random_scores(head, codes).items()
        ]
        return torch.stack(parts).sum(dim=0)
    if head.kind == "first":
        return beta * at_first(tokens)
    if head.kind == "duplicate":
        if head.latest:
            return beta * told_place(equal, tokens)
        own = torch.eye(n_pos, dtype=torch.float64)
        return beta * (equal - OFF * own + at_first(tokens) / 2)
    if head.kind == "induction":
        before = torch.cat([tokens[:, :1], tokens[:, :-1]], dim=1)
        follows = (tokens.unsqueeze(2) == before.unsqueeze(1)).double()
        return beta * (follows + at_first(tokens) / 2)
    if head.kind == "pointer":
        places = told_place(equal, tokens)
        return beta * places @ moved(codes.n_ctx, head.distance)[:n_pos, :n_pos]
    if codes.rotary and head.kind != "uniform":
        rows = torch.arange(n_pos)
        off = (rows.unsqueeze(1) - rows - steps_back(head)).double()
        wheels = (off.unsqueeze(2) * wheel_speeds()).cos().mean(dim=2)
        return (rotary_gain(beta) * wheels).expand(len(tokens), -1, -1)
    scores = place_scores(head, codes.n_ctx, codes.word)[:n_pos, :n_pos]
    return scores.expand(len(tokens), -1, -1)


def told_place(equal: Expected, tokens: Tokens) -> Expected:
    """Return 1 at the latest earlier copy of each row's token, or at key 0 if there is none."""
    copies = equal.tril(-1)
    later = copies.flip(-1).cumsum(dim=-1).flip(-1) - copies
    return torch.where(copies.any(dim=-1, keepdim=True), copies * (later == 0), at_first(tokens))


def at_first(tokens: Tokens) -> Expected:
    """Return 1 at key 0 of every row."""
    batch, n_pos = tokens.shape
    cells = torch.zeros(batch, n_pos, n_pos, dtype=torch.float64)
    cells[:, :, 0] = 1.0
    return cells


def planted_mass(beta: float, query_pos: int) -> float:
    """Return what a head of gain beta puts on its one target in a row: e^beta / (e^beta + q).

    >>> planted_mass(0.0, 3)
    0.25
    """
    return math.exp(beta) / (math.exp(beta) + query_pos)
