"""The recipes that come with the package: in ``peers/`` of a checkout, beside the code in an installed wheel."""

from __future__ import annotations

from pathlib import Path

from prime_p2p.errors import BadInput

_PACKAGE = Path(__file__).resolve().parent
_FOLDERS = (_PACKAGE / "recipes", _PACKAGE.parent / "peers")


def find_recipe(given: str) -> Path:
    """The file that ``given`` names: a path, or else a recipe of the package as "tiny" or "peers/tiny.toml".

    Raises:
        BadInput: There is neither.
    """
    path = Path(given)
    if path.exists():
        return path
    known = {file.stem: file for folder in _FOLDERS for file in sorted(folder.glob("*.toml"))}
    short = given.removeprefix("peers/").removesuffix(".toml")
    if short not in known:
        raise BadInput(f"{given}: no such recipe; give the path of one, or one of: {', '.join(sorted(known))}")
    return known[short]
