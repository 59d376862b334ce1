"""A copy of the source tree in which one function is changed; the other files are links."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Replacement(ast.NodeTransformer):
    """Replaces an expression or a statement, however it is laid out, by another."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new, self.count = ast.dump(_parse(old)), ast.parse(new).body, 0

    def visit(self, node: ast.AST) -> Any:
        if ast.dump(node) != self._old:
            return self.generic_visit(node)
        self.count += 1
        first = self._new[0]
        return first.value if isinstance(first, ast.Expr) else self._new


def _parse(code: str) -> ast.AST:
    """The expression, or else the statement."""
    statement = ast.parse(code).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def changed(tree: Path, to: Path, function: str, changes: Iterable[tuple[str, str]]) -> Path:
    """Make `to` such a copy. `function` is `path.py::Class.method`, or `path.py` for the whole module.

    Each change is an expression or a statement that the function has once, and the code in its place.
    """
    file, _, name = function.partition("::")
    module = ast.parse((tree / file).read_text())
    scope: ast.AST = module
    for part in filter(None, name.split(".")):
        scope = next(node for node in ast.walk(scope) if getattr(node, "name", None) == part)
    for old, new in changes:
        replacement = Replacement(old, new)
        replacement.visit(scope)
        assert replacement.count == 1, f"{function} has {old!r} {replacement.count} times"
    _link(tree, to, tree / file)
    (to / file).write_text(ast.unparse(ast.fix_missing_locations(module)))
    return to


def _link(tree: Path, to: Path, own: Path) -> None:
    """Link all but this file and its compiled form, which is written to the copy."""
    to.mkdir()
    for one in tree.iterdir():
        if one in own.parents or one == own.parent / "__pycache__":
            _link(one, to / one.name, own)
        elif one != own and not one.name.startswith((f"{own.stem}.", ".")):
            (to / one.name).symlink_to(one)
