"""`headlab generate`: a run's answer to your own symbols."""

from dataclasses import dataclass, field
from typing import Annotated

from tyro.conf import Positional, arg

from apps.commands.arguments import CheckpointStep, Device, RunName, fill_in, flag, require_named
from apps.console import one_line, say_facts
from apps.opened_run import open_for_measuring, parse_heads
from lab.config import SampleConfig
from lab.naming import head_label

ABOUT = """
Show a run's answer to your own symbols, and the right answer.

  headlab generate reversal abcdefghij
  headlab generate reversal abcdefghij --ablate L0H1 L0H2
  headlab generate reversal abcdefghij --temperature 2 --seed 7

Write the symbols without spaces: lower-case letters, as many as the run was
trained on. You may give fewer, but the model never saw shorter inputs.
"""


@dataclass(frozen=True, kw_only=True)
class GenerateForm:
    """Arguments of `headlab generate`."""

    run: RunName
    prompt: Annotated[Positional[str], flag("PROMPT", "The symbols, such as abcdefghij.")]
    ablate: Annotated[
        tuple[str, ...],
        flag(
            "HEAD",
            "Heads to ablate, such as L0H1 L1H3; their answer is below the whole model's.",
            "(default: none)",
        ),
    ] = ()
    sample: Annotated[SampleConfig, arg(name="")] = field(
        default_factory=lambda: SampleConfig(temperature=0.0)
    )
    checkpoint: CheckpointStep = None
    device: Device = "auto"


def run_generate(arguments: list[str]) -> int:
    """Print a prompt, the run's answer, and the right answer."""
    form = fill_in(GenerateForm, arguments, command="generate", about=ABOUT)
    require_named(arguments, "--ablate", form.ablate, "L0H1")
    heads = parse_heads(form.ablate)
    opened = open_for_measuring(form.run, checkpoint=form.checkpoint, device=form.device)
    from lab.gates import HeadGates
    from lab.generation import generate

    task = opened.task
    prompt = task.prompt(form.prompt)
    n_prompt = prompt.shape[1]
    right = task.sequences(task.read(form.prompt)).tokens[0, n_prompt:].tolist()
    answers: list[tuple[str, HeadGates | None]] = [("answer", None)]
    if heads:
        label = ",".join(head_label(layer, head) for layer, head in sorted(set(heads)))
        answers.append((f"without {label}", HeadGates.ablate(heads, like=opened.model)))
    facts = [("prompt", form.prompt), ("expected", "".join(task.vocab.decode(right)))]
    for what, gates in answers:
        tokens = generate(opened.model, prompt, form.sample, len(right), gates)
        answer = tokens[0, n_prompt:].tolist()
        n_right = sum(a == b for a, b in zip(answer, right, strict=True))
        verdict = "right" if answer == right else f"{n_right} of {len(right)} right"
        facts.append((what, f"{''.join(task.vocab.decode(answer))} ({verdict})"))
    n_given, length = len(form.prompt), task.n_given
    if n_given < length:
        facts.append(
            ("note", f"trained on {length} symbols only; it never saw inputs of {n_given}")
        )
    say_facts([(label, one_line(text)) for label, text in facts])
    return 0
