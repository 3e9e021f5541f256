"""MLflow. The only importer of mlflow, which takes server and experiment from MLFLOW_* variables."""

import os
from collections.abc import Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import mlflow
from mlflow.entities import Metric, Param

from logs.track.trackers import FOLDER

_EXPERIMENT = "resnet-records"
_RUN_FOLDER = "run_folder"
"""The tag by which a resumed run finds itself again."""
_MOST_PARAMETERS = 100
"""MLflow takes at most so many parameters in one call."""
_MOST_CHARACTERS = 500


class MlflowRun:
    """See `logs.track.trackers.Tracker`."""

    def __init__(self, client: Any, run_id: str) -> None:
        self._client, self._run_id = client, run_id

    def log(self, step: int, time_s: float, values: Mapping[str, float]) -> None:
        """See `Tracker`."""
        metrics = [Metric(name, value, round(1000 * time_s), step) for name, value in values.items()]
        self._client.log_batch(self._run_id, metrics=metrics)

    def close(self, *, is_success: bool | None) -> None:
        """See `Tracker`."""
        status = {True: "FINISHED", False: "FAILED", None: "KILLED"}[is_success]
        self._client.set_terminated(self._run_id, status=status)


def open_tracker(run_folder: Path, settings: Mapping[str, Any]) -> MlflowRun:
    """Begin a run, or go on with the one of this folder; without MLFLOW_TRACKING_URI, in a database in the folder."""
    os.environ.setdefault("MLFLOW_TRACKING_URI", f"sqlite:///{(run_folder / FOLDER).resolve() / 'mlflow.db'}")
    client = mlflow.MlflowClient()
    name = os.environ.get("MLFLOW_EXPERIMENT_NAME", _EXPERIMENT)
    experiment = client.get_experiment_by_name(name)
    identity = client.create_experiment(name) if experiment is None else experiment.experiment_id
    where = str(run_folder.resolve())
    query = f"tags.{_RUN_FOLDER} = '{where}'"
    if found := client.search_runs([identity], filter_string=query, max_results=1):
        run_id = found[0].info.run_id
        client.update_run(run_id, status="RUNNING")
        return MlflowRun(client, run_id)
    run = client.create_run(identity, run_name=run_folder.resolve().name, tags={_RUN_FOLDER: where})
    parameters = iter([Param(key, str(value)[:_MOST_CHARACTERS]) for key, value in settings.items()])
    while batch := list(islice(parameters, _MOST_PARAMETERS)):
        client.log_batch(run.info.run_id, params=batch)
    return MlflowRun(client, run.info.run_id)
