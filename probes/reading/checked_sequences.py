"""What one call reads a model on, checked once and then handed from function to function.

A public function checks what it is given and makes `CheckedSequences`; the functions behind it take
them unchanged, and check neither the sequences nor the weights again.
"""

from dataclasses import dataclass

from lab.checks import require
from lab.shapes import GivenMask, Tokens
from lab.tasks.base import Batch
from probes.attention.targets import ProbeInput
from probes.reading.inputs import PairedInput, can_repeat, content_control, repeated_pair
from probes.reading.observed_model import ReadableModel, checked_input


@dataclass(frozen=True, kw_only=True, eq=False)
class CheckedSequences:
    """Sequences that passed all checks, and those that classes of content are measured on."""

    x: ProbeInput
    """The sequences."""
    pair: PairedInput | None
    """Repeated blocks and their control; None: the model has no room for them."""
    on_pair: bool
    """Whether x holds the repeated blocks of the pair."""
    other_answers: Tokens | None
    """x with the answers of other sequences; None: no task, or only one sequence."""

    @property
    def control(self) -> Tokens | None:
        """Return the control of x itself; None: it has none."""
        return self.pair.control if self.on_pair and self.pair is not None else None


def check_sequences(
    model: ReadableModel,
    batch_or_tokens: Batch | Tokens | None,
    *,
    attention_mask: GivenMask | None = None,
    special_ids: tuple[int, ...] | None = None,
    n_pairs: int = 64,
    seed: int = 0,
    pair: PairedInput | None = None,
) -> CheckedSequences:
    """Check the sequences that a model is read on, and draw repeated blocks.

    Args:
        model: The model; its weights are not read.
        batch_or_tokens: A task's batch or plain tokens; None: the repeated blocks themselves.
        attention_mask: True (or 1) at real tokens of the sequences. None: all are real.
        special_ids: Ids of BOS and SEP; None: as in `score_heads`.
        n_pairs: Repeated blocks to draw.
        seed: Seed of the draws.
        pair: Repeated blocks and their control, instead of drawn ones.

    Raises:
        ValueError: As `probe_input`; or there is no input and no room for repeated blocks.
    """
    known = pair is None or isinstance(pair, PairedInput)
    require(known, "pair", "what probes.reading.inputs.repeated_pair returns", pair)
    on_pair = batch_or_tokens is None
    if pair is None and (on_pair or can_repeat(model)):
        pair = repeated_pair(model, n_sequences=n_pairs, seed=seed)
    other_answers = None
    if batch_or_tokens is None:
        assert pair is not None  # repeated_pair has raised where there is no room
        require(attention_mask is None, "attention_mask", "that of an input", "one without input")
        x = checked_input(model, pair.tokens, pair.special_ids)
    else:
        x = checked_input(model, batch_or_tokens, special_ids, attention_mask)
        if isinstance(batch_or_tokens, Batch) and len(batch_or_tokens) > 1:
            other_answers = content_control(batch_or_tokens)
    return CheckedSequences(x=x, pair=pair, on_pair=on_pair, other_answers=other_answers)
