"""Heads whose attention is known by construction: what every probe must find, and must not find.

A planted head writes q and k down instead of learning them: one-hot codes of tokens and positions,
and a gain beta. A row whose target scores beta and whose q other visible keys score 0 puts e^beta /
(e^beta + q) on the target, exactly. Nothing here is trained, and nothing has weights.
"""

from collections.abc import Callable, Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from lab.naming import unknown_name
from lab.reads import AttentionReads
from lab.shapes import Tokens

Codes = Float[Tensor, "batch pos code"]
Positions = Int[Tensor, " pos"]

POSITIONAL: Mapping[str, Callable[[Positions], Positions]] = {
    "previous": lambda q: q - 1,
    "current": lambda q: q,
    "first": torch.zeros_like,
    "offset_2": lambda q: q - 2,
    "anti_diagonal": lambda q: torch.where(q > half(q), len(q) - 1 - q, 0),
    "anti_diagonal_plus_1": lambda q: torch.where(q > half(q), len(q) - q, 0),
}
"""Key that each row looks at; a negative one means key 0. The two anti-diagonals are those of the
reversal task: query + key = 2n + 1, and one more."""

KINDS: tuple[str, ...] = (*POSITIONAL, "uniform", "duplicate", "induction")
"""Every kind of head that can be planted."""


def half(positions: Positions) -> int:
    """Return n of a reversal sequence of 2n + 2 positions: the place of its last given symbol."""
    return len(positions) // 2 - 1


def planted_codes(kind: str, tokens: Tokens, *, beta: float, d_vocab: int) -> tuple[Codes, Codes]:
    """Return q and k of one planted head in float64; the score of a cell is q . k.

    Raises:
        ValueError: There is no such kind.
    """
    if kind not in KINDS:
        raise ValueError(unknown_name("planted head", kind, KINDS))
    batch, n_pos = tokens.shape
    symbol = F.one_hot(tokens, d_vocab).double()
    position = torch.eye(n_pos, dtype=torch.float64).expand(batch, -1, -1)
    rows = torch.arange(n_pos)
    nothing = torch.zeros_like(symbol)
    rest = torch.full((batch, n_pos, 1), beta / 2, dtype=torch.float64)
    at_first = position[:, :, :1]
    if kind in POSITIONAL:
        wanted = POSITIONAL[kind](rows).clamp(min=0)
        q = [nothing, beta * position[:, wanted], 0 * rest]
        k = [nothing, position, at_first]
    elif kind == "uniform":
        q = [nothing, 0 * position, 0 * rest]
        k = [symbol, position, at_first]
    elif kind == "duplicate":
        # The second block keeps the head off the token itself, the last one sends it to BOS.
        q = [beta * symbol, -3 * beta * position, rest]
        k = [symbol, position, at_first]
    else:
        follows = torch.cat([nothing[:, :1], symbol[:, :-1]], dim=1)
        q = [beta * symbol, 0 * position, rest]
        k = [follows, 0 * position, at_first]
    return torch.cat(q, dim=-1), torch.cat(k, dim=-1)


class PlantedHeads:
    """A stand-in for a model: one layer of planted heads, for probes to read.

    Useful pattern: `score_heads(PlantedHeads(("previous", "uniform"), d_vocab=28), batch)`.
    """

    def __init__(self, kinds: tuple[str, ...] = KINDS, *, d_vocab: int, beta: float = 12.0) -> None:
        """Plant one head of each kind, in this order."""
        self.kinds = kinds
        self.d_vocab = d_vocab
        self.beta = beta

    def reads(self, tokens: Tokens) -> AttentionReads:
        """Return what the heads do on some sequences."""
        codes = [
            planted_codes(kind, tokens, beta=self.beta, d_vocab=self.d_vocab) for kind in self.kinds
        ]
        q = torch.stack([q for q, _ in codes], dim=2)
        k = torch.stack([k for _, k in codes], dim=2)
        return AttentionReads(q, k, k, scale=1.0)

    def forward(
        self,
        input: Tokens,
        return_type: str | None = None,
        *,
        observe: Callable[[int, AttentionReads], None] | None = None,
    ) -> None:
        """Show the reads to the observer; there are no logits."""
        if observe is not None:
            observe(0, self.reads(input))
