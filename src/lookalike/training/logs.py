"""Logs of a run: `log.jsonl` always, TensorBoard by default, Weights & Biases and MLflow on request."""

from __future__ import annotations

import os
from typing import Any

from lookalike.core import distributed
from lookalike.core.errors import LookalikeError
from lookalike.core.run import Run
from lookalike.core.settings import flatten
from lookalike.training.settings import TrainSettings


class Logs:
    """Writes the values of a step to every enabled log; only the main process writes.

    Args:
        run: The run folder.
        settings: Settings of the run; `log` is used.
        start: The step that a resumed run continues from.

    Example:
        >>> from lookalike.core.run import Run
        >>> from lookalike.training import TrainSettings
        >>> from lookalike.training.logs import Logs
        >>> run = Run.create("ms", {}, path="logged")
        >>> with Logs(run, TrainSettings(log={"tensorboard": False})) as logs:
        ...     logs.write(1, loss=0.5)
        >>> run.read_log()[0]["loss"]
        0.5
    """

    def __init__(self, run: Run, settings: TrainSettings, *, start: int = 0) -> None:
        self.run, self.settings, self.start = run, settings, start
        self._tensorboard: Any = None
        self._wandb: Any = None
        self._mlflow: Any = None

    def __enter__(self) -> Logs:
        if not distributed.is_main():
            return self
        chosen = self.settings.log
        name, config = self.run.path.name, self.settings.model_dump(mode="json")
        if chosen.wandb is not None:
            wandb = _import("wandb", "wandb")
            self._wandb = wandb.init(project=chosen.wandb, name=name, id=name, config=config, resume="allow")
        if chosen.mlflow is not None:
            self._mlflow = self._start_mlflow(chosen.mlflow, name, config)
        if chosen.tensorboard:
            from torch.utils.tensorboard import SummaryWriter

            # What an earlier try wrote beyond the step we go on from is hidden.
            self._tensorboard = SummaryWriter(str(self.run.path / "tensorboard"), purge_step=self.start + 1)
        return self

    def _start_mlflow(self, address: str, name: str, config: dict[str, Any]) -> Any:
        if "://" not in address or address.startswith("file:"):
            # MLflow asks for a word before it writes into a folder; naming one is that word.
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
        mlflow = _import("mlflow", "mlflow")
        try:
            mlflow.set_tracking_uri(address)
            mlflow.start_run(run_name=name)
            mlflow.log_params(flatten(config))
        except mlflow.exceptions.MlflowException as error:
            why = str(error).strip().splitlines()[0].rstrip(".")
            raise LookalikeError(f"MLflow cannot report to `{address}`: {why}.") from error
        return mlflow

    def write(self, step: int, **values: float) -> None:
        """Log values of a step by name."""
        if not distributed.is_main():
            return
        self.run.log(step=step, **values)
        if self._tensorboard is not None:
            for name, value in values.items():
                self._tensorboard.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(values, step=step)
        if self._mlflow is not None:
            self._mlflow.log_metrics({name.replace("@", "_at_"): v for name, v in values.items()}, step=step)

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._tensorboard is not None:
            self._tensorboard.close()
        if self._wandb is not None:
            self._wandb.finish()
        if self._mlflow is not None:
            self._mlflow.end_run()


def _import(module: str, extra: str) -> Any:
    import importlib

    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise LookalikeError(
            f"`logs.{module}` is set, but {module} is not installed: pip install 'lookalike[{extra}]', or leave it out."
        ) from error
