"""The generated page of docs/ is what its generator writes today."""

from pathlib import Path

from probes.catalogue import probes_as_markdown

PAGE = Path(__file__).resolve().parents[2] / "docs" / "probes.md"


def test_page_of_probes_is_up_to_date():
    assert PAGE.read_text() == probes_as_markdown(), "run `make docs`"
