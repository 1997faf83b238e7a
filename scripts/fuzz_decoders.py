"""Runs every decoder of foreign bytes for a while, guided by coverage: python scripts/fuzz_decoders.py [--seconds 120]

It needs atheris, which is no dependency of the project: python -m pip install --target FOLDER atheris, and then
PYTHONPATH=FOLDER python scripts/fuzz_decoders.py. The decoders, what each may raise and the good bytes to start from
are those of tests/unit/decoders.py. --corpus FOLDER keeps the inputs that reached something new, for the next time.

The first byte of an input chooses the decoder. An input on which one raises anything else than its documented errors
ends the run with exit code 77; it is in crash-* in the present folder, and python scripts/fuzz_decoders.py crash-...
runs it again. So does one that takes more than 10 s or 1 GB.
"""

from __future__ import annotations

import argparse
import logging
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "unit"))

try:
    import atheris
except ImportError:
    sys.exit("this needs atheris: python -m pip install --target FOLDER atheris, and FOLDER in PYTHONPATH")

with atheris.instrument_imports(include=["prime_p2p", "decoders", "hivemind", "msgpack", "json"]):
    from decoders import DECODERS

NAMES = list(DECODERS)


def decode(data: bytes) -> None:
    if data:
        decoder = DECODERS[NAMES[data[0] % len(NAMES)]]
        try:
            decoder.decode(data[1:])
        except decoder.errors:
            return


def write_seeds(folder: Path) -> None:
    """Good bytes of every decoder."""
    for number, name in enumerate(NAMES):
        for index, good in enumerate(DECODERS[name].good):
            (folder / f"{number}-{index}").write_bytes(bytes([number]) + good)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--seconds", type=int, default=120)
    parser.add_argument("--corpus", type=Path)
    parser.add_argument("again", nargs="*", help="files of inputs to run once, instead")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if arguments.again:
        for name in arguments.again:
            decode(Path(name).read_bytes())
        return
    with tempfile.TemporaryDirectory() as seeds:
        write_seeds(Path(seeds))
        folders = [seeds]
        if arguments.corpus:
            arguments.corpus.mkdir(parents=True, exist_ok=True)
            folders.insert(0, str(arguments.corpus))
        limits = [f"-max_total_time={arguments.seconds}", "-max_len=4096", "-timeout=10", "-rss_limit_mb=1024"]
        atheris.Setup([sys.argv[0], *limits, *folders], decode)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
