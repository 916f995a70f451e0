"""The one-hot codes of a planted model, and the maps that its heads read and write them with.

The residual stream holds one-hot codes of the token and the place, and what heads of earlier layers
wrote; every key says what its own position holds. A head is then its queries: a map from the codes
of a row to the keys that it wants.
"""

from collections.abc import Mapping, Set
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from lab.vocab import BOS_ID
from probes.planted.heads import PlantedHead, moved, place_scores

Map = tuple[Float64[Tensor, "code to"], Float64[Tensor, " to"]]
"""W and b: the code of a position times W, plus b."""
Blocks = Mapping[str, slice]

ROTARY_WIDTH = 16
"""Dimensions of a planted head that rotary positions turn."""
ROTARY_BASE = 100.0
"""Wavelength base of planted rotary positions."""
ROTARY_PAIRS = 4
"""Pairs of dimensions in use, those that turn fastest: they do not meet again within 100 steps."""
LATE = 16.0
"""What the later of two copies scores more, a step, where only the latest one counts."""
OFF = 3.0
"""Times beta: what keeps a duplicate head off the token itself, and a backup head off its work."""


@dataclass(frozen=True, kw_only=True)
class Codes:
    """Where each one-hot code stands."""

    d_vocab: int
    """Number of token ids."""
    n_ctx: int
    """Number of places."""
    word: int
    """n of the reversal task: symbols of its word."""
    rotary: bool
    """Whether places are turns of q and k, not codes of the stream."""
    stream: Blocks
    """Of the residual stream: token, place, before (the token one back), match (the place of the
    earlier copy), said (what goes to the logits), mark (a number for each head)."""
    key: Blocks
    """Of a key: place (or turns), token, before, start (1 at the first position)."""
    value: Blocks
    """Of a value: token, place, one (always 1)."""


def make_codes(
    *, d_vocab: int, n_ctx: int, word: int, rotary: bool, marks: int, written: Set[str]
) -> Codes:
    """Lay the codes out; what no head writes takes no room."""
    places = 0 if rotary else n_ctx
    before = d_vocab if "tokens" in written else 0
    return Codes(
        d_vocab=d_vocab,
        n_ctx=n_ctx,
        word=word,
        rotary=rotary,
        stream=laid_out(
            token=d_vocab,
            place=places,
            before=before,
            match=places if "places" in written else 0,
            said=d_vocab,
            mark=marks,
        ),
        key=laid_out(
            place=ROTARY_WIDTH if rotary else n_ctx, token=d_vocab, before=before, start=1
        ),
        value=laid_out(token=d_vocab, place=places, one=1),
    )


def laid_out(**sizes: int) -> dict[str, slice]:
    """Return a slice for each block, one after the other.

    >>> laid_out(a=2, b=3)
    {'a': slice(0, 2, None), 'b': slice(2, 5, None)}
    """
    ends = torch.tensor([0, *sizes.values()]).cumsum(0).tolist()
    return {name: slice(ends[i], ends[i + 1]) for i, name in enumerate(sizes)}


def width(blocks: Blocks) -> int:
    """Return how many numbers some blocks take together."""
    return max(block.stop for block in blocks.values())


def empty_map(source: Blocks, target: Blocks) -> Map:
    """Return the map that says nothing."""
    W = torch.zeros(width(source), width(target), dtype=torch.float64)
    return W, torch.zeros(width(target), dtype=torch.float64)


def join(W: Tensor, source: slice, target: slice, gain: float = 1.0) -> None:
    """Send each code of a block to its own place in another block of a map that is being drawn."""
    W[source, target].diagonal().add_(gain)


def query_map(head: PlantedHead, codes: Codes) -> Map:
    """Return what a head wants of each key."""
    W, b = empty_map(codes.stream, codes.key)
    stream, key, beta = codes.stream, codes.key, head.beta
    start = key["start"].start
    if head.kind == "random":
        for (row, column), scores in random_scores(head, codes).items():
            W[stream[row], key[column]] = scores
    elif head.kind == "duplicate":
        # Where there is no copy, rest on the first position, past keys that are merely late.
        most = codes.n_ctx * LATE if head.latest else 0.0
        join(W, stream["token"], key["token"], beta + most)
        join(W, stream["place"], key["place"], -OFF * (beta + most))
        b[start] = beta / 2 + most
        if head.latest:
            b[key["place"]] = LATE * torch.arange(codes.n_ctx, dtype=torch.float64)
    elif head.kind == "induction":
        join(W, stream["token"], key["before"], beta)
        b[start] = beta / 2
    elif head.kind == "pointer":
        W[stream["match"], key["place"]] = beta * moved(codes.n_ctx, head.distance)
    elif head.kind == "first":
        b[start] = beta
    elif head.kind != "uniform" and codes.rotary:
        b[key["place"]] = turned_query(steps_back(head), beta)
    elif head.kind != "uniform":
        W[stream["place"], key["place"]] = place_scores(head, codes.n_ctx, codes.word)
    if head.kind == "backup":
        W[stream["mark"].start + head.primary, start] = OFF * beta
    return W, b


def key_map(codes: Codes) -> Map:
    """Return what every key says of itself: its codes, and whether it comes first."""
    W, b = empty_map(codes.stream, codes.key)
    stream, key = codes.stream, codes.key
    join(W, stream["token"], key["token"])
    join(W, stream["before"], key["before"])
    if codes.rotary:
        b[key["place"]][: ROTARY_WIDTH // 2] = 1.0  # one arm of every wheel, to be turned
        W[stream["token"].start + BOS_ID, key["start"]] = 1.0
    else:
        join(W, stream["place"], key["place"])
        W[stream["place"].start, key["start"]] = 1.0
    return W, b


def value_map(codes: Codes) -> Map:
    """Return what every value says of its position, and the constant 1."""
    W, b = empty_map(codes.stream, codes.value)
    join(W, codes.stream["token"], codes.value["token"])
    join(W, codes.stream["place"], codes.value["place"])
    b[codes.value["one"]] = 1.0
    return W, b


def output_map(head: PlantedHead, mark: int, codes: Codes) -> Float64[Tensor, "value stream"]:
    """Return what a head writes, given the values it attends to; `mark` is its own number."""
    W, _ = empty_map(codes.value, codes.stream)
    stream, value = codes.stream, codes.value
    if head.writes == "mark":
        W[value["one"].start, stream["mark"].start + mark] = 1.0
    elif head.writes == "tokens":
        join(W, value["token"], stream["before"])
    elif head.writes == "places":
        join(W, value["place"], stream["match"])
    elif head.writes != "nothing":
        join(W, value["token"], stream["said"], 1.0 if head.writes == "copy" else -1.0)
    return W


def random_scores(head: PlantedHead, codes: Codes) -> dict[tuple[str, str], Tensor]:
    """Return the scores of a random head between tokens and places, by (row, key) block.

    The score of a cell is the sum of four of these numbers, and so has standard deviation beta.
    """
    sizes = {"token": codes.d_vocab, "place": codes.n_ctx}
    draw = torch.Generator().manual_seed(head.seed)
    return {
        (row, key): head.beta / 2 * torch.randn(rows, keys, generator=draw, dtype=torch.float64)
        for row, rows in sizes.items()
        for key, keys in sizes.items()
    }


def steps_back(head: PlantedHead) -> int:
    """Return how far back a head of rotary positions looks."""
    return head.distance if head.kind == "offset" else int(head.kind != "current")


def turned_query(back: int, beta: float) -> Float64[Tensor, " turns"]:
    """Return a query that, turned at its place, matches the key this many steps back."""
    angles, half = back * wheel_speeds(), ROTARY_WIDTH // 2
    query = torch.zeros(ROTARY_WIDTH, dtype=torch.float64)
    query[:ROTARY_PAIRS] = angles.cos()
    query[half : half + ROTARY_PAIRS] = -angles.sin()
    return query * rotary_gain(beta) / ROTARY_PAIRS


def rotary_gain(beta: float) -> float:
    """Return the gain with which a target scores beta more than the keys beside it."""
    return beta / (1.0 - float(wheel_speeds().cos().mean()))


def wheel_speeds() -> Float64[Tensor, " pair"]:
    """Return by how much each pair of dimensions in use turns a step."""
    exponents = 2 * torch.arange(ROTARY_PAIRS, dtype=torch.float64) / ROTARY_WIDTH
    return ROTARY_BASE**-exponents
