"""``prime-p2p swarm`` from its start to the model it leaves behind."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import psutil
import pytest
import torch
from processes import RECIPE, SMALL, Process
from transformers import AutoModelForCausalLM, AutoTokenizer
from typer.testing import CliRunner

from prime_p2p.cli import app
from prime_p2p.outer.journal import read_update, update_files

pytestmark = pytest.mark.timeout(300)

OUTER_STEPS = 3
SETTINGS = {key: value for key, value in SMALL.items() if key != "run.outer_steps"}


def swarm(out: Path, *more: str) -> Process:
    sets = [f"--set={key}={value}" for key, value in SETTINGS.items()]
    return Process("swarm", "--peers", "3", "--recipe", str(RECIPE), "--out", str(out), *sets, *more)


def test_a_swarm_trains_and_leaves_a_report_metrics_and_a_model_that_transformers_opens(tmp_path: Path) -> None:
    out = tmp_path / "out"
    process = swarm(out, "--outer-steps", str(OUTER_STEPS), "--set=eval.every=1", "--json")
    assert process.wait(250) == 0, process.stderr
    printed = json.loads("\n".join(process.rest()))
    report = json.loads((out / "report.json").read_text())
    assert printed == report

    assert report["peers"] == 3
    assert report["outer_steps"] == OUTER_STEPS
    assert report["digests_agree"] is True
    assert report["val_loss"]["end"] < report["val_loss"]["start"]
    assert 0 < report["compute_share"] < 1
    assert report["bytes_sent_per_peer"] > 0
    assert [row["outer_step"] for row in report["rounds"]] == list(range(1, OUTER_STEPS + 1))
    assert [row["group_size"] for row in report["rounds"]] == [3] * OUTER_STEPS

    page = (out / "report.html").read_text()
    assert "<svg" in page
    assert "http://" not in page.replace("http://www.w3.org/", "")

    last = set()
    for number in (1, 2, 3):
        lines = [json.loads(line) for line in (out / f"peer-{number}" / "metrics.jsonl").read_text().splitlines()]
        assert [line["outer_step"] for line in lines] == list(range(1, OUTER_STEPS + 1))
        for line in lines:
            assert line["weights"] == [20 * 2 * 32] * 3
            assert line["attempts"] == 1
            assert set(line["seconds"]) == {"inner", "gather", "reduce", "commit", "apply", "total"}
            assert line["seconds"]["total"] >= line["seconds"]["inner"] > 0
        last.add(lines[-1]["digest"])
    assert last == {report["rounds"][-1]["digest"]}

    model = AutoModelForCausalLM.from_pretrained(out / "model")
    tokenizer = AutoTokenizer.from_pretrained(out / "model")
    written = model.generate(**tokenizer("import ", return_tensors="pt"), max_new_tokens=8, do_sample=False)
    assert tokenizer.decode(written[0]).startswith("import ")
    assert all(torch.isfinite(parameter).all() for parameter in model.parameters())


def test_peers_that_send_half_a_byte_a_parameter_hold_the_same_state_and_it_is_verified(tmp_path: Path) -> None:
    out = tmp_path / "out"
    quick = "--peers=2", f"--outer-steps={OUTER_STEPS}", "--set=round.inner_steps=5", "--set=eval.every=0"
    process = swarm(out, *quick, "--set=round.codec=int4", "--json")
    assert process.wait(120) == 0, process.stderr
    report = json.loads((out / "report.json").read_text())
    assert (report["peers"], report["outer_steps"], report["digests_agree"]) == (2, OUTER_STEPS, True)
    for number in (1, 2):
        folder = out / f"peer-{number}"
        updates = [read_update(path) for path in update_files(folder / "journal")]
        assert [update.bits for _, update in updates] == [4] * OUTER_STEPS
        assert updates[-1][0].digest_after.hex().startswith(report["rounds"][-1]["digest"])
    verify = CliRunner().invoke(app, ["verify", str(out / "peer-1")])
    assert verify.exit_code == 0, verify.output
    assert f"outer steps 1 to {OUTER_STEPS} made again" in verify.output


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_process_outlives_a_swarm_that_is_stopped(tmp_path: Path, number: signal.Signals) -> None:
    process = swarm(tmp_path / "out", "--outer-steps", "1000000")
    while "outer step 1/" not in process.stderr:
        assert process.process.poll() is None, process.stderr
        time.sleep(0.2)
    children = process.children()
    assert len(children) >= 8  # a bootstrap node and three peers, each with its daemon
    process.signal(number)
    code = process.wait()
    assert code == (-signal.SIGKILL if number == signal.SIGKILL else 128 + number)
    _, alive = psutil.wait_procs(children, timeout=15)
    assert not alive
