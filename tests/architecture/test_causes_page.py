"""docs/causes.md names what there is: flags, tables, and code that runs."""

import re
from pathlib import Path

import pytest

from apps.cli import main

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "causes.md").read_text()
COMMANDS = ("ablate", "importance", "feeders", "prune")


@pytest.mark.parametrize("command", COMMANDS)
def test_flags_of_the_page_are_flags_of_its_command(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([command, "--help"]) == 0
    known = set(re.findall(r"--[a-z][a-z-]+", capsys.readouterr().out))
    section = next(part for part in PAGE.split("\n## ") if f"`headlab {command}`" in part)
    named = set(re.findall(r"--[a-z][a-z-]+", section.split("torchrun")[0]))
    assert named and named <= known


def test_code_of_the_page_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    code = re.search(r"```python\n(.*?)```", PAGE, re.S)
    assert code is not None
    found: dict[str, object] = {}
    exec(code[1], found)
    config = getattr(found["smaller"], "config")  # noqa: B009
    assert config.kept_heads == ((0, 1, 2, 3), ())


def test_links_lead_somewhere() -> None:
    for link in re.findall(r"\]\(([^)]+)\)", PAGE):
        assert (ROOT / "docs" / link).exists(), link
