"""A whole recipe, from a file or from a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Watch, unwatched
from prime_p2p.recipe.data import DataRecipe
from prime_p2p.recipe.inner import InnerRecipe
from prime_p2p.recipe.keys import Keys
from prime_p2p.recipe.local import CheckpointRecipe, DeviceRecipe, EvalRecipe, LoggingRecipe, ServingRecipe
from prime_p2p.recipe.mistakes import first_mistake
from prime_p2p.recipe.model import ModelRecipe
from prime_p2p.recipe.model_source import ModelSource
from prime_p2p.recipe.outer import OuterRecipe
from prime_p2p.recipe.reading import parse_override, read_toml
from prime_p2p.recipe.round import RoundRecipe
from prime_p2p.recipe.run import RunRecipe
from prime_p2p.recipe.section import Section
from prime_p2p.recipe.writing import written


class Recipe(Section):
    """A whole recipe. Frozen; read it with `Recipe.load`."""

    run: RunRecipe
    model: ModelRecipe
    data: DataRecipe = DataRecipe()
    inner: InnerRecipe
    outer: OuterRecipe = OuterRecipe()
    round: RoundRecipe
    device: DeviceRecipe = DeviceRecipe()
    eval: EvalRecipe = EvalRecipe()
    checkpoint: CheckpointRecipe = CheckpointRecipe()
    serving: ServingRecipe = ServingRecipe()
    logging: LoggingRecipe = LoggingRecipe()

    @classmethod
    def load(cls, path: str | Path, overrides: Sequence[str] = (), watch: Watch = unwatched) -> "Recipe":
        """Read a recipe file; `overrides` are "section.key=value" with a TOML value (text needs no quotes).

        Reads what `model.source` says of the model as well, and hashes its weights if they are used.

        Raises:
            BadInput: the file is missing, unreadable or not TOML, or a key or value is wrong. One line.
        """
        return cls._overridden(read_toml(Path(path)), overrides, str(path))._with_source_read(str(path), watch)

    def with_overrides(self, overrides: Sequence[str]) -> "Recipe":
        """This recipe with "section.key=value" for each override. Raises BadInput as ``load`` does."""
        return self._overridden(self.model_dump(mode="json"), overrides, "the recipe") if overrides else self

    @classmethod
    def _overridden(cls, table: dict[str, Any], overrides: Sequence[str], source: str) -> "Recipe":
        keys, overridden = Keys(cls), set()
        for override in overrides:
            section, key, value = parse_override(override, keys)
            content = table.setdefault(section, {})
            if isinstance(content, dict):  # otherwise the validation below names the section that is no table
                content[key] = value
                overridden.add((section, key))
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            raise BadInput(first_mistake(error, source, overridden, keys)) from None

    def _with_source_read(self, path: str, watch: Watch) -> "Recipe":
        if not self.model.source:
            return self
        source = ModelSource(self.model.source, self.model.revision, Path())
        architecture, config = source.config()
        digest = source.digest(watch) if self.model.weights == "given" else ""
        if self.model.digest not in ("", digest):
            raise BadInput(f"{path}: model.digest: is that of other weights than model.source has ({digest})")
        table = self.model_dump(mode="json")
        found = {"architecture": architecture, "config": config | self.model.config, "digest": digest}
        return self.from_table(table | {"model": table["model"] | found}, path)

    @classmethod
    def from_table(cls, table: Mapping[str, Any], source: str) -> "Recipe":
        """The recipe of a table, as TOML gives it; ``source`` is what an error says it came from.

        Raises:
            BadInput: a key or value is wrong. One line.
        """
        return cls._overridden(dict(table), (), source)

    @classmethod
    def from_shared(cls, shared: Mapping[str, Any]) -> "Recipe":
        """The recipe that ``shared`` was the answer of, with what peers need not agree on as if nobody had set it.

        Raises:
            BadInput: it is not the answer of a recipe.
        """
        return cls.from_table(shared, "the description of the run")

    def to_toml(self) -> str:
        """All of it, also what nobody has set, as `load` reads it."""
        return written(self.model_dump(mode="json")) + "\n"

    def shared(self) -> dict[str, dict[str, Any]]:
        """What all peers of a run must agree on, as plain values that survive JSON and msgpack unchanged."""
        local: Any = {
            "checkpoint": True,
            "device": True,
            "eval": True,
            "serving": True,
            "logging": True,
            "run": {"outer_steps", "start"},
            "data": {"licence", "mirror", "tokenizer", "cache"},
            "inner": {"accumulation"},
            "model": {"source", "revision"},
            "round": {"start_with", "explosion_factor"},
        }
        return self.model_dump(mode="json", exclude=local)
