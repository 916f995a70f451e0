"""The rows that a command scores: which sequences, which of their rows, and what to compare with.

What `apps.subject` chooses is read; here it is asked: a task's answers, the second copy of what is
said twice, or every next token of a person's own prompts.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from apps.commands.subject_form import SubjectForm
from apps.opened_run import SEQUENCES
from apps.subject import Input, Subject, choose_input
from lab.naming import counted

if TYPE_CHECKING:
    from lab.shapes import Tokens
    from lab.tasks.base import Batch
    from probes.ablation.sweep import Ablation
    from probes.reading.inputs import PairedInput

REPEATED_SEQUENCES = 8
"""Sequences that are said twice, unless told otherwise: a sweep of many heads reads them often."""

ScoredSequences = Annotated[
    int | None,
    arg(
        metavar="N",
        help="Sequences to measure on.",
        help_behavior_hint=f"(default: {SEQUENCES} of a run's task, "
        f"{REPEATED_SEQUENCES} repeated ones)",
    ),
]
"""How many sequences are scored, as a flag."""

TOPIC_SEQUENCES = 16
"""Sequences of documentation, of each split, unless told otherwise."""
TOPIC_TOKENS = 128
"""Tokens of each."""

DONORS = 8
"""Sequences whose outputs stand, one after the other, for a head's in mode resample."""

Mode = Literal["zero", "mean", "resample"]
"""What replaces an ablated head's output."""

WRITES: tuple[tuple[Mode, str], ...] = (
    ("zero", "zeros"),
    ("mean", "its mean at each position over other sequences"),
    ("resample", f"what it writes on {DONORS} other sequences in turn; the mean of their effects"),
)
"""What an ablated head writes, by mode."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredInput:
    """Sequences with the rows that count, and others of the same kind."""

    batch: "Batch"
    description: str
    """Which sequences."""
    rows: str
    """Which of their rows count."""
    task: str | None
    """The task that they are sequences of."""
    reference: "Batch"
    """Others, whose means or outputs stand for a head's; the same where there are no others."""
    reference_name: str
    padded: bool = False
    """Whether some sequences are shorter than others, so that positions are not comparable."""

    @property
    def digest(self) -> str:
        """Digest of the sequences and of which rows count."""
        from probes.tables import digest

        parts = (self.batch.tokens, self.batch.loss_mask)
        return digest(b"".join(part.numpy().tobytes() for part in parts))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What was read and scored, as lines of a label and a text."""
        return [("input", self.description), ("scored", self.rows)]

    @property
    def interval(self) -> str:
        """What the intervals over these sequences are."""
        from probes.intervals import FEW_SEQUENCES

        few = "" if len(self.batch) >= FEW_SEQUENCES else "; so few sequences make it rough"
        return f"95 %, sequences resampled{few}"


def ablation_facts(chosen: ScoredInput, mode: Mode, value: float = 0.0) -> list[tuple[str, str]]:
    """Return how heads were ablated, and what the intervals are, as lines for `say_facts`."""
    how = f"{mode}: a head writes {dict(WRITES)[mode]}"
    if mode != "zero":
        how += f" (of {chosen.reference_name})"
    if value:
        how += f"; it keeps {value:g} of its own"
    return [("ablated", how), ("interval", chosen.interval)]


def scored_input(subject: Subject, form: SubjectForm) -> ScoredInput:
    """Return what a command measures on: sequences, and the rows that count.

    Raises:
        ValueError: As `choose_input`, or a model without room for anything said twice.
    """
    chosen = choose_input(
        subject,
        given=form.files,
        sequences=form.sequences,
        repeated=form.repeated,
        pairs=REPEATED_SEQUENCES,
    )
    if chosen.sequences is None:
        return said_twice(subject, chosen.n, form.seed)
    from lab.tasks.base import Batch

    if subject.opened is not None and isinstance(chosen.sequences, Batch):
        return answers_of_a_task(subject, chosen, chosen.sequences)
    assert not isinstance(chosen.sequences, Batch)  # a batch of a model that is no run
    return every_next_token(chosen, chosen.sequences)


def split_input(subject: Subject, form: SubjectForm) -> ScoredInput:
    """Return held-out sequences, and as the reference others to choose by, none of them the same.

    A run's are of two splits of its task, prompts of a file are halved; a model with a tokenizer
    reads documentation topics that every Python carries, unless it is to read repeated tokens.

    Raises:
        ValueError: As `scored_input`, or a file of one prompt.
    """
    from probes.reading.inputs import words_of

    own = subject.opened is not None or form.files or form.repeated
    if not own and words_of(subject.model) is not None:
        return documentation(subject, form.sequences or TOPIC_SEQUENCES)
    chosen = scored_input(subject, form)
    if chosen.batch is not chosen.reference:
        return chosen
    half = len(chosen.batch) // 2
    if not half:
        raise ValueError(
            "a file of prompts must have at least 2 lines, half of them to choose by, got 1 "
            f"({chosen.description}); add another"
        )
    return dataclasses.replace(
        chosen,
        batch=chosen.batch[half:],
        reference=chosen.batch[:half],
        reference_name=f"the first {counted(half, 'prompt')}",
        description=f"{chosen.description}; held out: all but the first {half}",
    )


def documentation(subject: Subject, n: int) -> ScoredInput:
    """Return English text: topics to report on, and others to choose by."""
    from lab.python_topics import topic_sequences
    from probes.reading.observed_model import as_batch

    tokenizer = subject.model.tokenizer
    held_out, selection = (
        topic_sequences(tokenizer, split, n_sequences=n, n_tokens=TOPIC_TOKENS)
        for split in ("held-out", "selection")
    )
    return ScoredInput(
        batch=as_batch(held_out.tokens),
        description=held_out.description,
        rows="every row that predicts a token of its text",
        task=None,
        reference=as_batch(selection.tokens),
        reference_name=selection.description,
    )


def said_twice(subject: Subject, n: int, seed: int, *, longest: int | None = None) -> ScoredInput:
    """Return random tokens said twice, scored on the second copy."""
    n_others = max(n, DONORS)
    asked = repeats(subject, n, seed, longest=longest)
    return ScoredInput(
        batch=asked.batch(),
        description=asked.description,
        rows=f"{asked.block - 1} rows each: those that predict the second copy from its 2nd token",
        task=None,
        reference=repeats(subject, n_others, seed + 1, longest=longest).batch(),
        reference_name=f"{counted(n_others, 'repeated sequence')} of seed {seed + 1}",
    )


def repeats(subject: Subject, n: int, seed: int, *, longest: int | None = None) -> "PairedInput":
    """Draw random tokens said twice; unless told otherwise long enough to measure a loss on."""
    from probes.reading.inputs import LONGEST_SCORED_BLOCK, repeated_pair

    longest = LONGEST_SCORED_BLOCK if longest is None else longest
    return repeated_pair(subject.model, n_sequences=n, longest=longest, seed=seed)


def answers_of_a_task(subject: Subject, chosen: Input, batch: "Batch") -> ScoredInput:
    """Return sequences of a run's task, scored on their answers."""
    assert subject.opened is not None
    reference = subject.opened.reference_batch()
    return ScoredInput(
        batch=batch,
        description=chosen.description,
        rows="rows whose logits predict an answer token",
        task=chosen.task,
        reference=reference,
        reference_name=f"{counted(len(reference), 'sequence')} of {chosen.task} kept for that",
    )


def every_next_token(chosen: Input, tokens: "Tokens") -> ScoredInput:
    """Return a person's prompts, scored on every token but the first; padding counts nowhere.

    Raises:
        ValueError: No prompt has a second token.
    """
    from probes.ablation.sweep import scored_batch
    from probes.reading.observed_model import as_batch

    batch = scored_batch(as_batch(tokens), chosen.attention_mask)
    if not bool(batch.loss_mask.any()):
        raise ValueError(
            "some prompt must have two tokens, the second to be predicted, got "
            f"{counted(len(batch), 'prompt')} of one token; give longer ones"
        )
    return ScoredInput(
        batch=batch,
        description=chosen.description,
        rows="every row that predicts a token of its prompt",
        task=None,
        reference=batch,
        reference_name="the same prompts",
        padded=chosen.attention_mask is not None,
    )


def ablation_of(
    subject: Subject, chosen: ScoredInput, mode: Mode, *, value: float = 0.0
) -> "Ablation":
    """Return what happens to ablated heads, with what fills the gap.

    Raises:
        ValueError: An unknown mode or value, or a mode that positions are compared in, asked of
            prompts of different lengths.
    """
    from probes.ablation.sweep import Ablation
    from probes.ablation.table import head_donors, mean_reference

    if mode != "zero" and chosen.padded:
        raise ValueError(
            f"prompts must be of one length for --mode {mode}, which fills the gap position by "
            "position, got several lengths; take --mode zero or cut them"
        )
    name = chosen.reference_name
    return Ablation(
        mode=mode,
        value=value,
        reference=mean_reference(subject.model, chosen.reference, name=name)
        if mode == "mean"
        else None,
        donors=head_donors(subject.model, chosen.reference[:DONORS], name=name)
        if mode == "resample"
        else None,
    )
