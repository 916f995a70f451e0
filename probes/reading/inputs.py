"""Sequences made for probing: repeated blocks with their control, and other answers to a task.

A head that matches tokens shows it only where tokens repeat, and only against a control that shares
everything but the repeat. What is measured on these sequences is in `probes.attention.heads` and
`probes.labels.evidence`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Int64

from lab.checks import is_whole, require, require_seed, require_whole
from lab.config import ModelConfig
from lab.naming import quoted
from lab.shapes import Tokens
from lab.tasks.base import Batch
from lab.vocab import BOS_ID, SPECIAL_SYMBOLS, Vocab
from probes.reading.bridge import bridge_setting

LONGEST_BLOCK = 25
"""Tokens of a block where nothing forces a shorter one (Olsson et al. 2022)."""
LONGEST_SCORED_BLOCK = 40
"""The same where a model's loss on the second block is measured, which wants rows."""
SHORTEST_BLOCK = 4
"""Below, offsets collide: with 2 tokens the induction target is the previous token."""
LARGE_VOCABULARY = 2_000
"""From this vocabulary size on, the first 2 % (bytes, controls) and the last 20 % (rare pieces) are
left out."""

Ids = Int64[np.ndarray, "batch token"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Sizes:
    """How many ids and positions a model knows."""

    d_vocab: int
    n_ctx: int


@dataclass(frozen=True, kw_only=True, eq=False)
class PairedInput:
    """Sequences, and a control for each that differs from it in one thing only.

    The cells to read follow from `first` and `block`, never from equal tokens, so that both arms
    are read at the very same cells.
    """

    tokens: Tokens
    """[prefix, a, a]: the arm in which the second block repeats the first."""
    control: Tokens
    """[prefix, b, a]: the same rows, but what stands before them is another block."""
    block: int
    """Tokens of a block, S."""
    first: int
    """Position of the first block's first token: 1 behind a prefix, else 0."""
    special_ids: tuple[int, ...]
    """The prefix, if there is one: a special token id."""
    description: str
    """What was drawn, for the provenance of a table."""
    ids: tuple[int, ...] = field(repr=False)
    """Token ids that blocks are drawn from."""

    @property
    def second(self) -> int:
        """Position of the second block's first token."""
        return self.first + self.block

    def __len__(self) -> int:
        """Return the number of sequences of an arm."""
        return len(self.tokens)

    def batch(self) -> Batch:
        """Return the repeated sequences, scored where the second block can be told from the first.

        Row p of the second block predicts p + 1, and its source is where that token stood before.
        The second block's first token is not asked: nothing announces that the repeat begins.
        """
        rows = torch.arange(self.second, self.second + self.block - 1)
        loss_mask = torch.zeros_like(self.tokens, dtype=torch.bool)
        loss_mask[:, rows] = True
        sources = torch.full_like(self.tokens, -1)
        sources[:, rows] = rows + 1 - self.block
        return Batch(self.tokens, loss_mask, sources.unsqueeze(-1))


def repeated_batch(
    model_or_config: Any,
    *,
    n_sequences: int = 8,
    block: int | None = None,
    prefix: int | Literal["bos"] | None = "bos",
    ids: Sequence[int] | None = None,
    seed: int = 0,
) -> Batch:
    """Draw [prefix, a, a], scored on the second block: what a model without a task is asked.

    The loss is the mean over the block - 1 tokens of the second block that the first one foretells
    (see `PairedInput.batch`), which a model can know by attention alone.

    >>> from lab import HookedGPT, ModelConfig
    >>> model = HookedGPT(ModelConfig(n_layers=1, n_heads=2, d_model=8, d_vocab=30, n_ctx=12))
    >>> repeated_batch(model, n_sequences=2, block=4).tokens.shape
    torch.Size([2, 9])

    Args:
        model_or_config: A model, or its config.
        n_sequences: Sequences.
        block: Tokens of a block; None: 40, or as many as context and vocabulary allow.
        prefix: See `repeated_pair`.
        ids: See `repeated_pair`.
        seed: Seed of the draws.

    Raises:
        ValueError: As `repeated_pair`.
    """
    return repeated_pair(
        model_or_config,
        n_sequences=n_sequences,
        block=block,
        longest=LONGEST_SCORED_BLOCK,
        prefix=prefix,
        ids=ids,
        seed=seed,
    ).batch()


def repeated_pair(
    model_or_config: Any,
    *,
    n_sequences: int = 64,
    block: int | None = None,
    longest: int = LONGEST_BLOCK,
    prefix: int | Literal["bos"] | None = "bos",
    ids: Sequence[int] | None = None,
    seed: int = 0,
    repeats: bool = True,
) -> PairedInput:
    """Draw [prefix, a, a] and its control [prefix, b, a], all tokens of a sequence different.

    Source: Olsson et al. 2022 (random blocks, repeated), with the paired control that removes
    what position and recency alone would give.

    Args:
        model_or_config: A model, or its config: ids and positions have to fit it.
        n_sequences: Sequences of each arm.
        block: Tokens of a block; None: `longest`, or as many as context and vocabulary allow.
        longest: Tokens of a block that is not given.
        prefix: Id before the first block; "bos": the tokenizer's BOS (else its EOS), or id 0 of a
            model without one; None: none.
        ids: Ids to draw from; None: all that are no special tokens, and in a vocabulary of 2,000
            or more without the first 2 % and the last 20 %.
        seed: Seed of the draws.
        repeats: False draws the null, in which no arm repeats anything: [prefix, c, a] against
            [prefix, b, a]. Any difference between them is luck.

    Raises:
        ValueError: A block of 4 tokens or more does not fit, or an id is unknown or given twice.
    """
    require_whole("n_sequences", n_sequences, 1)
    require_seed(seed)
    sizes = sizes_of(model_or_config)
    tokenizer = words_of(model_or_config)
    prefix_id = start_id(tokenizer, sizes.d_vocab) if prefix == "bos" else prefix
    if prefix_id is not None:
        require_whole("prefix", prefix_id, 0, sizes.d_vocab - 1)
    if ids is None:
        words = word_ids(sizes.d_vocab, tokenizer, prefix_id)
    else:
        words = list(ids)
        check_ids(words, sizes.d_vocab, prefix_id)
    n_blocks, first = 2 if repeats else 3, int(prefix_id is not None)
    room = block_room(sizes, len(words), first, n_blocks)
    if block is None:
        if room < SHORTEST_BLOCK:
            raise ValueError(
                f"model must have room for repeated blocks of {SHORTEST_BLOCK} tokens or more, but "
                f"n_ctx = {sizes.n_ctx} and {len(words)} different ids allow {max(0, room)}; give "
                "sequences of your own (on the command line with --ids or --text)"
            )
        block = min(longest, room)
    require(
        is_whole(block) and SHORTEST_BLOCK <= block <= room,
        "block",
        f"a whole number from {SHORTEST_BLOCK} to {room}, the most that n_ctx = {sizes.n_ctx} and "
        f"{len(words)} different ids allow"
        if room >= SHORTEST_BLOCK
        else f"at least {SHORTEST_BLOCK} tokens, but n_ctx = {sizes.n_ctx} and {len(words)} "
        f"different ids allow {max(0, room)}",
        block,
    )
    drawn = torch.from_numpy(distinct_ids(words, n_sequences, n_blocks * block, seed))
    second, other = drawn[:, :block], drawn[:, block : 2 * block]
    start = drawn.new_full((n_sequences, first), prefix_id or 0)
    again = second if repeats else drawn[:, 2 * block :]
    called = "no prefix" if prefix_id is None else f"prefix id {prefix_id}"
    kind = "blocks of" if repeats else "no repeats, blocks of"
    return PairedInput(
        tokens=torch.cat([start, again, second], dim=1),
        control=torch.cat([start, other, second], dim=1),
        block=block,
        first=first,
        special_ids=() if prefix_id is None else (prefix_id,),
        description=f"{n_sequences} sequences, {kind} {block}, {called}, "
        f"{len(words)} ids from {min(words)} to {max(words)} without replacement, seed {seed}",
        ids=tuple(words),
    )


def content_control(batch: Batch) -> Tokens:
    """Return a task's sequences with their answers replaced by those of other sequences.

    What is asked stays, and so does every position: a head that finds its source by position does
    not notice, a head that finds it by the answer written so far does. Sequence i gets the answer
    of sequence i + 1, and the last one that of the first.

    Raises:
        ValueError: There is one sequence only, so that there is no other answer.
    """
    require(len(batch) >= 2, "sequences to trade answers", "at least 2", len(batch))
    # The logits at a counted row predict the answer token after it.
    answer = torch.zeros_like(batch.loss_mask)
    answer[:, 1:] = batch.loss_mask[:, :-1]
    others = batch.tokens.roll(-1, dims=0)
    # Where the lengths of answers differ, what the other sequence has there may be no answer.
    both = answer & answer.roll(-1, dims=0)
    return torch.where(both, others, batch.tokens)


def can_repeat(model_or_config: Any) -> bool:
    """Return whether context and vocabulary have room for a repeated block that can be probed."""
    sizes, tokenizer = sizes_of(model_or_config), words_of(model_or_config)
    first = start_id(tokenizer, sizes.d_vocab)
    n_words = len(word_ids(sizes.d_vocab, tokenizer, first))
    return block_room(sizes, n_words, 1, 2) >= SHORTEST_BLOCK


def block_room(sizes: Sizes, n_words: int, first: int, n_blocks: int) -> int:
    """Return the longest block of which two fit the context, and n_blocks the vocabulary."""
    return min((sizes.n_ctx - first) // 2, n_words // n_blocks)


def sizes_of(model_or_config: Any) -> Sizes:
    """Return how many ids and positions a model knows, by its config or its cfg.

    Raises:
        ValueError: The value is no model and no config.
    """
    known = getattr(model_or_config, "config", model_or_config)
    if isinstance(known, ModelConfig):
        return Sizes(d_vocab=known.d_vocab, n_ctx=known.n_ctx)
    d_vocab, n_ctx = (bridge_setting(model_or_config, name) for name in ("d_vocab", "n_ctx"))
    if not (is_whole(d_vocab) and is_whole(n_ctx)):
        raise ValueError(
            "model_or_config must be a model that says d_vocab and n_ctx, or a ModelConfig, "
            f"got {quoted(type(model_or_config).__name__)}"
        )
    return Sizes(d_vocab=d_vocab, n_ctx=n_ctx)


def words_of(model_or_config: Any) -> Any | None:
    """Return a model's tokenizer of words; None where it has none, or the letters of a task."""
    tokenizer = getattr(model_or_config, "tokenizer", None)
    return None if isinstance(tokenizer, Vocab) else tokenizer


def start_id(tokenizer: Any | None, d_vocab: int) -> int:
    """Return the id that begins a sequence: BOS, else EOS, else 0, the BOS of a task's vocabulary.

    A tokenizer may name an id that the model does not have; it is passed over.
    """
    if tokenizer is None:
        return BOS_ID
    named = (getattr(tokenizer, name, None) for name in ("bos_token_id", "eos_token_id"))
    return next((i for i in named if i is not None and i < d_vocab), BOS_ID)


def word_ids(d_vocab: int, tokenizer: Any | None, prefix_id: int | None) -> list[int]:
    """Return the ids that are words: neither special, nor bytes or rare pieces."""
    own = range(len(SPECIAL_SYMBOLS)) if tokenizer is None else tokenizer_specials(tokenizer)
    special = {*own, prefix_id}
    large = d_vocab >= LARGE_VOCABULARY
    low, high = (d_vocab // 50, d_vocab * 4 // 5) if large else (0, d_vocab)
    return [i for i in range(low, high) if i not in special]


def tokenizer_specials(tokenizer: Any) -> Sequence[int]:
    """Return the ids that a tokenizer calls special."""
    return getattr(tokenizer, "all_special_ids", ())


def check_ids(words: Sequence[int], d_vocab: int, prefix_id: int | None) -> None:
    """Reject ids that are unknown, repeated, or equal to the prefix."""
    for word in words:
        require_whole("ids to draw from", word, 0, d_vocab - 1)
    if len(set(words)) < len(words) or prefix_id in words:
        with_prefix = f", with the prefix {prefix_id}" if prefix_id in words else ""
        raise ValueError(
            "ids to draw from must be different ids without the prefix, "
            f"got {len(words)} ids, {len(set(words))} of them different{with_prefix}"
        )


def distinct_ids(words: Sequence[int], n: int, count: int, seed: int) -> Ids:
    """Draw count different ids for each of n sequences."""
    known = np.asarray(words, dtype=np.int64)
    generator = np.random.default_rng(seed)
    return np.stack([known[generator.choice(len(known), count, replace=False)] for _ in range(n)])
