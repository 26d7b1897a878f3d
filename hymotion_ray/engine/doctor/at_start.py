"""What a job says of its nodes as it starts: the doctor's quick form, in a line a finding."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence

from hymotion_ray.engine.cluster import ClusterInfo
from hymotion_ray.engine.doctor.findings import Finding
from hymotion_ray.engine.doctor.job import quick_check
from hymotion_ray.engine.doctor.report import sorted_findings
from hymotion_ray.errors import ClusterError

LIMIT_S = 20.0
"""What the look may take in all: a cluster that is slow to answer is no reason not to start."""
_MAX_NAMES = 4


def warn_of_nodes(cluster: ClusterInfo, say: Callable[[str], None]) -> None:
    """Say what is wrong with the nodes of a cluster of several that was there before the job.

    Raises `ClusterError` only for what would make the results wrong: a node with another version of
    Python, Ray, torch or our own code.
    """
    if cluster.started_here or cluster.num_nodes < 2:
        return
    findings = quick_check(timeout_s=LIMIT_S)
    wrong = [f for f in findings if f.check == "versions" and f.level == "failure"]
    if wrong:
        raise ClusterError("; ".join(_lines(wrong)))
    for line in _lines(findings):
        say(line)


def _lines(findings: Sequence[Finding]) -> Iterator[str]:
    """One a finding; what several nodes have alike is one."""
    alike: dict[tuple[str, str, str], list[Finding]] = defaultdict(list)
    for finding in sorted_findings(findings):
        alike[finding.level, finding.check, finding.advice].append(finding)
    for (level, check, advice), found in alike.items():
        names = ", ".join(f.node for f in found[:_MAX_NAMES])
        more = f" and {len(found) - _MAX_NAMES} more" if len(found) > _MAX_NAMES else ""
        yield f"{level}: {check} of {names}{more}: {found[0].found}; {advice}"
