"""What a run is: model, data, optimizers and round policy, read from a TOML file.

Every mistake in a recipe is a `BadInput` of one line that names the file, the key and the reason.
"""

import difflib
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_origin

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails, PydanticCustomError

from prime_p2p.agreement import plain, shown
from prime_p2p.errors import BadInput

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

RUN_NAME = r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$"
STDLIB = "python-stdlib"
"""A ``data.source`` that is on every machine: the source files of Python's standard library."""
MAX_COUNT = 2**40  # no count of a recipe is larger; keeps every product of two within what JSON and msgpack carry

Positive = Annotated[int, Field(gt=0, le=MAX_COUNT)]
NotNegative = Annotated[int, Field(ge=0, le=MAX_COUNT)]
Seconds = Annotated[float, Field(gt=0, le=86400)]
Beta = Annotated[float, Field(ge=0, lt=1)]


class _Section(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True, allow_inf_nan=False)


class RunRecipe(_Section):
    """[run]: which run this is. `outer_steps` is where a peer stops by itself, 0 for never.

    `start` says who begins the run where nobody holds a state of it: "anyone", or "nobody": peers then wait for one
    that holds it.
    """

    name: str = Field(pattern=RUN_NAME)
    seed: int = Field(default=0, ge=0, lt=2**63)
    outer_steps: NotNegative = 0
    start: Literal["anyone", "nobody"] = "nobody"


class ModelRecipe(_Section):
    """[model]: the shape of a Llama. `context` is in tokens; tokens are bytes unless `vocab_size` allows for more."""

    vocab_size: int = Field(default=256, ge=256, le=2**24)
    hidden_size: Positive
    intermediate_size: Positive
    layers: Positive
    heads: Positive
    kv_heads: Positive
    context: int = Field(ge=2, le=2**24)

    @model_validator(mode="after")
    def _shape_is_possible(self) -> "ModelRecipe":
        if self.hidden_size % self.heads:
            _impossible("hidden_size", f"must be divisible by model.heads (got {self.hidden_size} and {self.heads})")
        if self.hidden_size // self.heads % 2:
            size = self.hidden_size // self.heads
            _impossible(
                "hidden_size", f"must be an even number of times model.heads, for rotary embeddings (got {size})"
            )
        if self.heads % self.kv_heads:
            _impossible("kv_heads", f"must divide model.heads (got {self.kv_heads} and {self.heads})")
        return self


class DataRecipe(_Section):
    """[data]: the text. `source` is "python-stdlib" or a path, `exclude` patterns of relative paths.

    `licence` is what the run says of the text, in any words.
    """

    source: str = Field(default=STDLIB, min_length=1)
    licence: str = ""
    validation_share: float = Field(default=0.05, gt=0, lt=1)
    exclude: tuple[str, ...] = Field(default=(), strict=False)


class InnerRecipe(_Section):
    """[inner]: the optimizer of the inner steps. `batch_size` is in sequences, `total_steps` the length of a cosine."""

    optimizer: Literal["adamw"] = "adamw"
    learning_rate: float = Field(gt=0, le=100)
    betas: tuple[Beta, Beta] = Field(default=(0.9, 0.95), strict=False)
    weight_decay: float = Field(default=0.1, ge=0, le=1)
    warmup_steps: NotNegative = 0
    schedule: Literal["constant", "cosine"] = "constant"
    total_steps: NotNegative = 0
    batch_size: int = Field(gt=0, le=2**20)
    clip: float = Field(default=1.0, ge=0)

    @model_validator(mode="after")
    def _cosine_has_a_length(self) -> "InnerRecipe":
        if self.schedule == "cosine" and self.total_steps <= self.warmup_steps:
            found = f"{self.total_steps} and {self.warmup_steps}"
            _impossible("total_steps", f"must be greater than inner.warmup_steps for a cosine schedule (got {found})")
        return self


class OuterRecipe(_Section):
    """[outer]: the Nesterov optimizer of the outer steps."""

    learning_rate: float = Field(default=0.7, gt=0, le=100)
    momentum: float = Field(default=0.9, ge=0, lt=1)


class RoundRecipe(_Section):
    """[round]: how peers meet. Times are in seconds.

    `patience` bounds the wait for slower peers, `grace` is what a warned peer gets to join with the steps it has,
    `stall_timeout` the time without a byte of progress after which a peer counts as gone, and `start_with` the number
    of peers to wait for before the very first inner step. A peer whose pseudo-gradient is more than `explosion_factor`
    times as large as its own usually are sits the round out (0: never). `codec` is how pseudo-gradients travel: in a
    byte a parameter, or in half a byte.
    """

    inner_steps: Positive
    patience: Seconds = 30.0
    grace: Seconds = 2.0
    stall_timeout: Seconds = 5.0
    max_group: int = Field(default=32, ge=1, le=256)
    start_with: int = Field(default=1, ge=1)
    explosion_factor: float = Field(default=10.0, ge=0)
    codec: Literal["int8", "int4"] = "int8"

    @model_validator(mode="after")
    def _values_fit(self) -> "RoundRecipe":
        if self.start_with > self.max_group:
            found = f"{self.start_with} and {self.max_group}"
            _impossible("start_with", f"must be at most round.max_group (got {found})")
        if 0 < self.explosion_factor < 2:
            _impossible("explosion_factor", f"must be 0 or at least 2 (got {self.explosion_factor:g})")
        return self


class EvalRecipe(_Section):
    """[eval]: validation every so many outer steps (0 for never), on so many fixed sequences."""

    every: NotNegative = 5
    sequences: Positive = 64


class CheckpointRecipe(_Section):
    """[checkpoint]: write to disk every so many outer steps (0 for only at the end), and keep the newest few."""

    every: NotNegative = 10
    keep: Positive = 2


class ServingRecipe(_Section):
    """[serving]: what others may take of this peer's network to fetch its state.

    `rate` is in MB/s (0 for as fast as it can be), `at_once` the number of peers that fetch a snapshot at a time.
    """

    rate: float = Field(default=0.0, ge=0)
    at_once: int = Field(default=8, ge=1, le=256)


class Recipe(_Section):
    """A whole recipe. Frozen; read it with `Recipe.load`."""

    run: RunRecipe
    model: ModelRecipe
    data: DataRecipe = DataRecipe()
    inner: InnerRecipe
    outer: OuterRecipe = OuterRecipe()
    round: RoundRecipe
    eval: EvalRecipe = EvalRecipe()
    checkpoint: CheckpointRecipe = CheckpointRecipe()
    serving: ServingRecipe = ServingRecipe()

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = ()) -> "Recipe":
        """Read a recipe file; `overrides` are "section.key=value" with a TOML value (text needs no quotes).

        Raises:
            BadInput: the file is missing, unreadable or not TOML, or a key or value is wrong. One line.
        """
        return cls._overridden(_read_toml(Path(path)), overrides, str(path))

    def with_overrides(self, overrides: Sequence[str]) -> "Recipe":
        """This recipe with "section.key=value" for each override. Raises BadInput as ``load`` does."""
        return self._overridden(self.model_dump(mode="json"), overrides, "the recipe") if overrides else self

    @classmethod
    def _overridden(cls, table: dict[str, Any], overrides: Sequence[str], source: str) -> "Recipe":
        overridden = set()
        for override in overrides:
            section, key, value = _parse_override(override)
            content = table.setdefault(section, {})
            if isinstance(content, dict):  # otherwise the validation below names the section that is no table
                content[key] = value
                overridden.add((section, key))
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise BadInput(_first_mistake(error, source, overridden)) from None

    @classmethod
    def from_table(cls, table: Mapping[str, Any], source: str) -> "Recipe":
        """The recipe of a table, as TOML gives it; ``source`` is what an error says it came from.

        Raises:
            BadInput: a key or value is wrong. One line.
        """
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise BadInput(_first_mistake(error, source, set())) from None

    @classmethod
    def from_shared(cls, shared: Mapping[str, Any]) -> "Recipe":
        """The recipe that ``shared`` was the answer of, with what peers need not agree on as if nobody had set it.

        Raises:
            BadInput: it is not the answer of a recipe.
        """
        return cls.from_table(shared, "the description of the run")

    def shared(self) -> dict[str, dict[str, Any]]:
        """What all peers of a run must agree on, as plain values that survive JSON and msgpack unchanged."""
        local: Any = {
            "checkpoint": True,
            "eval": True,
            "serving": True,
            "run": {"outer_steps", "start"},
            "data": {"licence"},
            "round": {"start_with", "explosion_factor"},
        }
        return self.model_dump(mode="json", exclude=local)


def check_run_name(name: str) -> None:
    """Raises BadInput where a run cannot be called so."""
    if re.fullmatch(RUN_NAME, name) is None:
        raise BadInput(f"run name {shown(name)}: {_REASONS['string_pattern_mismatch']}")


def _impossible(key: str, reason: str) -> None:
    """Refuse a combination of values, from a validator of a section; `key` is where the mistake is reported."""
    raise PydanticCustomError("impossible", "{reason}", {"key": key, "reason": reason})


def _read_toml(path: Path) -> dict[str, Any]:
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
        raise BadInput(f"{path}: is not TOML: {_one_line(str(error))}") from None


def _parse_override(override: str) -> tuple[str, str, Any]:
    """Split "section.key=value" and read the value as the key's type asks for."""
    target, equals, text = override.partition("=")
    section, dot, key = (part.strip() for part in target.partition("."))
    if not (equals and dot and section and key):
        raise BadInput(f"--set {_one_line(override)}: must be section.key=value, as in inner.learning_rate=0.001")
    if _field(section, key) is None:
        name = f"{_one_line(section)}.{_one_line(key)}"
        raise BadInput(f"--set {name}: unknown key{_suggestion((section, key))}")
    return section, key, _parse_value(text.strip(), is_text=_is_text(section, key))


def _parse_value(text: str, is_text: bool) -> Any:
    try:
        table = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    value = table["value"]
    if len(table) > 1 or (is_text and not isinstance(value, str)):
        return text
    return value


def _field(section: str, key: str) -> FieldInfo | None:
    fields = _section_fields(section)
    return None if fields is None else fields.get(key)


def _section_fields(section: str) -> Mapping[str, FieldInfo] | None:
    field = Recipe.model_fields.get(section)
    if field is None or not isinstance(field.annotation, type):
        return None
    return field.annotation.model_fields if issubclass(field.annotation, BaseModel) else None


def _is_text(section: str, key: str) -> bool:
    field = _field(section, key)
    return field is not None and (field.annotation is str or get_origin(field.annotation) is Literal)


def _suggestion(location: Sequence[object]) -> str:
    """What an unknown section or section.key was probably meant to be; empty when nothing is close."""
    sections = list(Recipe.model_fields)
    keys = [f"{section}.{key}" for section in sections for key in _section_fields(section) or ()]
    name = ".".join(str(part) for part in location)
    close = difflib.get_close_matches(name, keys if len(location) > 1 else sections, n=1, cutoff=0.75)
    if not close and len(location) > 1:
        close = [key for key in keys if key.partition(".")[2] == location[-1]][:1]
    return f" (did you mean {close[0]}?)" if close else ""


_REASONS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": "must start with a letter or digit and hold at most 64 letters, digits, '.', '_' or '-'",
    "literal_error": "must be {expected}",
    "tuple_type": "must be a list",
    "too_long": "must have {max_length} values",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
}


def _first_mistake(error: ValidationError, path: str, overridden: set[tuple[str, str]]) -> str:
    """The first mistake of a failed validation in one line: where it stands, the key, and the reason."""
    mistakes = error.errors(include_url=False)
    # An unknown key goes first: it explains the missing one it was meant to be.
    mistake = min(mistakes, key=lambda mistake: mistake["type"] != "extra_forbidden")
    location = list(mistake["loc"])
    if mistake["type"] == "impossible":
        location.append(mistake["ctx"]["key"])
    elif mistake["type"] == "missing" and isinstance(location[-1], int):
        location.pop()  # a list that ends too early is a mistake of the list
    key = "".join(f"[{part}]" if isinstance(part, int) else f".{plain(part)}" for part in location)[1:]
    where = "--set" if tuple(location[:2]) in overridden else f"{_one_line(path)}:"
    more = len(mistakes) - 1
    return f"{where} {key}: {_reason(mistake, location)}" + (f"; and {more} more" if more else "")


def _reason(mistake: ErrorDetails, location: Sequence[object]) -> str:
    kind, context = mistake["type"], mistake.get("ctx", {})
    if kind == "impossible":
        return str(context["reason"])
    if kind == "missing" and isinstance(mistake["loc"][-1], int):
        return f"has too few values (got {shown(mistake['input'])})"
    if kind == "missing":
        return "is missing" if len(location) > 1 else "this section is missing"
    if kind == "extra_forbidden":
        return f"unknown {'key' if len(location) > 1 else 'section'}{_suggestion(location)}"
    limits = {name: int(x) if isinstance(x, float) and x.is_integer() else x for name, x in context.items()}
    reason = _REASONS[kind].format(**limits) if kind in _REASONS else _one_line(mistake["msg"])
    return f"{reason} (got {shown(mistake['input'])})"


def _one_line(text: str) -> str:
    return " ".join(text.split())
