"""The training loop: one for all methods, for cached features and pixels, for one process and several.

Everything that decides what a step does is a function of the settings, the seed and the step, or is in the checkpoint.
So a run that is killed and resumed ends with the same bits as an uninterrupted one.
"""

from __future__ import annotations

import contextlib
import copy
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from lookalike.core import distributed, interrupts, progress, seeds
from lookalike.core.device import CPU
from lookalike.core.errors import LookalikeError
from lookalike.core.report_blocks import number
from lookalike.core.run import Run
from lookalike.data.samplers import Sampler
from lookalike.data.table import Table
from lookalike.evaluation import classification, retrieval
from lookalike.methods.base import PIXELS, Batch, Context, Method
from lookalike.methods.collapse import mean_cosine
from lookalike.models import Embedder
from lookalike.models.heads import MomentumBatchNorm
from lookalike.models.inference.torch_runtime import fused_graph
from lookalike.training import checkpoint, depthwise, drift, optim
from lookalike.training.batchnorm import gather_statistics, layers, split_statistics
from lookalike.training.logs import Logs
from lookalike.training.own_parts import CallbackState
from lookalike.training.settings import TrainSettings
from lookalike.training.setup import Source
from lookalike.training.step import device_random_state, joint_gradient, set_device_random_state
from lookalike.training.stopping import Dropped, StopCheck

PRECISIONS = {"f32": "32-true", "bf16": "bf16-mixed", "f16": "16-mixed"}
CHECKPOINT_SECONDS = 60.0
"""A checkpoint is written at least this often."""
SLOW_SECONDS = 0.5
"""After a step that took longer, the next one can be dropped: the state before it is kept in memory."""


class LoopSetup(Protocol):
    """What the loop takes its steps with: `TrainingSetup`, or the task of an adaptation."""

    model: Embedder
    table: Any
    train: np.ndarray
    validation: np.ndarray
    test: np.ndarray
    known: np.ndarray
    frozen: list[torch.nn.Module]
    parent: str

    @property
    def device(self) -> torch.device: ...
    @property
    def sampler(self) -> Sampler: ...
    @property
    def classes(self) -> int: ...
    @property
    def train_table(self) -> Table: ...
    @property
    def train_labels(self) -> np.ndarray: ...
    @property
    def labels(self) -> np.ndarray: ...
    def make_method(self, context: Context) -> Method: ...
    def make_source(self, method: Method) -> Source: ...


@dataclass
class TrainingProgress:
    """Progress of a run and the results of its evaluations; part of the checkpoint.

    `scores` are ``[step, score, MAP@R]`` of every evaluation; `evaluation_due`: that after `step` is missing, because
    the run was stopped in it.
    """

    step: int = 0
    best_step: int = 0
    best_score: float | None = None
    scores: list[list[float]] = field(default_factory=list)
    finished: bool = False
    stopped_early: bool = False
    evaluation_due: bool = False

    @property
    def stale(self) -> int:
        """Number of evaluations since the best one."""
        return sum(step > self.best_step for step, *_ in self.scores)

    def note(self, step: int, score: float, second: float) -> bool:
        """Add an evaluation and return whether it is the best so far.

        Ties are broken by MAP@R (`second`): on an easy set recall@1 is 1 from the start.
        """
        rank = max((tuple(row[1:]) for row in self.scores), default=None)
        self.scores.append([step, score, second])
        if rank is not None and (score, second) <= rank:
            return False
        self.best_step, self.best_score = step, score
        return True


class Loop:
    """Takes the optimizer steps of a run, evaluates, and writes checkpoints."""

    def __init__(self, settings: TrainSettings, parts: LoopSetup, run: Run, callbacks: Sequence[Any] = ()) -> None:
        self.settings, self.parts, self.run_folder, self.callbacks = settings, parts, run, callbacks
        self.model, self.device, self.sampler = parts.model, parts.device, parts.sampler
        if self.sampler.size < (processes := distributed.world_size()):
            raise LookalikeError(f"A joint batch of {self.sampler.size} cannot be shared by {processes} processes.")
        self.fabric = _fabric(self.device, settings.precision)
        if settings.model.batch_norm == "gathered":
            gather_statistics(self.model.backbone)
        elif settings.model.batch_norm == "split":
            split_statistics(self.model.backbone, settings.model.batch_norm_splits)
        # Anew: how much was drawn so far depends on what was cached. The same on every process.
        seeds.seed_everything(settings.seed)
        sizes = (parts.classes, settings.steps, self.sampler.size, settings.seed, self.device)
        labels = torch.from_numpy(parts.train_labels).to(self.device)
        self.context = Context(self.model, *sizes, parts.train_table, labels, self.encode, self.encode_backward)
        self.method: Method = parts.make_method(self.context).to(self.device)
        if settings.model.batch_norm == "gathered":
            gather_statistics(self.method)
        self.source = parts.make_source(self.method)
        self.optimizer: Any = self.fabric.setup_optimizers(optim.make_optimizer(self.method, settings))
        self.done = TrainingProgress()
        self.state_shown = CallbackState(run, self.model, self.method, settings.steps)
        self.readings: dict[str, float] = {}
        self.saved = time.monotonic()
        self._check = StopCheck()
        self._before: dict[str, Any] | None = None  # state before the step in progress
        self._slow = True  # whether the last step was

    # ---- the steps -------------------------------------------------------------------------------

    def go(self, *, resume: bool = False) -> TrainingProgress:
        """Take all steps, from the last checkpoint if `resume` is set."""
        if resume and (self.run_folder.checkpoints / checkpoint.LAST).exists():
            self._restore()
        done, method = self.done, contextlib.closing(self.method)
        self.train_mode()
        with (
            method,
            Logs(self.run_folder, self.settings, start=done.step) as logs,
            interrupts.stop_on_interrupt() as self._check.request,
        ):
            try:
                self._go(logs)
            except Dropped:
                self.train_mode()  # in which batch-norm statistics are part of the state
                self._save(self._before)
                if hasattr(self.source, "close"):
                    self.source.close()  # images drawn ahead are not waited for
                raise interrupts.Stopped(
                    f"Stopped at step {done.step:,} of {self.settings.steps:,}; nothing is lost. "
                    f"Continue with: {self.run_folder.resume_with(self.method.command)}",
                    terminated=self._check.request.terminated,
                ) from None
        done.finished = True
        self._call("on_end")
        return done

    def _go(self, logs: Logs) -> None:
        settings, done = self.settings, self.done
        if not done.scores and done.step == 0:
            self._evaluate(0, logs)
            self._save()
        with progress.Progress(f"{self.method.command.capitalize()}ing", settings.steps) as bar:
            bar.done = done.step - done.evaluation_due
            while (done.step < settings.steps or done.evaluation_due) and not done.finished:
                if not done.evaluation_due:
                    loss = self._take_droppable_step(done.step + 1)
                    done.step += 1
                    bar.note = f"loss {number(loss)}"
                    self._after_step(loss, logs)
                if done.evaluation_due:
                    self._evaluate(done.step, logs)
                    last, patience = done.step == settings.steps, settings.early_stopping
                    stale = patience is not None and done.stale >= patience
                    done.stopped_early = bool(stale or self.state_shown.stop) and not last
                    done.finished = last or done.stopped_early
                    done.evaluation_due = False
                    self._save()
                elif time.monotonic() - self.saved >= CHECKPOINT_SECONDS:
                    self._save()
                bar.advance()
                if distributed.any_rank(self._check.request.is_set()) and not done.finished:
                    raise Dropped

    def _after_step(self, loss: float, logs: Logs) -> None:
        """Log a step and decide whether an evaluation follows."""
        settings, done, step = self.settings, self.done, self.done.step
        last = step == settings.steps
        if last or step % settings.log.every_n_steps == 0:
            logs.write(step, loss=loss, lr=self.optimizer.param_groups[0]["lr"], **self.context.logs)
        if self.readings:
            logs.write(step, **self.readings)
        self._call("on_step", loss=loss, logs=dict(self.context.logs))
        done.evaluation_due = bool(last or self.state_shown.stop or step % settings.evaluate_every == 0)

    def _take_droppable_step(self, step: int) -> float:
        """Take a step; if it is long, a request to stop ends it at the next layer, and what it changed is dropped."""
        start = time.monotonic()
        if self._slow and self.device.type == CPU and distributed.world_size() == 1:
            state = self.state()
            self._before = state | copy.deepcopy({name: state[name] for name in ("method", "optimizer", "precision")})
            with self._check.block(layers=True):
                loss = self.take_step(step)
            self._before = None
        else:
            loss = self.take_step(step)
        self._slow = time.monotonic() - start > SLOW_SECONDS
        return loss

    def _call(self, hook: str, **news: Any) -> None:
        """Call a hook of all callbacks, which share one state."""
        if not self.callbacks:
            return
        state, done = self.state_shown, self.done
        vars(state).update(news, step=done.step, best_step=done.best_step, best_score=done.best_score)
        for callback in self.callbacks:
            getattr(callback, hook, lambda _: None)(state)

    def take_step(self, step: int) -> float:
        """Take one optimizer step and return its loss."""
        context, settings = self.context, self.settings
        context.step, context.logs, self.readings = step, {}, {}
        context.epoch, place = divmod(step - 1, self.sampler.steps_per_epoch)
        if place == 0:
            self.method.on_epoch()
        factor = optim.lr_factor(step, settings.steps, settings.schedule)
        frozen = step <= settings.schedule.freeze_backbone_steps
        for group in self.optimizer.param_groups:
            group["lr"] = 0.0 if frozen and group.get("name") == "backbone" else group["initial"] * factor
        if isinstance(self.model.norm, MomentumBatchNorm):
            self.model.norm.set_epoch(context.epoch + 1, -(-settings.steps // self.sampler.steps_per_epoch))
        self.method.before_step()
        mine, joint = self._batches(step)
        every = settings.log.drift_every_n_steps
        logged = bool(every) and step % every == 0
        before = self._embed_batch(mine) if logged or self.method.needs_drift() else None
        parts, backward = min(settings.accumulation_steps, len(mine)), self.fabric.backward
        loss = joint_gradient(self.method, mine, joint, parts, autocast=self._autocast, backward=backward).item()
        if not math.isfinite(loss):
            raise LookalikeError(
                f"The loss is not finite at step {step}; lower the learning rate ({settings.optimizer.lr:g}) or set "
                f"`max_grad_norm`. The checkpoint of step {self.done.scores[-1][0] if self.done.scores else 0} is kept."
            )
        if (limit := settings.max_grad_norm) is not None:
            self.fabric.clip_gradients(self.method, self.optimizer, max_norm=limit, error_if_nonfinite=False)
        self.method.before_update()
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.method.after_step()
        if before is not None:
            self._measure_drift(before, mine, joint, logged)
        return loss

    @contextlib.contextmanager
    def _autocast(self) -> Iterator[None]:
        """The precision of the network's forward pass."""
        fast = self.settings.precision == "bf16" and self.device.type == CPU
        with self.fabric.autocast(), depthwise.FastDepthwise() if fast else contextlib.nullcontext():
            yield

    @torch.no_grad()
    def _embed_batch(self, mine: Batch) -> Tensor:
        """The joint batch's own pixels, embedded in evaluation mode."""
        self.model.eval()
        with self.fabric.autocast():
            rows = self.context.forward(mine).float()
        self.train_mode()
        return distributed.all_gather(rows)

    def _measure_drift(self, before: Tensor, mine: Batch, joint: Batch, logged: bool) -> None:
        after = self._embed_batch(mine)
        moved = drift.feature_drift(before, after)
        if self.method.needs_drift():
            self.method.on_drift(moved["drift/mean"])
        if not logged:
            return
        self.readings = {**moved, "drift/cosine": mean_cosine(after)}
        stored = self.method.memory_rows(drift.NUM_ROWS)
        if stored is not None:
            now, centers = (self.encode(ids.cpu().numpy()) for ids in (stored.ids, joint.ids))
            self.readings |= drift.staleness(stored, now, after, centers)

    def _batches(self, step: int) -> tuple[Batch, Batch]:
        rows = self.sampler.batch(step)
        mine = distributed.rank_slice(len(rows))
        views = self.source.views(self.parts.train[rows], mine, step)
        if hasattr(self.source, "prepare") and step < self.settings.steps:
            ahead = self.sampler.batch(step + 1)
            self.source.prepare(self.parts.train[ahead], distributed.rank_slice(len(ahead)), step + 1)
        ids = torch.from_numpy(rows.astype(np.int64)).to(self.device)
        joint = Batch((), self.source.layer, self.context.labels[ids], ids)
        return replace(joint.part(mine), views=tuple(v.to(self.device) for v in views)), joint

    def train_mode(self) -> None:
        """Set training mode, except for what is frozen."""
        self.model.train()
        self.method.train()
        if self.settings.model.batch_norm == "frozen":
            for layer in layers(self.model.backbone):
                layer.eval()
        for module in self.parts.frozen:
            module.eval()
        for twin in self.method.teacher_models():
            for ours, theirs in zip(self.model.modules(), twin.modules(), strict=True):
                theirs.training = ours.training

    # ---- evaluation ------------------------------------------------------------------------------

    def encode(self, rows: Any = None) -> Tensor:
        """Embeddings of training rows, or of the images of another table (`Context.encode`)."""
        if rows is None or isinstance(rows, np.ndarray):
            return self.embed(self.parts.train if rows is None else self.parts.train[rows])
        mine = distributed.rank_slice(len(rows))
        vectors = self.model.encode(rows.take(np.arange(len(rows))[mine]), runtime="torch")
        self.train_mode()
        return distributed.all_gather(torch.from_numpy(vectors).to(self.device))

    @torch.no_grad()
    def embed(self, rows: np.ndarray, model: Embedder | None = None) -> Tensor:
        """Unit embeddings of table rows at the center crop, in evaluation mode, shared among processes."""
        model = (model or self.model).eval()
        mine = rows[distributed.rank_slice(len(rows))]
        pixels, precision = self.source.layer == PIXELS, self.settings.precision
        graph = fused_graph(model, "pooled", precision, len(mine)) if pixels else None
        none = torch.empty(0, self.model.dim, device=self.device)
        vectors = torch.cat([none, *(z for _, z in self._centers(mine, model, graph))])
        self.train_mode()
        return distributed.all_gather(vectors)

    def encode_backward(self, rows: np.ndarray, gradient: Tensor) -> None:
        """Backpropagate the gradient of embeddings that `encode` returned (`Context.encode_backward`)."""
        self.model.eval()
        mine = distributed.rank_slice(len(rows))
        for part, z in self._centers(self.parts.train[rows[mine]], self.model):
            z.backward(gradient[mine][part])
        self.train_mode()

    def _centers(
        self, rows: np.ndarray, model: Embedder, graph: Callable[[np.ndarray], np.ndarray] | None = None
    ) -> Iterator[tuple[slice, Tensor]]:
        """Embeddings of table rows at the center crop, in blocks; `graph` maps pixels to features."""
        size = 64 if self.source.layer != "pooled" else 4096
        for start in range(0, len(rows), size):
            self._check()
            part = slice(start, start + size)
            x, layer = self.source.center(rows[part]).to(self.device), self.source.layer
            if graph is not None:
                x, layer = torch.from_numpy(graph(x.numpy())), "pooled"
            with self.fabric.autocast():
                z = model(x) if layer == PIXELS else model.from_layer(layer, x)
            yield part, z.float()

    def _evaluate(self, step: int, logs: Logs) -> None:
        """Score the model on the validation classes; write the checkpoint of the best step."""
        done = self.done
        with self._check.block():
            metrics, readings = self._measure()
        if metrics is None:  # nothing to choose by: the last step is taken
            done.best_step, best = step, True
        else:
            best = done.note(step, metrics[self.settings.metric], metrics["map@r"])
        for values in readings:
            logs.write(step, **values)
        if best and distributed.is_main():
            states = {name: checkpoint.trainable_state(self.model, model) for name, model in self._models().items()}
            state = {"step": step, "model": states.pop(""), "beside": states, "keepsakes": self.method.export_tensors()}
            checkpoint.write(self.run_folder.checkpoints / checkpoint.BEST, state)
        self._call("on_evaluate", score=done.scores[-1][1] if done.scores else None)

    def _measure(self) -> tuple[dict[str, float] | None, list[dict[str, float]]]:
        """Metrics on the validation classes, if there are any, and the rows of the log."""
        rows, classes = self.parts.validation, self.settings.log.test_classes
        metrics, readings = None, []
        if len(rows):
            vectors = self.embed(rows, self.method.export_model()).cpu().numpy()
            metrics = retrieval.retrieval_metrics(vectors, self.parts.labels[rows], recall_at=(1,), top=100).mean()
            readings.append({f"validation/{name}": metrics[name] for name in ("recall@1", "map@r")})
        elif not self.method.needs_labels and len(self.parts.test):
            readings.append(self._neighbors())
        return metrics, [*readings, self._test_recall(classes)] if classes else readings

    def _test_recall(self, classes: int) -> dict[str, float]:
        """recall@1 on the first test classes, decoded anew: test images are not among the cached ones."""
        test, codes = self.parts.test, self.parts.labels[self.parts.test]
        chosen = np.isin(codes, np.unique(codes[codes >= 0])[:classes])
        vectors = self.encode(self.parts.table.take(test[chosen])).cpu().numpy()
        return {"test/recall@1": retrieval.retrieval_metrics(vectors, codes[chosen]).mean()["recall@1"]}

    def _neighbors(self) -> dict[str, float]:
        """k-NN accuracy on the held-out images: a reading, nothing is chosen by it."""
        out: dict[str, float] = {}
        for name, model in self._models().items():
            sides: list[np.ndarray] = []
            for rows in (self.parts.known, self.parts.test):
                sides += [self.embed(rows, model).cpu().numpy(), self.parts.labels[rows]]
            options: Any = {"k": classification.KNN_COUNTS, "temperature": self.method.knn_temperature}
            prefix = f"{name}_" if name else ""
            accuracy = classification.weighted_knn(*sides, **options).accuracy
            out |= {f"knn/{prefix}accuracy@{k}": value for k, value in accuracy.items()}
        return out

    def _models(self) -> dict[str, Embedder]:
        """The networks that are evaluated and saved; the main one has no name."""
        return {"": self.method.export_model(), **self.method.extra_models()}

    # ---- state -----------------------------------------------------------------------------------

    def _save(self, state: dict[str, Any] | None = None) -> None:
        self.saved = time.monotonic()
        if distributed.is_main():
            checkpoint.write(self.run_folder.checkpoints / checkpoint.LAST, state or self.state())
        self._call("on_checkpoint")

    def state(self) -> dict[str, Any]:
        """Everything that the rest of the run depends on."""
        return {
            "step": self.done.step,
            "progress": asdict(self.done),
            "parent": self.parts.parent,
            "model": checkpoint.trainable_state(self.model),
            "method": self.method.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "precision": self.fabric.strategy.precision.state_dict(),
            "random": seeds.global_state(),
            "device_random": device_random_state(self.device),
        }

    def _restore(self) -> None:
        state = checkpoint.read(self.run_folder.checkpoints / checkpoint.LAST)
        if state["parent"] != self.parts.parent:
            raise LookalikeError(
                f"The run `{self.run_folder.path}` began with another starting model than `{self.settings.model.name}` "
                "is now; it cannot be resumed."
            )
        self.done = TrainingProgress(**state["progress"])
        checkpoint.load_trainable_state(self.model, state["model"])
        self.method.load_state_dict(state["method"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.fabric.strategy.precision.load_state_dict(state["precision"])
        seeds.set_global_state(state["random"])
        set_device_random_state(state["device_random"], self.device)
        if distributed.is_main():
            self.run_folder.truncate_log(self.done.step)


def _fabric(device: torch.device, precision: str) -> Any:
    """Fabric for one device of this process: precision, loss scaling, clipping. Processes are started by us."""
    from lightning_fabric import Fabric
    from lightning_fabric.accelerators import ACCELERATOR_REGISTRY

    known = ACCELERATOR_REGISTRY.available_accelerators()
    if device.type not in known:
        raise LookalikeError(
            f"Training cannot use the device `{device.type}`: Lightning Fabric knows {', '.join(known)}."
        )
    for name in [name for name in os.environ if name.startswith("LT_")]:
        del os.environ[name]  # of `fabric run`: its processes are ours, and its Fabric would be one of several devices
    devices = 1 if device.index is None else [device.index]
    fabric = Fabric(accelerator=device.type, devices=devices, precision=PRECISIONS[precision])  # type: ignore[arg-type]
    fabric.launch()
    return fabric
