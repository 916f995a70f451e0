"""`headlab report`: all tables, figures and one HTML page of a run."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from apps.commands.arguments import RunName, check_out, fill_in, flag
from apps.console import remark, say_facts
from apps.opened_run import remark_on_missing_files
from lab.run_folders import Run, open_run

REPORT = "report.html"


ABOUT = """
Write all probe results for a run: tables (CSV, Parquet, JSON), figures and one
self-contained HTML page.

  headlab report reversal
  headlab report reversal --out reversal-report
"""


@dataclass(frozen=True, kw_only=True)
class ReportForm:
    """Arguments of `headlab report`."""

    run: RunName
    out: Annotated[
        str | None,
        flag(
            "DIR",
            "Folder to write to; it must not be a run itself.",
            "(default: the run's own folder)",
        ),
    ] = None


def run_report(arguments: list[str]) -> int:
    """Write the report of a run and print its path."""
    form = fill_in(ReportForm, arguments, command="report", about=ABOUT)
    run = open_run(form.run)
    out = None if form.out is None else check_out(form.out, new=False)
    say_facts([("report", str(report_run(run, out)))])
    return 0


def report_run(run: Run, out: Path | None = None) -> Path:
    """Write the report of a run, into its own folder unless told otherwise; return its page."""
    from probes.report.folder import write_report

    remark_on_missing_files(run)
    remark(f"writing the report of {run.name} ...")
    return write_report(run, out) / REPORT
