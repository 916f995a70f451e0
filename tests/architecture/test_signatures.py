"""A function of more than eight parameters hides a value object, unless its reason is here."""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
MOST = 8
LONGER = {
    "lab.model.GPT.forward": "TransformerLens's signature, and what a pass of ours adds",
    "lab.hooked_gpt.HookedGPT.generate": "how to sample, in transformers' words",
    "probes.ablation.shapley.shapley_values": "those of a sweep, and how many orders are drawn",
    "probes.planted.planted_models.plant": "constructs the config of a model",
}


def functions(
    node: ast.AST, where: str
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for child in ast.iter_child_nodes(node):
        named = where
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            named = f"{where}.{child.name}"
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield named, child
        yield from functions(child, named)


def test_more_than_eight_parameters_have_a_reason():
    found = set()
    for package in ("lab", "probes", "apps"):
        for path in (ROOT / package).rglob("*.py"):
            module = path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".")
            for name, function in functions(ast.parse(path.read_text(encoding="utf-8")), module):
                given = function.args
                names = [arg.arg for arg in (*given.posonlyargs, *given.args, *given.kwonlyargs)]
                if len([own for own in names if own not in ("self", "cls")]) > MOST:
                    found.add(name)
    assert found == set(LONGER)
