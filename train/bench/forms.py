"""The forms in which people run a program: how many processes, in which order of memory, precision and interface.

A comparison with another program holds only against that program's fastest form. So a bench starts every form for a
short time, and measures the fastest one beside ours.
"""

import itertools
import logging
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from configs.arguments import option
from configs.errors import UserError
from configs.registry import ENGINES, has_engine, possible_precisions

if TYPE_CHECKING:
    from train.bench.launching import Finished, Jobs

logger = logging.getLogger(__name__)

Form = Mapping[str, Any]
"""What a form sets: ``ranks``, their ``threads``, and further values of the program's own."""

BFLOAT16_FLAGS = frozenset({"avx512_bf16", "amx_bf16"})
"""Instructions of which a CPU needs one to compute in bfloat16. Without them, a step takes 16 times as long."""

ANY = "any"
"""``--precision``: of each program the fastest that this CPU has."""


@dataclass(frozen=True)
class PeerOptions:
    """The options of a bench that measures other programs."""

    precision: str = option(
        "number type of all programs; any: of each program the fastest that this CPU has, and in a race ours as in a "
        "plain run",
        ANY,
        choices=(ANY, "float32", "bfloat16"),
    )


def forms_of(*axes: Mapping[str, Form]) -> dict[str, Form]:
    """Return every combination of a value of each axis, by its title; a value without a title adds none."""
    combined: dict[str, Form] = {}
    for values in itertools.product(*(axis.items() for axis in axes)):
        title = ", ".join(name for name, _ in values if name)
        combined[title] = {key: value for _, settings in values for key, value in settings.items()}
    return combined


def places(ranks: int) -> dict[str, Form]:
    """Return the ways to use the cores of ``ranks`` ranks: that many processes of one thread, or one of all threads."""
    several: dict[str, Form] = {f"{ranks} processes": {"ranks": ranks, "threads": 1}} if ranks > 1 else {}
    return {**several, "one process": {"ranks": 1, "threads": ranks}}


def precisions() -> tuple[str, ...]:
    """Return the precisions in which this CPU computes."""
    from logs.environment import cpu_flags

    return ("float32", "bfloat16") if BFLOAT16_FLAGS & cpu_flags() else ("float32",)


def wanted_precisions(asked: str) -> tuple[str, ...]:
    """Return the precisions that ``--precision`` asks for.

    Raises:
        UserError: This CPU does not compute in that precision.
    """
    possible = precisions()
    if asked not in (ANY, *possible):
        allowed = ", ".join((ANY, *possible))
        raise UserError(f"--precision {asked}: allowed: {allowed}, because this CPU has no instructions for it")
    return possible if asked == ANY else (asked,)


def place_of(form: Form) -> list[str]:
    """Return the changes of the cluster for the ranks of a form."""
    return [f"cluster.ranks_per_node={form['ranks']}", f"cluster.engine.threads={form['threads']}"]


def own_forms(ranks: int, wanted: tuple[str, ...]) -> dict[str, Form]:
    """Return the forms of this program under every engine of this environment, that of a plain run first.

    Args:
        ranks: Cores to use.
        wanted: Values of ``engine.precision``; those that an engine does not have here are left out.
    """
    from logs.environment import cpu_flags

    forms: dict[str, Form] = {}
    for engine, entry in ENGINES.items():
        if entry.computes and has_engine(engine):
            layouts = {layout: {"layout": layout} for layout in entry.cpu_layouts}
            possible = possible_precisions(engine, cpu_flags())
            types = {name: {"precision": name} for name in wanted if name in possible}
            forms |= forms_of(places(ranks), {entry.title: {"name": engine}}, layouts, types)
    return forms


def own_place(form: Form) -> list[str]:
    """Return the changes of the cluster for a form of `own_forms`."""
    return [*place_of(form), *(f"cluster.engine.{key}={form[key]}" for key in ("name", "layout", "precision"))]


def fastest(
    program: str, forms: Mapping[str, Form], seconds: Callable[[Form], float], notes: list[str]
) -> tuple[str, Form]:
    """Try every form once.

    Args:
        program: The program's name.
        forms: The forms, by title.
        seconds: Returns the seconds of a form, of an image or of a run.
        notes: Takes how the forms compare.

    Returns:
        The program's name with the title of the fastest form, and that form.
    """
    taken_s = {}
    for title, form in forms.items():
        logger.info("trying %s, %s", program, title)  # A compiled form takes a minute.
        taken_s[title] = seconds(form)
    ranking = sorted(taken_s, key=lambda title: taken_s[title])
    title = ranking[0]
    listed = "; ".join(f"{each}: {taken_s[each] / taken_s[title]:.2f}" for each in ranking)
    notes.append(f"{program}, seconds of each form in a short start, as multiples of the fastest: {listed}")
    return f"{program}, {title}", forms[title]


def fastest_pytorch(
    jobs: "Jobs", ranks: int, wanted: tuple[str, ...], seconds: Callable[[Form], float], notes: list[str]
) -> tuple[str, Form] | None:
    """Return the fastest form of PyTorch: of all eager ones, and of the fastest eager one compiled; None without it.

    Args:
        jobs: Starts PyTorch.
        ranks: Cores to use.
        wanted: Precisions to try.
        seconds: As for `fastest`.
        notes: As for `fastest`; it also takes the reason why nothing is measured or compiled.
    """
    from configs.compilers import compiler_shortage
    from configs.load import load_cluster

    if not jobs.has_pytorch:
        notes.append("PyTorch is not measured: it is not installed; ./run.sh setup --engine torch adds it")
        return None
    orders: dict[str, Form] = {
        "channels first": {"is_channels_last": False},
        "channels last": {"is_channels_last": True},
    }
    types = {name: {"is_bfloat16": name == "bfloat16"} for name in wanted}
    forms = forms_of(places(ranks), orders, types, {"": {"is_compiled": False}})
    name, form = fastest("PyTorch", forms, seconds, notes)
    if shortage := compiler_shortage(
        load_cluster("laptop", ["cluster.engine.name=torch", "cluster.engine.compile=true"])
    ):
        notes.append(f"torch.compile is not tried: this machine has {shortage[0]}; {shortage[1]}")
        return name, form
    compiled = {**form, "is_compiled": True}
    seconds(compiled)  # Makes the kernels, which takes a minute; later starts find them in Inductor's cache.
    return fastest(name, {"eager": form, "compiled": compiled}, seconds, notes)


def start_pytorch(jobs: "Jobs", form: Form, **task: Any) -> "Finished":
    """Start PyTorch in a form, with a task of `train.bench.programs.pytorch`."""
    own = {key: value for key, value in form.items() if key.startswith("is_")}
    with tempfile.TemporaryDirectory() as folder:
        given = {"rendezvous_file": f"{folder}/ranks", "form": own, **task}
        return jobs.ranks("pytorch", given, overrides=place_of(form))
