"""The document of an acceptance, as in ``accept.json``: figures, expectations, verdicts. Pure.

``accept.json`` has these keys, and further parts of an acceptance add keys of their own beside them:

- ``format``: 1. ``time``: the end, ISO 8601. ``cluster``, ``recipe``: names. ``commit``: of this program, or null.
  ``rehearsal``: whether ranks slept instead of computing.
- ``verdict``: ``pass``, ``slow`` or ``failed``, the worst of ``checks``. ``words``: it in a sentence.
- ``nodes``: a row a host: ``host``, ``verdict``, ``words`` (a list), ``ranks``, ``gpus`` (UUIDs), ``model``.
- ``checks``: a row a check, see `Check`; ``host`` is "" for the whole machine. ``expected`` has a row for each source.
- ``energy``: all that the nodes used while their ranks were asked, and while they learned; sums in joules, null where
  a device cannot be read; ``images_per_joule`` is of the run that learns. See `logs.energy.RunEnergy`.
- ``figures``: what a later acceptance compares itself with (``--baseline``), see `Figures`.
- ``ranks``: the reports of the ranks, see `launch.doctor.facts.RankFacts`, with the samples of all parts.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from configs.arguments import counted, printable
from launch.doctor.check_result import Expected, in_words
from logs.energy import RunEnergy

FORMAT = 1

Verdict = Literal["pass", "slow", "failed", "skipped"]

_SEVERITY: Sequence[Verdict] = ("skipped", "pass", "slow", "failed")


@dataclass(frozen=True)
class Check:
    """One figure, or one question, and its verdict.

    Attributes:
        topic: What was checked: compute, copy, input, link, rate, allreduce, bits, learning, energy, or a check of the
            doctor.
        host: The node; empty for the whole machine.
        verdict: ``skipped`` if the machine could not be asked.
        words: What was found, and what to do, for the person who is called.
        value: The figure; None if there is none.
        unit: Of the figure and its expectations.
        expected: What it is compared with.
    """

    topic: str
    host: str
    verdict: Verdict
    words: str
    value: float | None = None
    unit: str = ""
    expected: Sequence[Expected] = ()

    @property
    def is_bad(self) -> bool:
        """Whether the verdict is slow or failed."""
        return self.verdict in ("slow", "failed")

    @property
    def said(self) -> str:
        """The words, with what is expected; XML has no place for the control characters of a library's message."""
        return printable("; ".join([self.words, *(in_words(each, self.unit) for each in self.expected)]))


@dataclass(frozen=True)
class Figures:
    """What a later acceptance of the same machine is compared with.

    Attributes:
        images_per_s: Of all ranks together.
        step_spread: Standard deviation of a step of all ranks together, as a share of the step.
        parts: Host -> part -> median seconds of its slowest rank, and the standard deviation of one sample.
        bits: Model of processor or GPU -> checksum of the weights that most of its ranks trained.
    """

    images_per_s: float | None = None
    step_spread: float = 0.0
    parts: Mapping[str, Mapping[str, tuple[float, float]]] = field(default_factory=dict)
    bits: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Node:
    """The verdict on a node."""

    host: str
    verdict: Verdict
    words: Sequence[str]
    ranks: Sequence[int]
    gpus: Sequence[str]
    model: str


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; ``pass`` if nothing was found."""
    return max(verdicts, key=_SEVERITY.index, default="pass")


@dataclass(frozen=True)
class Acceptance:
    """All of ``accept.json`` but the reports of the ranks; the attributes are its keys."""

    time: str
    cluster: str
    recipe: str
    commit: str | None
    rehearsal: bool
    nodes: Sequence[Node]
    checks: Sequence[Check]
    figures: Figures
    energy: RunEnergy

    @property
    def verdict(self) -> Verdict:
        """The verdict on the whole machine."""
        found = worst(check.verdict for check in self.checks)
        return "pass" if found == "skipped" else found

    @property
    def words(self) -> str:
        """The verdict in a sentence."""
        bad = [node for node in self.nodes if node.verdict in ("slow", "failed")]
        whole = [check.topic for check in self.checks if not check.host and check.is_bad]
        where = [*([f"{len(bad)} of {counted(len(self.nodes), 'node')}"] if bad else []), *dict.fromkeys(whole)]
        shown = f": {', '.join(where)}" if where else f", {counted(len(self.nodes), 'node')}"
        return f"{self.cluster}: {self.verdict}{shown}" + (" (a rehearsal)" if self.rehearsal else "")

    def to_json(self, ranks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """Return the content of ``accept.json``."""
        own = {"format": FORMAT, "verdict": self.verdict, "words": self.words}
        return {**own, **asdict(self), "ranks": list(ranks)}

    def __str__(self) -> str:
        """Return the text for the terminal: the verdicts of the whole, the nodes that are not sound, and all words."""
        shown = [check for check in self.checks if not check.host or check.is_bad]
        places = [f"{check.topic} ({check.host})" if check.host else check.topic for check in shown]
        lines = [f"{check.verdict:<7} {place}: {check.said}" for check, place in zip(shown, places, strict=True)]
        sound = [node.host for node in self.nodes if node.verdict == "pass"]
        lines.append(f"{counted(len(sound), 'node')} of {len(self.nodes)} as expected")
        return "\n".join([*lines, self.words, ""])
