"""`headlab card`: how often the labels of heads are right, on heads that are known."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from tyro.conf import arg

from apps.commands.arguments import check_out, fill_in, flag
from apps.console import say, say_facts
from apps.terminal.card_table import say_card
from apps.terminal.progress_bars import progress_bar

if TYPE_CHECKING:
    from probes.grades.card import Card

MOST_JOBS = 8
"""With more processes, starting them takes longer than their work."""

ABOUT = """
Grade the head labels on planted models, whose heads are known: recall,
confusions, and false positives on random weights. TransformerLens's
detect_head and plain mean attention are graded on the same heads.

  headlab card
  headlab card --out card

  precision  share of the heads of that label that are of that class
  recall     share of the heads of that class that have that label
  F1         harmonic mean of the two
  PR-AUC     average precision of the number behind the label (no threshold)

The thresholds were chosen on the models of seeds 0 to 99; the card is measured
on those of seeds 100 to 199. It takes a minute or two.
"""


@dataclass(frozen=True, kw_only=True)
class CardForm:
    """Arguments of `headlab card`."""

    seeds: Annotated[
        Literal["card", "tuning"],
        arg(
            help="card: seeds 100 to 199. tuning: seeds 0 to 99, on which thresholds may be chosen."
        ),
    ] = "card"
    out: Annotated[
        str | None,
        flag("DIR", "Also write every table and a picture into this folder.", ""),
    ] = None


def run_card(arguments: list[str]) -> int:
    """Print the card, and write it into --out."""
    form = fill_in(CardForm, arguments, command="card", about=ABOUT)
    out = None if form.out is None else check_out(form.out)
    from probes.grades.card import measure_card
    from probes.planted.cohort import CARD_SEEDS, TUNING_SEEDS

    seeds = CARD_SEEDS if form.seeds == "card" else TUNING_SEEDS
    with progress_bar("labelling known heads") as show:
        card = measure_card(seeds, jobs=min(MOST_JOBS, os.cpu_count() or 1), progress=show)
    say_card(card, seeds)
    if out is not None:
        say()
        say_facts([("wrote", ", ".join(str(path) for path in write_card(card, out)))])
    return 0


def write_card(card: "Card", folder: Path) -> list[Path]:
    """Write the tables (CSV, Parquet, JSON) and the confusion matrices (PNG); return the files."""
    from probes.plots import new_figure, plot_confusion, png_bytes
    from probes.table_files import files_of, write_whole

    files = files_of(card.tables)
    for labeler, frame in card.confusion.groupby("labeler", sort=False):
        name = "confusion-" + "-".join(str(labeler).replace("0.4", "0_4").split()) + ".png"
        figure = new_figure(12.0, 2.0 + 0.5 * frame["truth"].nunique())
        ax = plot_confusion(frame, ax=figure.add_subplot())
        ax.set_title(f"Known heads, as labelled by {labeler}", loc="left")
        files[name] = png_bytes(figure)
    return write_whole(folder, files)
