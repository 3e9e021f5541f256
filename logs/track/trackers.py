"""The trackers by name: the package that each needs, and how it begins. Packages are imported only when one begins."""

import os
import re
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from configs.errors import UserError
from logs.folder import CONFIG_FILE, read_settings
from logs.redaction import is_secret

FOLDER = "trackers"
"""The folder of a run folder in which trackers and their followers write."""

_PROJECT = "resnet-records"
"""The project in W&B, and the experiment in MLflow, unless a variable names another."""
_RUN_FOLDER = "run_folder"
"""The tag by which a resumed run finds itself again in MLflow."""
_MOST_PARAMETERS = 100
"""MLflow takes at most so many parameters in one call."""
_MOST_CHARACTERS = 500


class Tracker(NamedTuple):
    """One run as a tracker sees it.

    Attributes:
        log: Sends values that were measured after a number of steps, at a Unix time; the tracker shows them at once.
        close: Ends the run: as a success, a failure, or with None, because it has not ended and may be resumed.
    """

    log: Callable[[int, float, Mapping[str, float]], None]
    close: Callable[[bool | None], None]


def require_installed(names: Sequence[str]) -> None:
    """Raise `UserError` if the package of a tracker is not installed."""
    for name in names:
        package, _ = TRACKERS[name]
        if find_spec(package) is None:
            raise UserError(
                f"cluster.trackers: got {name}, but the package {package} is not installed; run ./run.sh setup --extra "
                f"{name}, or leave the tracker out"
            )


def open_tracker(name: str, run_folder: Path) -> Tracker:
    """Begin to track a run, or go on with it; the run is called as its folder.

    The tracker gets the run's settings but those that may hold a secret: a tracker may be a service that others read.
    """
    (run_folder / FOLDER).mkdir(exist_ok=True)
    known = read_settings(run_folder / CONFIG_FILE)
    shown = {key: value for key, value in known.items() if not is_secret(key.rpartition(".")[2], str(value))}
    _, begin = TRACKERS[name]
    return begin(run_folder, shown)


def _tensorboard(run_folder: Path, settings: Mapping[str, Any]) -> Tracker:
    """Write into ``trackers/tensorboard`` of the run folder: ``tensorboard --logdir`` shows all runs below a folder."""
    from tensorboardX import SummaryWriter  # noqa: PLC0415

    writer = SummaryWriter(logdir=str(run_folder / FOLDER / "tensorboard"))
    writer.add_text("settings", "\n".join(f"    {key}: {value}" for key, value in settings.items()))

    def log(step: int, time_s: float, values: Mapping[str, float]) -> None:
        for curve, value in values.items():
            writer.add_scalar(curve, value, step, walltime=time_s)
        writer.flush()

    return Tracker(log, lambda _: writer.close())


def _wandb(run_folder: Path, settings: Mapping[str, Any]) -> Tracker:
    """Begin a run named after the folder, or go on with the one of this name; WANDB_PROJECT chooses another project.

    W&B's own time is that of the call.
    """
    import wandb  # noqa: PLC0415

    name = run_folder.resolve().name
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", _PROJECT),
        name=name,
        id=re.sub(r"[^A-Za-z0-9_-]", "-", name)[:64],
        resume="allow",
        dir=str(run_folder / FOLDER),
        config=dict(settings),
        settings=wandb.Settings(console="off"),
    )
    return Tracker(
        lambda step, time_s, values: run.log({**values, "time": time_s}, step=step),
        lambda is_success: run.finish(exit_code=0 if is_success else 1),
    )


def _mlflow(run_folder: Path, settings: Mapping[str, Any]) -> Tracker:
    """Begin a run, or go on with the one of this folder; without MLFLOW_TRACKING_URI, in a database in the folder."""
    import mlflow  # noqa: PLC0415
    from mlflow.entities import Metric, Param  # noqa: PLC0415

    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{(run_folder / FOLDER).resolve() / 'mlflow.db'}")
    client = mlflow.MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _PROJECT)
    experiment = client.get_experiment_by_name(name)
    identity = client.create_experiment(name) if experiment is None else experiment.experiment_id
    where = str(run_folder.resolve())
    if found := client.search_runs([identity], filter_string=f"tags.{_RUN_FOLDER} = '{where}'", max_results=1):
        run = found[0].info.run_id
        client.update_run(run, status="RUNNING")
    else:
        run = client.create_run(identity, run_name=run_folder.resolve().name, tags={_RUN_FOLDER: where}).info.run_id
        parameters = iter([Param(key, str(value)[:_MOST_CHARACTERS]) for key, value in settings.items()])
        while batch := list(islice(parameters, _MOST_PARAMETERS)):
            client.log_batch(run, params=batch)

    def log(step: int, time_s: float, values: Mapping[str, float]) -> None:
        client.log_batch(run, [Metric(name, value, round(1000 * time_s), step) for name, value in values.items()])

    ends = {True: "FINISHED", False: "FAILED", None: "KILLED"}
    return Tracker(log, lambda is_success: client.set_terminated(run, status=ends[is_success]))


TRACKERS: Mapping[str, tuple[str, Callable[[Path, Mapping[str, Any]], Tracker]]] = {
    "tensorboard": ("tensorboardX", _tensorboard),
    "wandb": ("wandb", _wandb),
    "mlflow": ("mlflow", _mlflow),
}
"""Tracker, which is also the extra that installs it -> its package, and the function that begins it."""
