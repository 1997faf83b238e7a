"""What is wrong with a recipe, in one line."""

from collections.abc import Sequence

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from prime_p2p.agreement import plain, shown
from prime_p2p.recipe.keys import Keys
from prime_p2p.recipe.run import RUN_NAME_RULE

_REASONS = {
    "greater_than": "must be greater than {gt}",
    "greater_than_equal": "must be at least {ge}",
    "less_than": "must be less than {lt}",
    "less_than_equal": "must be at most {le}",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "int_from_float": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a finite number",
    "string_type": "must be text",
    "string_too_short": "must not be empty",
    "string_pattern_mismatch": RUN_NAME_RULE,
    "literal_error": "must be {expected}",
    "tuple_type": "must be a list",
    "too_long": "must have {max_length} values",
    "model_type": "must be a table",
    "model_attributes_type": "must be a table",
}


def first_mistake(error: ValidationError, path: str, overridden: set[tuple[str, str]], keys: Keys) -> str:
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
    where = "--set" if tuple(location[:2]) in overridden else f"{one_line(path)}:"
    more = len(mistakes) - 1
    return f"{where} {key}: {_reason(mistake, location, keys)}" + (f"; and {more} more" if more else "")


def _reason(mistake: ErrorDetails, location: Sequence[object], keys: Keys) -> str:
    kind, context = mistake["type"], mistake.get("ctx", {})
    if kind == "impossible":
        return str(context["reason"])
    if kind == "missing" and isinstance(mistake["loc"][-1], int):
        return f"has too few values (got {shown(mistake['input'])})"
    if kind == "missing":
        return "is missing" if len(location) > 1 else "this section is missing"
    if kind == "extra_forbidden":
        return f"unknown {'key' if len(location) > 1 else 'section'}{keys.suggestion(location)}"
    limits = {name: int(x) if isinstance(x, float) and x.is_integer() else x for name, x in context.items()}
    reason = _REASONS[kind].format(**limits) if kind in _REASONS else one_line(mistake["msg"])
    return f"{reason} (got {shown(mistake['input'])})"


def one_line(text: str) -> str:
    """``text`` with no line breaks."""
    return " ".join(text.split())
