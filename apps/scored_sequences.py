"""The rows that a command scores: sequences, scored rows, and reference sequences.

The scored rows are a task's answers, the second copy of repeated tokens, or every next token of the
user's own prompts.
"""

import dataclasses
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Literal

from apps.commands.arguments import flag
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
"""Default number of repeated sequences; small, because a sweep reads them for every head."""

ScoredSequences = Annotated[
    int | None,
    flag(
        "N",
        "Sequences to measure on.",
        f"(default: {SEQUENCES} of a run's task, {REPEATED_SEQUENCES} repeated ones)",
    ),
]
"""The flag --sequences of commands that score rows."""

TOPIC_SEQUENCES = 16
"""Default number of sequences of documentation in each split."""
TOPIC_TOKENS = 128
"""Tokens of each."""

DONORS = 8
"""Sequences whose outputs replace a head's, one after the other, in mode resample."""

Mode = Literal["zero", "mean", "resample"]
"""What replaces an ablated head's output."""

WRITES: tuple[tuple[Mode, str], ...] = (
    ("zero", "zeros"),
    ("mean", "its mean at each position over other sequences"),
    ("resample", f"its output on {DONORS} other sequences in turn; the effects are averaged"),
)
"""What replaces a head's output, by mode."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ScoredInput:
    """Sequences with their scored rows, and reference sequences of the same kind."""

    batch: "Batch"
    description: str
    """Which sequences."""
    rows: str
    """Which rows are scored."""
    task: str | None
    """Their task, if they are of one."""
    reference: "Batch"
    """Other sequences, whose means or outputs replace a head's; `batch` if there are none."""
    reference_name: str
    padded: bool = False
    """Whether some sequences are shorter than others, so that positions are not comparable."""

    @property
    def digest(self) -> str:
        """Digest of the sequences and the scored rows."""
        from probes.tables import digest

        parts = (self.batch.tokens, self.batch.loss_mask)
        return digest(b"".join(part.numpy().tobytes() for part in parts))

    @property
    def facts(self) -> list[tuple[str, str]]:
        """Input and scored rows, as lines for `say_facts`."""
        return [("input", self.description), ("scored", self.rows)]

    @property
    def interval(self) -> str:
        """Description of the intervals over these sequences."""
        from probes.intervals import FEW_SEQUENCES

        few = "" if len(self.batch) >= FEW_SEQUENCES else "; rough, because there are few sequences"
        return f"95 %, bootstrap over sequences{few}"


def ablation_facts(chosen: ScoredInput, mode: Mode, value: float = 0.0) -> list[tuple[str, str]]:
    """Return how heads were ablated and the kind of interval, as lines for `say_facts`."""
    how = f"{mode}: a head's output is replaced with {dict(WRITES)[mode]}"
    if mode != "zero":
        how += f" (of {chosen.reference_name})"
    if value:
        how += f"; the head keeps {value:g} of its own"
    return [("ablated", how), ("interval", chosen.interval)]


def scored_input(subject: Subject, form: SubjectForm) -> ScoredInput:
    """Return the sequences that a command measures on, with the scored rows.

    Raises:
        ValueError: As `choose_input`, or the context is too short for repeated tokens.
    """
    chosen = choose_input(
        subject,
        given=form.files,
        sequences=form.sequences,
        repeated=form.repeated,
        pairs=REPEATED_SEQUENCES,
    )
    if chosen.sequences is None:
        return repeated_input(subject, chosen.n, form.seed)
    from lab.tasks.base import Batch

    if subject.opened is not None and isinstance(chosen.sequences, Batch):
        return answers_of_a_task(subject, chosen, chosen.sequences)
    assert not isinstance(chosen.sequences, Batch)  # only a run has a task
    return every_next_token(chosen, chosen.sequences)


def split_input(subject: Subject, form: SubjectForm) -> ScoredInput:
    """Return held-out sequences, with other sequences for selection as the reference.

    For a run, they come from two splits of its task. Prompts of a file are halved. A model with a
    tokenizer reads Python's documentation topics, unless --repeated is given.

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
            "a file of prompts must have at least 2 lines, half of them for selection, got 1 "
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
    """Return English text: held-out topics, and other topics for selection."""
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


def repeated_input(
    subject: Subject, n: int, seed: int, *, longest: int | None = None
) -> ScoredInput:
    """Return repeated random tokens, scored on the second copy."""
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
    """Draw repeated random tokens, by default of a length to measure a loss on."""
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
        rows="query rows whose logits predict an answer token",
        task=chosen.task,
        reference=reference,
        reference_name=f"{counted(len(reference), 'other sequence')} of {chosen.task}",
    )


def every_next_token(chosen: Input, tokens: "Tokens") -> ScoredInput:
    """Return the user's prompts, scored on every token but the first; padding is not scored.

    Raises:
        ValueError: No prompt has a second token.
    """
    from probes.ablation.sweep import scored_batch
    from probes.reading.observed_model import as_batch

    batch = scored_batch(as_batch(tokens), chosen.attention_mask)
    if not bool(batch.loss_mask.any()):
        raise ValueError(
            "at least one prompt must have two tokens, got "
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
    """Return the ablation of a mode, with the means or donors that it needs.

    Raises:
        ValueError: An unknown mode or value; or a mode other than zero for prompts of different
            lengths.
    """
    from probes.ablation.sweep import Ablation
    from probes.ablation.table import head_donors, mean_reference

    if mode != "zero" and chosen.padded:
        raise ValueError(
            f"prompts must have one length for --mode {mode}, which replaces outputs position by "
            "position, got several lengths; use --mode zero or shorten them"
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
