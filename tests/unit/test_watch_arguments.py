"""What `prime-p2p watch` makes of its arguments, before anything is looked at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest

from prime_p2p.watching.commands import run_of

BOOTSTRAP = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWRgKMknJAaqw7Go2LZyiAQNCYqY1HTvjDM2W3jtitxJEt"
AUTHOR = "RtbTMuUnjx33J9aGCtg83C"


def test_a_run_is_found_by_its_address_or_by_bootstraps_and_a_name() -> None:
    assert run_of(f"{BOOTSTRAP}/run/demo/{AUTHOR}", None, None) == ((BOOTSTRAP,), f"demo/{AUTHOR}")
    assert run_of(None, ["one", "two"], "demo") == (("one", "two"), "demo")
    assert run_of(None, ["one"], None) == (("one",), None)


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["--run", "demo"],
        ["--bootstrap", BOOTSTRAP, f"{BOOTSTRAP}/run/demo/{AUTHOR}"],
        [f"{BOOTSTRAP}/run/demo/{AUTHOR}", "--run", "demo"],
        [f"{BOOTSTRAP}/run/demo/cut"],
        ["--bootstrap", BOOTSTRAP, "--once", "--json"],
    ],
)
def test_arguments_that_do_not_fit_are_one_line(
    arguments: list[str], run: Callable[..., int], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("watch", *arguments) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert said.err.startswith("prime-p2p: ")
    assert said.err.count("\n") == 1


def test_a_watcher_starts_without_torch_and_what_draws_only_where_it_draws() -> None:
    heavy = "{'torch', 'transformers', 'textual'}"
    code = f"import sys, prime_p2p.watching.plain; print(sorted({heavy} & sys.modules.keys()))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
