"""The network half of hivemind, without its training half.

``hivemind/__init__.py`` imports torch and everything hivemind can do: 357 MB and 2.5 s, of which a node needs 44 MB and
0.2 s. So the three packages that import too much are put in place with their names resolved on first use. The rest of
hivemind, and a later ``import hivemind`` of somebody else, work as always.
"""

import ast
import functools
import importlib
import importlib.util
import logging
import os
import sys
import types
from pathlib import Path
from typing import Any

from prime_p2p.network import clock

_LAZY = ("hivemind", "hivemind.utils", "hivemind.dht")


class _LazyPackage(types.ModuleType):
    """A package whose ``from module import name`` lines run when `name` is first asked for."""

    _sources: dict[str, tuple[str, str]]  # name here -> module, name there

    def __getattr__(self, name: str) -> Any:
        source = self.__dict__["_sources"].get(name)
        if source is None:
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        module, original = source
        value = getattr(importlib.import_module(module), original)
        setattr(self, name, value)
        return value


def _put_in_place(name: str) -> None:
    spec = importlib.util.find_spec(name)
    if spec is None or spec.origin is None or spec.submodule_search_locations is None:
        raise ImportError(f"{name} is not installed as a package", name=name)
    lines = ast.parse(Path(spec.origin).read_text(encoding="utf-8")).body
    package = _LazyPackage(name, "hivemind, loaded lazily")
    package.__file__, package.__spec__, package.__package__ = spec.origin, spec, name
    package.__path__ = list(spec.submodule_search_locations)
    package._sources = {
        imported.asname or imported.name: (line.module, imported.name)
        for line in lines
        if isinstance(line, ast.ImportFrom) and line.module
        for imported in line.names
    }
    package.__dict__.update(_constants(lines))
    sys.modules[name] = package
    parent, _, child = name.rpartition(".")
    if parent:
        setattr(sys.modules[parent], child, package)


def _constants(lines: list[ast.stmt]) -> dict[str, Any]:
    """What a package assigns to plain names, as ``__version__``."""
    return {
        target.id: line.value.value
        for line in lines
        if isinstance(line, ast.Assign) and isinstance(line.value, ast.Constant)
        for target in line.targets
        if isinstance(target, ast.Name)
    }


if "hivemind" not in sys.modules:
    # Also decides how much its daemon says: every line of it is parsed in this process.
    os.environ.setdefault("HIVEMIND_LOGLEVEL", "WARNING")
    for _name in _LAZY:
        _put_in_place(_name)
    from hivemind.utils.logging import use_hivemind_log_handler

    use_hivemind_log_handler("nowhere")
    logging.getLogger("hivemind").setLevel(logging.WARNING)
    logging.addLevelName(logging.WARNING, "WARNING")  # hivemind shortens it, for everybody

from hivemind.utils import timed_storage  # noqa: E402

timed_storage.get_dht_time = clock.now  # others import it from there by name

from hivemind.dht import node, protocol, routing  # noqa: E402
from hivemind.dht.node import DHTNode  # noqa: E402
from hivemind.dht.protocol import ValidationError  # noqa: E402
from hivemind.dht.routing import DHTID  # noqa: E402
from hivemind.dht.storage import DHTLocalStorage, DictionaryDHTValue  # noqa: E402
from hivemind.dht.validation import DHTRecord, RecordValidatorBase  # noqa: E402
from hivemind.p2p import P2P, P2PDaemonError, PeerID  # noqa: E402
from hivemind.proto import dht_pb2, p2pd_pb2  # noqa: E402
from hivemind.utils.multiaddr import Multiaddr  # noqa: E402

protocol.PeerID = functools.lru_cache(4096)(PeerID)  # it writes each one in base58, most of the work of a search

# A daemon that is told to end may say, as an error, that it cannot go on listening.
logging.getLogger("hivemind.p2p.p2p_daemon").addFilter(
    lambda record: "use of closed network connection" not in record.getMessage()
)

for _module in (node, protocol, routing):  # where hivemind was there before us
    _module.get_dht_time = clock.now

__all__ = [
    "DHTID",
    "P2P",
    "DHTLocalStorage",
    "DHTNode",
    "DHTRecord",
    "DictionaryDHTValue",
    "Multiaddr",
    "P2PDaemonError",
    "PeerID",
    "RecordValidatorBase",
    "ValidationError",
    "dht_pb2",
    "p2pd_pb2",
]
