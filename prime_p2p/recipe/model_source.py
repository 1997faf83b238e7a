"""Where a given model comes from: a folder, or a repository on the Hugging Face Hub, with config.json and safetensors.

Nothing else of it is read: no code, no pickle.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from blake3 import blake3

from prime_p2p.errors import BadInput
from prime_p2p.long_work import Advance, Watch, unwatched

CONFIG = "config.json"
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"

_SLICE = 64 * 2**20  # bytes that are hashed at a time
_NOT_OF_THE_MODEL = ("_name_or_path", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version")


class ModelSource:
    """``source`` is a folder, relative to ``folder``, or else a repository; ``revision`` is of a repository alone."""

    def __init__(self, source: str, revision: str, folder: Path) -> None:
        self.revision = revision
        self.name = str(folder / source) if (folder / source).is_dir() else source

    def config(self) -> tuple[str, dict[str, Any]]:
        """The architecture, and the keys of its config. Raises BadInput."""
        try:
            table = json.loads(self._file(CONFIG).read_text("utf-8"))
            architecture = table.pop("model_type")
        except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
            raise BadInput(f"model.source: {self.name}: {CONFIG} cannot be used: {_line(error)}") from None
        if "quantization_config" in table:
            raise BadInput(f"model.source: {self.name}: its weights are quantised; take those it was made from")
        return str(architecture), {key: value for key, value in table.items() if key not in _NOT_OF_THE_MODEL}

    def digest(self, watch: Watch = unwatched) -> str:
        """A hash of the files of weights. Raises BadInput where there are none."""
        whole = blake3()
        try:
            files = self._weights()
            with watch("hashing the weights of model.source", sum(path.stat().st_size for path in files)) as advance:
                for path in files:
                    whole.update(_hash_of(path, advance))
        except (OSError, ValueError, KeyError, AttributeError) as error:
            reason = f"has no weights as safetensors: {_line(error)}"
            raise BadInput(f"model.source: {self.name}: {reason}") from None
        return whole.hexdigest()

    def _weights(self) -> list[Path]:
        """The files of weights, in the order of their names; one, or those of an index."""
        try:
            return [self._file(WEIGHTS)]
        except OSError:
            index = json.loads(self._file(INDEX).read_text("utf-8"))
            return [self._file(name) for name in sorted(set(index["weight_map"].values()))]

    def _file(self, name: str) -> Path:
        """A file of it, fetched where it is on the Hub."""
        from transformers.utils.hub import cached_file  # slow to import

        return Path(str(cached_file(self.name, name, revision=self.revision)))


def _hash_of(path: Path, advance: Advance) -> bytes:
    found = blake3(max_threads=blake3.AUTO)
    with path.open("rb") as file:
        while data := file.read(_SLICE):
            found.update(data)
            advance(len(data))
    return found.digest()


def _line(error: Exception) -> str:
    return " ".join(str(error).split())[:200]
