"""What the sections of a recipe are made of."""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic_core import PydanticCustomError

MAX_COUNT = 2**40  # no count of a recipe is larger; keeps every product of two within what JSON and msgpack carry

Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NotNegative = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


def impossible(key: str, reason: str) -> None:
    """Refuse a combination of values, from a validator of a section; `key` is where the mistake is reported."""
    raise PydanticCustomError("impossible", "{reason}", {"key": key, "reason": reason})
