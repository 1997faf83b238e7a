import fcntl
import io
import os
import pty
import struct
import termios
from typing import TextIO

import pytest
from rich.console import Console

from prime_p2p.monitor.console import LiveConsole, PlainConsole, open_console, render
from prime_p2p.monitor.events import Done, Event, Log, Progress, Ready, State
from prime_p2p.monitor.metrics import PhaseSeconds, RoundMetrics
from prime_p2p.monitor.text import duration, printable, status_table
from prime_p2p.monitor.view import SwarmView


def made(step: int, loss: float = 3.0, val_loss: float | None = None, group: int = 2) -> RoundMetrics:
    seconds = PhaseSeconds(inner=3.0, total=4.0)
    names = tuple("abcdefgh"[:group])
    return RoundMetrics(step, "ab" * 32, names, (1,) * group, 1, loss, 64, 2_500_000, 0, seconds, val_loss)


def training(step: int, inner: int = 45) -> Progress:
    return Progress(step, inner, 100, 3.12345, 12345.6, 4, 12_345_678, State.TRAINING)


def a_view(peers: int = 2, goal: int = 30) -> SwarmView:
    return SwarmView("tiny", tuple(f"peer-{number}" for number in range(1, peers + 1)), goal, now=0.0)


def busy_view(peers: int) -> SwarmView:
    view = a_view(peers)
    for name in view.rows:
        view.apply(name, Ready("12D3KooW" + name, "/ip4/192.0.2.1/tcp/1"), 1.0)
        view.apply(name, training(0), 2.0)
        view.apply(name, training(12), 14.0)
    return view


def drawn(view: SwarmView, width: int, height: int, now: float = 14.0) -> list[str]:
    stream = io.StringIO()
    console = Console(file=stream, width=width, height=height, legacy_windows=False)
    console.print(render(view, width, height, now))
    return stream.getvalue().splitlines()


def test_a_row_shows_every_figure_of_a_peer() -> None:
    rows = drawn(busy_view(1), 80, 24)
    assert rows[-1].split() == ["peer-1", "12", "45/100", "3.1235", "12,346", "4", "12.3", "training"]


@pytest.mark.parametrize("peers", [1, 4, 17, 18, 200])
@pytest.mark.parametrize(("width", "height"), [(80, 24), (40, 10), (200, 60)])
def test_the_table_fits_the_terminal(peers: int, width: int, height: int) -> None:
    lines = drawn(busy_view(peers), width, height)
    assert len(lines) < height
    assert max(len(line) for line in lines) <= width
    assert "…" not in "".join(line for line in lines if line.startswith("peer-"))


def test_peers_that_do_not_fit_are_counted_by_state() -> None:
    view = busy_view(30)
    view.lose("peer-30", "killed by SIGKILL")
    assert drawn(view, 80, 24)[-1] == "and 13 more: 1 lost, 12 training"


def test_a_bar_and_the_time_left_tell_how_far_the_swarm_is() -> None:
    lines = drawn(busy_view(2), 80, 24)
    assert lines[0] == "tiny  2 of 2 peers  0:14 elapsed  0:18 left"
    assert lines[1].startswith("outer step 12/30 ━")
    assert lines[1].rstrip().endswith("40 %")


def test_the_time_left_follows_the_pace_of_the_last_outer_steps() -> None:
    view = a_view(peers=1, goal=30)
    assert view.time_left(5.0) is None
    view.apply("peer-1", training(0), 10.0)
    assert view.time_left(10.0) is None
    for step in range(1, 21):
        view.apply("peer-1", made(step), 10.0 + (step if step <= 5 else 5 + 3 * (step - 5)))
    assert view.time_left(60.0) == pytest.approx(30.0)
    assert view.time_left(63.0) == pytest.approx(27.0)
    assert view.time_left(1000.0) == 0.0


def test_an_outer_step_is_told_once_all_peers_there_have_made_it() -> None:
    view = a_view(peers=2)
    assert view.apply("peer-1", made(1, loss=3.0), 1.0) == []
    assert view.apply("peer-2", made(1, loss=4.0, val_loss=3.25), 1.0) == [
        "outer step 1/30: loss 3.5000, validation 3.2500, group of 2, 2.50 MB sent per peer, 4.0 s"
    ]


def test_an_outer_step_is_told_at_the_latest_when_somebody_goes_beyond_it() -> None:
    view = a_view(peers=2)
    assert view.apply("peer-1", made(1), 1.0) == []
    lines = view.apply("peer-1", made(2), 2.0)
    assert [line.partition(":")[0] for line in lines] == ["outer step 1/30"]
    assert view.apply("peer-2", made(1), 3.0) == []


def test_an_outer_step_waits_for_no_peer_that_is_lost() -> None:
    view = a_view(peers=2)
    view.apply("peer-1", made(1), 1.0)
    lines = view.lose("peer-2", "killed by SIGKILL")
    assert lines[0] == "peer-2 lost at outer step 0: killed by SIGKILL; peers left in the run: 1"
    assert lines[1].startswith("outer step 1/30")
    assert view.lose("peer-1", "exit code 1")[0].endswith("exit code 1; peers left in the run: 0")


def test_a_peer_that_ends_before_its_last_outer_step_has_left_and_not_finished() -> None:
    view = a_view(peers=2, goal=30)
    assert view.apply("peer-1", Done(30, "ab"), 1.0)[0] == "peer-1 finished at outer step 30"
    assert view.apply("peer-2", Done(7, "ab"), 1.0)[0] == "peer-2 left at outer step 7"


def test_the_last_outer_step_is_told_when_all_have_finished() -> None:
    view = a_view(peers=1, goal=1)
    events: list[Event] = [made(1), Done(1, "ab")]
    lines = [line for event in events for line in view.apply("peer-1", event, 1.0)]
    assert [line.partition(":")[0] for line in lines] == ["outer step 1/1", "peer-1 finished at outer step 1"]


def test_no_terminal_means_plain_lines_with_the_time() -> None:
    stream = io.StringIO()
    view = a_view()
    console = open_console(view, stream)
    assert isinstance(console, PlainConsole)
    console.tell(["peer-1 lost"], 12.34)
    console.refresh(13.0)
    console.close(14.0)
    assert stream.getvalue() == "   12.3 s  peer-1 lost\n"


def test_a_terminal_shows_the_table_and_what_happens_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    for variable in ("COLUMNS", "LINES", "NO_COLOR", "FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(variable, raising=False)
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with os.fdopen(controller, "rb", buffering=0) as screen, os.fdopen(terminal, "w") as stream:
        show_on(stream)
        shown = screen.read(1 << 16).decode()
    assert "peer-2 lost" in shown
    assert shown.index("peer-2 lost") < shown.rindex("outer step 12/30")
    assert "12,346" in shown


def show_on(stream: TextIO) -> None:
    console = open_console(busy_view(2), stream)
    assert isinstance(console, LiveConsole)
    console.refresh(14.0)
    console.tell(["peer-2 lost"], 14.1)
    console.close(15.0)
    stream.flush()


def test_text_from_elsewhere_cannot_move_the_cursor() -> None:
    view = a_view()
    assert view.apply("peer-1", Log("\x1b[2Jall\nin one\r line"), 1.0) == ["peer-1: �[2Jall in one line"]
    assert len(printable("x" * 10_000)) == 400


def test_durations_read_like_a_clock() -> None:
    assert [duration(seconds) for seconds in (0, 41.6, 725, 11250)] == ["0:00", "0:42", "12:05", "3:07:30"]


def test_the_status_is_a_line_a_peer_with_the_furthest_first() -> None:
    beat = {
        "run": "tiny",
        "peer_id": "12D3KooWaaaaaaaaaaaa",
        "name": "",
        "outer_step": 3,
        "digest": "ab" * 32,
        "tokens": 1_234_567,
        "state": "training",
        "age_s": 1.2,
        "addresses": ["/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWaaaaaaaaaaaa"],
    }
    further = beat | {"outer_step": 12, "name": "\x1b[31mred", "addresses": []}
    lines = status_table([beat, further]).splitlines()
    assert lines[0].split() == ["run", "peer", "step", "state", "seen", "tokens", "digest", "address"]
    assert lines[1].split() == ["tiny", "�[31mred", "12", "training", "1", "s", "1,234,567", "abababab"]
    assert lines[2].split()[1:3] == ["…aaaaaaaa", "3"]
    assert lines[2].endswith("/ip4/192.0.2.1/tcp/31337/p2p/12D3KooWaaaaaaaaaaaa")
    assert status_table([]) == "no peer is there"
