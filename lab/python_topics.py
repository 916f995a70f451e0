"""English text that ships with Python: the documentation topics behind `help()`.

Half of the topics, by a hash of their names, are for selection (for example of heads to
remove), the other half for reporting. The texts are in the standard library's module
`pydoc_data.topics`; this module splits them into sequences of equal length.
"""

import hashlib
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch

from lab.checks import require_choice, require_whole
from lab.families.token_text import encode
from lab.naming import counted
from lab.shapes import Tokens
from lab.vocab import Vocab

TopicSplit = Literal["selection", "held-out"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TopicSequences:
    """Sequences of consecutive tokens, each of one topic."""

    tokens: Tokens
    """Each begins with the tokenizer's BOS, if it has one."""
    topics: tuple[str, ...]
    """The topic of each sequence."""
    description: str
    """Description of the text and its size, for the provenance of a table."""


def topic_sequences(
    tokenizer: Any, split: TopicSplit, *, n_sequences: int | None = None, n_tokens: int = 128
) -> TopicSequences:
    """Return sequences of the documentation topics of one split.

    Topics come in the order of their hashes. Every topic gives its first sequence before any gives
    its second, so that a few sequences cover many topics. The rest of a topic after its last whole
    sequence is dropped.

    Args:
        tokenizer: A fast tokenizer of transformers.
        split: "selection" to choose by, "held-out" to report on.
        n_sequences: Number of sequences; None: all.
        n_tokens: Tokens of a sequence, BOS included.

    Raises:
        ValueError: No such split, too few sequences, no text tokenizer, or a Python without the
            texts.
    """
    require_choice("split", split, get_args(TopicSplit))
    require_whole("n_tokens", n_tokens, 2)
    if n_sequences is not None:
        require_whole("n_sequences", n_sequences, 1)
    if tokenizer is None or isinstance(tokenizer, Vocab):
        raise ValueError(
            "tokenizer must be a text tokenizer to read documentation topics, got "
            f"{'none' if tokenizer is None else 'the symbols of a task'}; give token ids instead"
        )
    names = topics_of(split)
    start = [] if tokenizer.bos_token_id is None else [int(tokenizer.bos_token_id)]
    step = n_tokens - len(start)
    texts = topic_texts()
    ids = {name: encode(tokenizer, texts[name], prepend_bos=False) for name in names}
    whole = sorted(
        (first // step, turn, name)
        for turn, name in enumerate(names)
        for first in range(0, len(ids[name]) - step + 1, step)
    )
    wanted = len(whole) if n_sequences is None else n_sequences
    if not 1 <= wanted <= len(whole):
        raise ValueError(
            f"n_sequences must be at most {len(whole)}, what the {split} topics of this Python "
            f"hold at {n_tokens} tokens each, got {wanted}; take fewer or shorter ones"
        )
    chosen = whole[:wanted]
    rows = [start + ids[name][nth * step : (nth + 1) * step] for nth, _, name in chosen]
    topics = tuple(name for _, _, name in chosen)
    total = sum(map(len, ids.values()))
    return TopicSequences(
        tokens=torch.tensor(rows),
        topics=topics,
        description=f"{counted(wanted, 'sequence')} of {n_tokens} tokens from "
        f"{len(set(topics))} of {len(names)} {split} topics: {wanted * step} of their {total} "
        f"tokens (pydoc_data.topics of Python {platform.python_version()})",
    )


def topics_of(split: TopicSplit) -> list[str]:
    """Return the names of a split's topics, in the order of their hashes."""
    hashes = {name: hashlib.sha256(name.encode()).digest() for name in topic_texts()}
    parity = get_args(TopicSplit).index(split)
    return sorted((n for n in hashes if hashes[n][-1] % 2 == parity), key=hashes.__getitem__)


def topic_texts() -> Mapping[str, str]:
    """Return the documentation topics of this Python by name.

    Raises:
        ValueError: It was built without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError:
        raise ValueError(
            "this Python must have its documentation topics (pydoc_data.topics), got one without "
            "them; install all of its standard library or give text of your own"
        ) from None
    return topics
