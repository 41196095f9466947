"""The settings of a run: everything that a config file may say, with its defaults. No torch.

Sections that Python has too are the same classes: [local_sgd] is `fedvarp.LocalSGD`, [table],
[trainer], [evaluation] and [recording] likewise. [data], [model], [server] and
[sampling.availability] name a function or class, by a name of a registry or by an import path of
one's own; what else they may say are its parameters. The text below a setting is what the settings
reference and error messages say about it. `files` reads them.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Final, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from fedvarp.algorithms.names import algorithm_text, but_defaults
from fedvarp.clients.local_sgd import LocalSGD
from fedvarp.clients.metrics import OWN_METRICS
from fedvarp.errors import InvalidError
from fedvarp.server.names import SERVER_OPTIMIZERS
from fedvarp.settings.bounds import Count, Decay, Positive, Seed
from fedvarp.settings.names import Choice, Registry
from fedvarp.settings.section import Section
from fedvarp.simulation.settings import Evaluation, Recording
from fedvarp.tables.settings import Table
from fedvarp.trainers.settings import TRAINERS, Trainer

DATASETS: Final = Registry(
    "data set",
    {
        "cifar10": "fedvarp.data:cifar10",
        "shakespeare": "fedvarp.data:shakespeare",
        "digits": "fedvarp.data:digits",
        "quadratics": "fedvarp.data:quadratics",
        "logistic": "fedvarp.data:logistic",
    },
)
MODELS: Final = Registry(
    "model",
    {
        "lenet5": "fedvarp.models:LeNet5",
        "resnet18": "fedvarp.models:ResNet18",
        "char_gru": "fedvarp.models:CharGRU",
        "logistic_regression": "fedvarp.models:LogisticRegression.for_dataset",
        "quadratic": "fedvarp.models:Quadratic.for_dataset",
    },
)
LOSSES: Final = Registry(
    "loss",
    {
        "cross_entropy": "torch.nn.functional:cross_entropy",
        "mse": "torch.nn.functional:mse_loss",
        "quadratic": "fedvarp.models:quadratic_loss",
    },
)
AVAILABILITIES: Final = Registry(
    "availability",
    {
        "always": lambda: None,
        "bernoulli": "fedvarp.clients.availability:Bernoulli",
        "markov": "fedvarp.clients.availability:Markov",
        "cyclic": "fedvarp.clients.availability:Cyclic",
        "trace": "fedvarp.clients.availability:Trace.from_csv",
    },
)

MODELS_FOR: Final[dict[str, tuple[str, ...]]] = {
    "cifar10": ("lenet5", "resnet18", "logistic_regression"),
    "shakespeare": ("char_gru",),
    "digits": ("logistic_regression",),
    "logistic": ("logistic_regression",),
    "quadratics": ("quadratic",),
}
"""Our models that read our data sets; the first is taken unless another is named."""

CHOICES: Final = (
    "algorithm",
    "data",
    "model",
    "local_sgd.schedule",
    "local_sgd.optimizer",
    "server",
    "sampling.availability",
)
"""The sections whose name decides what else they may say."""


class ServerStep(Choice):
    """How the server walks in the direction v."""

    name: Annotated[str, AfterValidator(SERVER_OPTIMIZERS.check)] = "sgd"
    """sgd (with or without momentum), adam, yogi, adagrad, exp, or the import path of your own."""
    lr: Positive | None = None
    """The server learning rate η_s; unless given that of the optimiser, for sgd the paper's 1."""


class Sampling(Section):
    """Who takes part in a round, and what each client counts for."""

    scheme: Literal["uniform", "examples", "stratified", "round_robin", "importance"] = "uniform"
    """uniform: every cohort is equally likely; examples: clients in proportion to their number of
    examples; stratified: from each cluster of table.clusters its share; round_robin: in turn;
    importance: more often the further a client's update was from its row."""
    uniform_share: Decay | None = None
    """Of importance: the part of a client's probability that it has whatever was seen of it; 0.2
    unless given."""
    objective: Literal["equal", "examples"] = "equal"
    """What each client counts for in the objective: the same, or its number of examples."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """The probability that a selected client does not answer."""
    availability: Annotated[Choice, AfterValidator(AVAILABILITIES.check_choice)] = Choice(
        name="always"
    )
    """Who is online: always (everybody), bernoulli, markov, cyclic, trace, or your own."""

    @model_validator(mode="after")
    def _share_of_importance(self) -> Self:
        if self.uniform_share is not None and self.scheme != "importance":
            raise InvalidError(
                f'uniform_share goes with scheme = "importance", not "{self.scheme}"'
            )
        return self


class Settings(Section):
    """One run, complete: the same settings give the same run."""

    name: Annotated[str, AfterValidator(lambda name: _without_slash(name))] = "run"
    """What the run is called in tables and directories; the preset or the file unless given."""
    algorithm: Annotated[str, BeforeValidator(algorithm_text)] = "fedvarp"
    """A name in `fedvarp.algorithms.ALGORITHMS`, such as fedvarp_mixed, or the import path of your
    own; with options as in fedstale(beta=0.3)."""
    rounds: Count
    """How many rounds to train."""
    clients_per_round: Count
    """How many clients take part in a round."""
    seed: Seed = 0
    """Keys the initial weights, the cohorts and the batches."""
    data: Annotated[Choice, AfterValidator(DATASETS.check_choice)]
    """Which federation to train on."""
    model: Annotated[Choice, AfterValidator(MODELS.check_choice)]
    """Which model to train."""
    loss: Annotated[str, AfterValidator(LOSSES.check)] | None = None
    """cross_entropy, mse, or the import path of your own; the model's unless given."""
    local_sgd: LocalSGD
    """What a client does."""
    server: ServerStep = ServerStep()
    """How the server steps."""
    sampling: Sampling = Sampling()
    """Who takes part."""
    table: Table = Table()
    """The table of client states."""
    trainer: Trainer = Trainer(name="auto", threads=1)
    """Who trains the clients; auto unless given, and torch with one thread."""
    evaluation: Evaluation = Evaluation()
    """How the model is judged."""
    recording: Recording = Recording()
    """How the run is kept."""

    @property
    def run_name(self) -> str:
        """What tells this run from others of its kind."""
        algorithm = re.sub(r"[(, ]+", "-", self.algorithm.rpartition(":")[2]).rstrip(")")
        return f"{self.name}-{algorithm}-lr{self.local_sgd.lr:g}-seed{self.seed}"

    @model_validator(mode="before")
    @classmethod
    def _usual(cls, raw: Any) -> Any:
        """What follows from the rest: the model from the data, auto for an unnamed trainer."""
        if not isinstance(raw, dict):
            return raw
        data = raw.get("data")
        usual = MODELS_FOR.get(str(data.get("name"))) if isinstance(data, dict) else None
        if "model" not in raw and usual is not None:
            raw = {**raw, "model": {"name": usual[0]}}
        if isinstance(raw.get("trainer"), dict):
            raw = {**raw, "trainer": {"name": "auto", "threads": 1, **raw["trainer"]}}
        return raw

    @model_validator(mode="after")
    def _model_reads_data(self) -> Self:
        fitting = MODELS_FOR.get(self.data.name, ())
        if self.model.name in MODELS and fitting and self.model.name not in fitting:
            raise InvalidError(
                f'model = "{self.model.name}" cannot read data = "{self.data.name}", which goes '
                f"with {' or '.join(fitting)}"
            )
        return self

    def completed(self) -> Self:
        """The same with every option of what it chooses, those left out at their defaults.

        Loads what is chosen, and with it torch.

        Raises:
            ValidationError: An option is unknown or out of bounds.
        """
        TRAINERS.load(self.trainer.name, "trainer.name")
        if self.loss is not None:
            LOSSES.load(self.loss, "loss")
        for name, metric in (self.evaluation.metrics or {}).items():
            if isinstance(metric, str):
                OWN_METRICS.load(metric, f"evaluation.metrics.{name}")
        if self.local_sgd.optimizer is not None:
            _check_optimizer(self.local_sgd.optimizer)
        sampling = self.sampling.model_copy(
            update={
                "availability": AVAILABILITIES.complete(
                    self.sampling.availability, "sampling.availability"
                )
            }
        )
        return self.model_copy(
            update={
                "algorithm": but_defaults(self.algorithm),
                "data": DATASETS.complete(self.data, "data"),
                "model": MODELS.complete(self.model, "model"),
                "server": SERVER_OPTIMIZERS.complete(self.server, "server"),
                "sampling": sampling,
            }
        )

    def as_toml(self) -> dict[str, Any]:
        """What config.toml holds; reading it back gives equal settings."""
        return self.model_dump(
            mode="json",
            exclude_none=True,
            exclude={"recording": {"out", "resume", "progress"}},
        )


def _check_optimizer(choice: Choice) -> None:
    """Raises ValidationError, so that it is explained together with where it was given."""
    from fedvarp.clients.local_optimizer import refuse_unusable

    try:
        refuse_unusable(choice)
    except ValueError as error:
        wrong = InitErrorDetails(
            type="value_error", loc=("local_sgd", "optimizer"), input=choice, ctx={"error": error}
        )
        raise ValidationError.from_exception_data("local_sgd.optimizer", [wrong]) from None


def _without_slash(name: str) -> str:
    if not name or "/" in name or "\\" in name:
        raise InvalidError(f"= {name!r} becomes part of a directory's name and may hold no slash")
    return name
