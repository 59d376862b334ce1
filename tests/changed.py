"""A tree with one file of it changed: what stands in the others is theirs, by links."""

from collections.abc import Sequence
from pathlib import Path


def changed(tree: Path, to: Path, file: str, changes: Sequence[tuple[str, str]]) -> Path:
    """Make `to` such a tree, in which each of these texts of the file, that stands there once, is another."""
    own = tree / file
    _link(tree, to, own)
    text = own.read_text()
    for old, new in changes:
        assert text.count(old) == 1, f"{old!r} stands {text.count(old)} times in {file}"
        text = text.replace(old, new)
    (to / file).write_text(text)
    return to


def _link(tree: Path, to: Path, own: Path) -> None:
    """Without this file, and what was compiled of it: what is compiled beside it is written here, not there."""
    to.mkdir()
    for one in tree.iterdir():
        if one in own.parents or one == own.parent / "__pycache__":
            _link(one, to / one.name, own)
        elif one != own and not one.name.startswith((f"{own.stem}.", ".")):
            (to / one.name).symlink_to(one)
