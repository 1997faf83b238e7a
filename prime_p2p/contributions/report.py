"""What was contributed to a run, as JSON, CSV or a table."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import asdict, astuple, fields

from prime_p2p.contributions.collect import Collected
from prime_p2p.contributions.shares import Share, shares
from prime_p2p.monitor.text import aligned, printable


def as_json(collected: Collected) -> str:
    """Everything, with what was rejected."""
    steps = [certificate.group.step + 1 for certificate in collected.certificates]
    by_groups = [certificate for certificate in collected.certificates if len(certificate.group.members) > 1]
    return json.dumps(
        {
            "run": collected.run,
            "since": collected.since,
            "first_outer_step": steps[0] if steps else None,
            "last_outer_step": steps[-1] if steps else None,
            "outer_steps": len(steps),
            "outer_steps_of_groups": len(by_groups),
            "peers": [
                asdict(share) | {"name": collected.names.get(share.peer_id, "")}
                for share in shares(collected.certificates)
            ],
            "asked": collected.asked,
            "rejected": [asdict(rejected) for rejected in collected.rejected],
        },
        indent=2,
    )


def as_csv(collected: Collected) -> str:
    """A line for each peer, below the names of the columns. Without the names that peers give themselves."""
    lines = io.StringIO()
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(column.name for column in fields(Share))
    writer.writerows(astuple(share) for share in shares(collected.certificates))
    return lines.getvalue().rstrip("\n")


_HEADS = ("peer", "tokens", "share", "commits", "of steps", "alone: tokens", "commits alone")


def as_table(collected: Collected) -> str:
    """For people: a line for each peer, where there is any, and one that says what all of it is of."""
    rows = [
        (
            printable(collected.names.get(share.peer_id) or f"…{share.peer_id[-8:]}"),
            f"{share.tokens:,}",
            f"{share.token_share:.1%}",
            f"{share.commits:,}",
            f"{share.commit_share:.1%}",
            f"{share.alone_tokens:,}",
            f"{share.alone_commits:,}",
        )
        for share in shares(collected.certificates)
    ]
    certificates = collected.certificates
    asked = {*collected.asked, *(one.peer_id for one in collected.rejected if one.outer_step is None)}
    found = f"{len(collected.asked)} of {len(asked)} peers asked have answered, {len(collected.rejected)} rejected"
    run = f"run {printable(collected.run)}"
    if not certificates:
        return f"{run}: no outer step from {collected.since} on has a certificate; {found}"
    steps = f"outer steps {certificates[0].group.step + 1} to {certificates[-1].group.step + 1}"
    said = f"{run}, {steps}: {len(certificates)} with a certificate; {found}"
    return f"{aligned([_HEADS, *rows], _HEADS[1:])}\n{said}"
