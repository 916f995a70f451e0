"""Lines of code by package: `python -m tests.benchmarks.code_lines TREE [TREE ...]`.

Blank lines, comments and docstrings (of attributes, too) do not count; the second number of each
column is that of all lines.
"""

import ast
import io
import sys
import tokenize
from pathlib import Path

PACKAGES = ("lab", "probes", "apps", "tests")
SILENT = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT}


def code_lines(text: str) -> int:
    """Return how many lines hold code."""
    prose = {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
        for line in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in SILENT and token.string:
            found.update(range(token.start[0], token.end[0] + 1))
    return len(found - prose)


def main(trees: list[str]) -> None:
    """Print the table, a row for each tree."""
    print(" " * 24, *(f"{package:>16}" for package in (*PACKAGES, "product")))
    for tree in trees:
        counts = []
        for package in PACKAGES:
            texts = [path.read_text() for path in Path(tree, package).rglob("*.py")]
            lines = sum(map(code_lines, texts)), sum(text.count("\n") for text in texts)
            counts.append(lines)
        counts.append(tuple(map(sum, zip(*counts[:3], strict=True))))
        print(f"{tree[-24:]:24}", *(f"{f'{code:,} {total:,}':>16}" for code, total in counts))


if __name__ == "__main__":
    main(sys.argv[1:])
