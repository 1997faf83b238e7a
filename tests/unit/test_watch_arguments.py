"""What the commands that look at a run make of their arguments, before anything is looked at."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable

import pytest
import typer

from prime_p2p import status
from prime_p2p.contributions import collect
from prime_p2p.contributions.collect import Collected
from prime_p2p.options import run_of

BOOTSTRAP = "/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWRgKMknJAaqw7Go2LZyiAQNCYqY1HTvjDM2W3jtitxJEt"
AUTHOR = "RtbTMuUnjx33J9aGCtg83C"


def test_a_run_is_found_by_its_address_or_by_bootstraps_and_a_name() -> None:
    assert run_of(f"{BOOTSTRAP}/run/demo/{AUTHOR}", None, None) == ((BOOTSTRAP,), f"demo/{AUTHOR}")
    assert run_of(None, ["one", "two"], "demo") == (("one", "two"), "demo")
    assert run_of(None, ["one"], None) == (("one",), None)


def test_the_address_of_a_run_is_that_of_a_bootstrap_too_and_names_the_run_where_nothing_else_does() -> None:
    address = f"{BOOTSTRAP}/run/demo/{AUTHOR}"
    assert run_of(None, ["one", address], None) == (("one", BOOTSTRAP), f"demo/{AUTHOR}")
    assert run_of(None, [address], "other") == ((BOOTSTRAP,), "other")
    with pytest.raises(typer.BadParameter, match=rf"--run: demo/{AUTHOR}, other/{AUTHOR}$"):
        run_of(None, [address, f"{BOOTSTRAP}/run/other/{AUTHOR}"], None)


def test_status_and_contributions_take_the_address_of_a_run(
    run: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[object] = []
    monkeypatch.setattr(status, "look", lambda *arguments: asked.append(arguments) or [])
    monkeypatch.setattr(collect, "collect", lambda *arguments: asked.append(arguments) or Collected("demo", 1))
    for command in ("status", "contributions"):
        assert run(command, f"{BOOTSTRAP}/run/demo/{AUTHOR}") == 0
        assert run(command, "--bootstrap", f"{BOOTSTRAP}/run/demo/{AUTHOR}") == 0
    place = ((BOOTSTRAP,), f"demo/{AUTHOR}")
    assert asked == [place, place, (*place, 1), (*place, 1)]


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
