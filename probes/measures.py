"""The one list of what is measured beside the probes: which table each gives, and who measures it.

A probe of `probes.registry` is mass on target cells; the measures here need more than cells, or
something else. docs/probes.md is written from this list and from the docstrings of the functions,
which have the paragraphs Range, Source and Caveat. No torch is imported: docstrings are read from
the files.
"""

import ast
from dataclasses import dataclass
from pathlib import Path

PARAGRAPHS = ("Range", "Source", "Caveat")
"""What the docstring of a measure says beside its formula."""


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureEntry:
    """One function that measures, and its table."""

    title: str
    """What it is about."""
    table: str
    """Name of the table's schema."""
    where: str
    """module:function."""
    drawn: bool = False
    """Whether docs/probes.md shows a picture of it."""

    @property
    def name(self) -> str:
        """The name of the function."""
        return self.where.partition(":")[2]


@dataclass(frozen=True, kw_only=True, slots=True)
class MeasureText:
    """What the docstring of a measure says."""

    summary: str
    """Its first sentence."""
    formula: tuple[str, ...]
    """The paragraphs that define the numbers."""
    notes: tuple[tuple[str, str], ...]
    """The text of each of PARAGRAPHS."""


MEASURES: tuple[MeasureEntry, ...] = (
    MeasureEntry(
        title="Entropy by position",
        table="entropy",
        where="probes.attention.entropy:entropy_profile",
        drawn=True,
    ),
    MeasureEntry(
        title="Distances",
        table="spectrum",
        where="probes.attention.offsets:offset_spectrum",
        drawn=True,
    ),
    MeasureEntry(title="Favourite keys", table="peaks", where="probes.attention.peaks:head_peaks"),
    MeasureEntry(
        title="What heads write", table="values", where="probes.writing.values:head_values"
    ),
    MeasureEntry(title="Copying", table="copying", where="probes.writing.copying:copying_scores"),
    MeasureEntry(
        title="Heads that look alike",
        table="distances",
        where="probes.attention.distances:head_distances",
    ),
    MeasureEntry(
        title="When heads form", table="onsets", where="probes.film.frames:find_onsets", drawn=True
    ),
    MeasureEntry(title="Ablation", table="ablation", where="probes.ablation.table:ablation_sweep"),
    MeasureEntry(
        title="Importance to first order",
        table="importance",
        where="probes.first_order.importance:head_importance",
    ),
    MeasureEntry(
        title="Attribution patching",
        table="estimates",
        where="probes.first_order.attribution_patching:estimated_ablations",
    ),
    MeasureEntry(
        title="Estimates against exact ablations",
        table="agreement",
        where="probes.first_order.agreement:first_order_study",
    ),
    MeasureEntry(
        title="Self-repair",
        table="self_repair",
        where="probes.first_order.self_repair:repair_split",
    ),
    MeasureEntry(
        title="Composition",
        table="composition",
        where="probes.feeders.composition:composition_scores",
    ),
    MeasureEntry(
        title="Activation patching",
        table="patching",
        where="probes.borrowed.patching:patch_activations",
    ),
    MeasureEntry(title="Logit lens", table="lens", where="probes.borrowed.lens:logit_lens"),
    MeasureEntry(
        title="Direct logit attribution",
        table="attribution",
        where="probes.borrowed.attribution:logit_attribution",
    ),
    MeasureEntry(
        title="Edge attribution", table="edges", where="probes.borrowed.edges:edge_attribution"
    ),
)


def text_of(entry: MeasureEntry) -> MeasureText:
    """Return what the docstring of a measure says above its arguments."""
    module, name = entry.where.split(":")
    path = Path(__file__).resolve().parents[1] / f"{module.replace('.', '/')}.py"
    tree = ast.parse(path.read_text(encoding="utf-8"))
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    docstring = next(ast.get_docstring(node) for node in functions if node.name == name) or ""
    summary, *paragraphs = docstring.partition("\n\nArgs:")[0].split("\n\n")
    notes = {}
    formula = []
    for paragraph in paragraphs:
        head, _, text = paragraph.partition(": ")
        if head in PARAGRAPHS:
            notes[head] = " ".join(text.split())
        elif not paragraph.startswith(">>>"):
            formula.append(" ".join(paragraph.split()))
    listed = ", ".join(PARAGRAPHS)
    if missing := [head for head in PARAGRAPHS if head not in notes]:
        raise ValueError(
            f"the docstring of {entry.where} must have the paragraphs {listed} above "
            f"its arguments, got none that begins with {missing[0]}:"
        )
    return MeasureText(
        summary=summary,
        formula=tuple(formula),
        notes=tuple((head, notes[head]) for head in PARAGRAPHS),
    )
