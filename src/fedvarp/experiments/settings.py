"""The settings of a run: everything that a config file may say, with its defaults.

Sections mirror the Python interface: [local_sgd] holds the arguments of `fedvarp.LocalSGD`, [data]
those of the data set's function, and the rest those of `fedvarp.simulate`. The text below a setting
is what an error message says about it. `files` reads it.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self, get_args

from pydantic import Field, model_validator

from fedvarp.clusters.names import CLUSTERS_PATTERN
from fedvarp.experiments.sections import (
    MODELS_FOR,
    Always,
    Availability,
    Constant,
    Count,
    Data,
    Model,
    NotNegative,
    Positive,
    Schedule,
    Section,
    Seed,
)

AlgorithmName = Literal["fedavg", "fedvarp", "cluster_fedvarp", "mifa", "scaffold"]
RowDtype = Literal["float32", "bfloat16", "float16", "int8"]
ROW_DTYPES: Final[tuple[str, ...]] = get_args(RowDtype)


class LocalSGD(Section):
    """What a client does: Algorithm 1."""

    lr: Positive
    """The client learning rate; --set client_lr=… for short."""
    batch_size: Count
    """Examples in a batch (paper: 64)."""
    epochs: Count | None = None
    """Passes over the client's data; or give steps."""
    steps: Count | None = None
    """Steps, the same number at every client; or give epochs."""
    weight_decay: NotNegative = 0.0
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    clip_norm: Positive | None = None
    step_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Multiplies the rate after each step within a round."""
    schedule: Schedule = Constant(name="constant")

    @model_validator(mode="after")
    def _epochs_or_steps(self) -> Self:
        if (self.epochs is None) == (self.steps is None):
            raise ValueError("give one of epochs and steps")
        return self


class Sampling(Section):
    """Who takes part in a round."""

    scheme: Literal["uniform", "examples"] = "uniform"
    """Every cohort equally likely, or clients in proportion to their number of examples."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The probability that a selected client does not answer."""
    availability: Availability = Always(name="always")


class States(Section):
    """The table of client states."""

    where: Literal["memory", "disk"] = "memory"
    dtype: RowDtype = "float32"


class Settings(Section):
    """One run, complete: the same settings give the same run."""

    name: Annotated[str, Field(pattern=r"^[^/\\]+$")] = "run"
    """What the run is called in tables and directories; the preset or the file unless given."""
    algorithm: AlgorithmName = "fedvarp"
    rounds: Count
    """How many rounds to train."""
    clients_per_round: Count
    """How many clients take part in a round."""
    seed: Seed = 0
    """Keys the initial weights, the cohorts and the batches."""
    server_lr: Positive = 1.0
    server_momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    server_step: Literal["steady"] | None = None
    """"steady": as long as clients of all rounds so far walked on average; else of this round."""
    client_weights: Literal["equal", "examples"] = "equal"
    """What each client counts for in the objective."""
    clusters: Annotated[str, Field(pattern=CLUSTERS_PATTERN)] | None = None
    """For cluster_fedvarp: "own" (the data set's), "labels", or "auto:K"; own unless given."""
    recluster_every: Count | None = None
    """With clusters = "auto:K": rounds until clusters are made anew; never unless given."""
    evaluate_every: Count = 10
    """Rounds between evaluations."""
    num_train_clients: Annotated[int, Field(ge=0)] | None = None
    """Clients that the training loss is averaged over; all unless given."""
    num_test_examples: Annotated[int, Field(ge=0)] | None = None
    """Examples of the test set that are looked at; all unless given."""
    target_accuracy: Annotated[float, Field(gt=0, le=1)] | None = None
    """Stops at the first evaluation that reaches it."""
    commit_every: Count = 1
    """Rounds between checkpoints."""
    trainer: Literal["auto", "sequential", "parallel", "vectorised", "ray"] = "auto"
    """Who trains the clients: auto tries on the first rounds which is fastest here; ray goes to
    the cluster at RAY_ADDRESS, or to one of its own on this machine."""
    workers: Count | None = None
    """Processes that train clients; one for each core unless given."""
    compile: bool = False
    """Whether gradients are compiled: takes a while at first, and then may be faster."""
    exact: bool = True
    """Whether auto keeps to trainers that give the plain loop's figures bit for bit."""
    auto: str | None = None
    """Why auto chose the trainer it did; the run writes it here."""
    device: str = "cpu"
    threads: Count = 1
    """Of torch. Sums of floats depend on their number, so it is a setting like any other."""
    data: Data
    """Which federation to train on."""
    model: Model
    """Which model to train."""
    local_sgd: LocalSGD
    """What a client does."""
    sampling: Sampling = Sampling()
    states: States = States()

    @property
    def run_name(self) -> str:
        """What tells this run from others of its kind."""
        return f"{self.name}-{self.algorithm}-lr{self.local_sgd.lr:g}-seed{self.seed}"

    @model_validator(mode="before")
    @classmethod
    def _usual_model(cls, raw: Any) -> Any:
        if isinstance(raw, dict) and "model" not in raw and isinstance(raw.get("data"), dict):
            usual = MODELS_FOR.get(str(raw["data"].get("name")))
            return raw if usual is None else {**raw, "model": {"name": usual[0]}}
        return raw

    @model_validator(mode="after")
    def _model_reads_data(self) -> Self:
        fitting = MODELS_FOR[self.data.name]
        if self.model.name not in fitting:
            raise ValueError(
                f'model = "{self.model.name}" cannot read data = "{self.data.name}", which goes '
                f"with {' or '.join(fitting)}"
            )
        return self

    @model_validator(mode="after")
    def _only_auto_changes(self) -> Self:
        if self.recluster_every is not None and not (self.clusters or "").startswith("auto:"):
            raise ValueError('recluster_every goes with clusters = "auto:K"; others never change')
        return self

    @model_validator(mode="after")
    def _steady_at_one_rate(self) -> Self:
        if self.server_step is not None and not isinstance(self.local_sgd.schedule, Constant):
            raise ValueError(
                'server_step = "steady" is a mean over all rounds, which lags behind a changing '
                "client rate; it goes with a constant local_sgd.schedule"
            )
        return self

    def as_toml(self) -> dict[str, Any]:
        """What config.toml holds; reading it back gives equal settings."""
        return self.model_dump(mode="json", exclude_none=True)
