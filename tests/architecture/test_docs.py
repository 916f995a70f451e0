"""The generated page of docs/ is what its generator writes today."""

import io
import re
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from probes.catalogue import probes_as_markdown

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = DOCS / "probes.md"


def test_page_of_probes_is_up_to_date():
    assert PAGE.read_text() == probes_as_markdown(), "run `make docs`"


def test_every_picture_of_the_page_is_there_and_small():
    shown = set(re.findall(r"!\[[^]]+\]\(([^)]+)\)", PAGE.read_text()))
    there = {path.relative_to(DOCS).as_posix() for path in (DOCS / "probes").iterdir()}
    assert shown == there
    for name in shown:
        assert (DOCS / name).stat().st_size < 40_000, name
        with Image.open(DOCS / name) as image:
            assert 300 <= image.width <= 900, name


def test_every_link_of_the_page_leads_somewhere():
    text = PAGE.read_text()
    headings = re.findall(r"^#+ (.+)$", text, re.M)
    anchors = {re.sub(r"[^\w\- ]", "", line.lower()).replace(" ", "-") for line in headings}
    for link in re.findall(r"(?<!!)\[[^]]+\]\(([^)]+)\)", text):
        assert link[1:] in anchors if link.startswith("#") else (DOCS / link).exists(), link


@pytest.mark.slow
def test_pictures_are_what_is_drawn_today():
    from probes.catalogue_pictures import all_pictures

    for name, data in all_pictures().items():
        with Image.open(io.BytesIO(data)) as new, Image.open(DOCS / "probes" / name) as old:
            assert new.size == old.size, name
            pixels = [np.asarray(image.convert("L"), dtype=float) for image in (new, old)]
            assert np.abs(pixels[0] - pixels[1]).mean() < 1.0, f"{name}: run `make docs`"
