"""The keys that a recipe may have, by section."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Literal, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo


class Keys:
    """Those of a model whose fields are sections."""

    def __init__(self, recipe: type[BaseModel]) -> None:
        self._sections = {name: _fields(field) for name, field in recipe.model_fields.items()}

    def field(self, section: str, key: str) -> FieldInfo | None:
        """What a key takes; None where there is no such key."""
        return self._sections.get(section, {}).get(key)

    def is_text(self, section: str, key: str) -> bool:
        """Whether a key takes text."""
        field = self.field(section, key)
        return field is not None and (field.annotation is str or get_origin(field.annotation) is Literal)

    def suggestion(self, location: Sequence[object]) -> str:
        """What an unknown section or section.key was probably meant to be; empty when nothing is close."""
        keys = [f"{section}.{key}" for section, fields in self._sections.items() for key in fields]
        name = ".".join(str(part) for part in location)
        close = difflib.get_close_matches(name, keys if len(location) > 1 else list(self._sections), n=1, cutoff=0.75)
        if not close and len(location) > 1:
            close = [key for key in keys if key.partition(".")[2] == location[-1]][:1]
        return f" (did you mean {close[0]}?)" if close else ""


def _fields(section: FieldInfo) -> Mapping[str, FieldInfo]:
    kind = section.annotation
    return kind.model_fields if isinstance(kind, type) and issubclass(kind, BaseModel) else {}
