"""A recipe's file, and what is set beside it."""

import sys
from pathlib import Path
from typing import Any

from prime_p2p.errors import BadInput
from prime_p2p.recipe.keys import Keys
from prime_p2p.recipe.mistakes import one_line

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def read_toml(path: Path) -> dict[str, Any]:
    """The table of a file. Raises BadInput where it cannot be read or is not TOML."""
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise BadInput(f"{path}: no such file") from None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{path}: is not UTF-8 text (byte {error.start})") from None
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # not only TOMLDecodeError: also endless numbers and nesting
        raise BadInput(f"{path}: is not TOML: {one_line(str(error))}") from None


def parse_override(override: str, keys: Keys) -> tuple[str, str, Any]:
    """Split "section.key=value" and read the value as the key's type asks for. Raises BadInput."""
    target, equals, text = override.partition("=")
    section, dot, key = (part.strip() for part in target.partition("."))
    if not (equals and dot and section and key):
        raise BadInput(f"--set {one_line(override)}: must be section.key=value, as in inner.learning_rate=0.001")
    if keys.field(section, key) is None:
        name = f"{one_line(section)}.{one_line(key)}"
        raise BadInput(f"--set {name}: unknown key{keys.suggestion((section, key))}")
    return section, key, _parse_value(text.strip(), is_text=keys.is_text(section, key))


def _parse_value(text: str, is_text: bool) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = table["value"]
    if len(table) > 1 or (is_text and not isinstance(value, str)):
        return text
    return value
