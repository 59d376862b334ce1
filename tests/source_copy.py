"""A copy of the source tree in which one function differs; the other files are links."""

import ast
from collections.abc import Iterable
from pathlib import Path
from typing import Any


class Replacement(ast.NodeTransformer):
    """Replaces an expression or a statement by another; the layout of the code does not matter."""

    def __init__(self, old: str, new: str) -> None:
        self._old, self._new, self.count = ast.dump(_parse(old)), ast.parse(new).body, 0

    def visit(self, node: ast.AST) -> Any:
        if ast.dump(node) != self._old:
            return self.generic_visit(node)
        self.count += 1
        first = self._new[0]
        return first.value if isinstance(first, ast.Expr) else self._new


def _parse(code: str) -> ast.AST:
    """Parse an expression, or else a statement."""
    statement = ast.parse(code).body[0]
    return statement.value if isinstance(statement, ast.Expr) else statement


def changed_module(tree: Path, function: str, changes: Iterable[tuple[str, str]]) -> ast.Module:
    """The module of a function, with some changes in the function.

    `function` is `path.py::Class.method`, or `path.py` for the whole module.

    Each change is an expression or a statement that occurs once in the function, and the code that replaces it.
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
    return module


def write_changed_copy(tree: Path, target: Path, function: str, changes: Iterable[tuple[str, str]]) -> Path:
    """Write to `target` a copy of a source tree with the changes of `changed_module`."""
    module, file = changed_module(tree, function, changes), function.partition("::")[0]
    _link(tree, target, tree / file)
    (target / file).write_text(ast.unparse(ast.fix_missing_locations(module)))
    return target


def _link(tree: Path, target: Path, changed_file: Path) -> None:
    """Create links to all files except this one and its compiled form."""
    target.mkdir()
    for path in tree.iterdir():
        if path in changed_file.parents or path == changed_file.parent / "__pycache__":
            _link(path, target / path.name, changed_file)
        elif path != changed_file and not path.name.startswith((f"{changed_file.stem}.", ".")):
            (target / path.name).symlink_to(path)
