"""Logs of a run: `log.jsonl` always, TensorBoard by default, Weights & Biases and MLflow on request."""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Callable
from typing import Any

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.core.settings import flatten
from lookalike.training.settings import TrainSettings


class Logs:
    """Writes the values of a step to every enabled log; only the main process writes.

    A resumed run continues from the step `start`.
    """

    def __init__(self, run: Run, settings: TrainSettings, *, start: int = 0) -> None:
        self.run, self.settings, self.start = run, settings, start
        self._writers: list[Callable[[int, dict[str, float]], object]] = []
        self._closing = contextlib.ExitStack()

    def __enter__(self) -> Logs:
        if not distributed.is_main():
            return self
        chosen, name = self.settings.log, self.run.path.name
        self._writers.append(lambda step, values: self.run.log(step=step, **values))
        if chosen.wandb is not None:
            config = self.settings.model_dump(mode="json")
            wandb = _import("wandb").init(project=chosen.wandb, name=name, id=name, config=config, resume="allow")
            self._writers.append(lambda step, values: wandb.log(values, step=step))
            self._closing.callback(wandb.finish)
        if chosen.mlflow is not None:
            self._start_mlflow(chosen.mlflow, name)
        if chosen.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # What an earlier try wrote beyond the step we go on from is hidden.
            board = SummaryWriter(str(self.run.path / "tensorboard"), purge_step=self.start + 1)
            add = board.add_scalar
            self._writers.append(lambda step, values: [add(name, value, step) for name, value in values.items()])
            self._closing.callback(board.close)
        return self

    def _start_mlflow(self, address: str, name: str) -> None:
        if "://" not in address or address.startswith("file:"):
            # MLflow requires consent before it writes into a folder; naming one is consent.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow = _import("mlflow")
        try:
            mlflow.set_tracking_uri(address)
            mlflow.start_run(run_name=name)
            mlflow.log_params(flatten(self.settings.model_dump(mode="json")))
        except mlflow.exceptions.MlflowException as error:
            why = str(error).strip().splitlines()[0].rstrip(".")
            raise LookalikeError(f"MLflow cannot report to `{address}`: {why}.") from error
        self._writers.append(
            lambda step, values: mlflow.log_metrics({k.replace("@", "_at_"): v for k, v in values.items()}, step=step)
        )
        self._closing.callback(mlflow.end_run)

    def write(self, step: int, **values: float) -> None:
        """Log values of a step by name."""
        for writer in self._writers:
            writer(step, values)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        self._closing.close()


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LookalikeError(
            f"`log.{module}` is set, but {module} is not installed: pip install 'lookalike[{module}]', or leave it out."
        ) from error
