"""What the doctor has found, a line each: how it is said on a terminal, in JSON and as an exit code."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Literal

from prime_p2p.monitor.text import printable

Result = Literal["ok", "note", "warning", "problem"]


@dataclass(frozen=True)
class Finding:
    """One check. A problem stops a run, a warning makes it worse, and a note says what is not known or not needed."""

    name: str
    result: Result
    figure: str = ""
    text: str = ""
    advice: str = ""


def as_lines(findings: Sequence[Finding]) -> str:
    """A line for each, and one for all together."""
    name = max(len(finding.name) for finding in findings)
    lines = [f"{finding.result:7}  {finding.name:{name}}  {_sentence(finding)}" for finding in findings]
    return "\n".join([*lines, _verdict(findings)])


def as_json(findings: Sequence[Finding]) -> str:
    """One object with the list of checks."""
    return json.dumps({"checks": [asdict(finding) for finding in findings]}, indent=2)


def exit_code(findings: Sequence[Finding]) -> int:
    """1 where something would stop a run."""
    return int(any(finding.result == "problem" for finding in findings))


def _sentence(finding: Finding) -> str:
    said = ": ".join(part for part in (finding.figure, finding.text) if part)
    return printable("; ".join(part for part in (said, finding.advice) if part))


def _verdict(findings: Sequence[Finding]) -> str:
    counts = {kind: sum(finding.result == kind for finding in findings) for kind in ("problem", "warning")}
    said = [f"{count} {kind}{'s' * (count > 1)}" for kind, count in counts.items() if count]
    if counts["problem"]:
        return f"this machine cannot be a peer yet: {' and '.join(said)}"
    return f"this machine can be a peer{', with ' + said[0] if said else ''}"
