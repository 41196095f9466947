"""The sections of a config that come in kinds: data, model, schedule, availability.

`name` says which kind; what else may be said depends on it, and stands in the class of that kind.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo, field_validator

Count = Annotated[int, Field(ge=1)]
Seed = Annotated[int, Field(ge=0)]
Positive = Annotated[float, Field(gt=0)]
NotNegative = Annotated[float, Field(ge=0)]
Share = Annotated[float, Field(ge=0, le=1)]
# TOML knows lists, not tuples.
Shares = Annotated[tuple[Share, ...], Field(strict=False, min_length=1)]
AbsolutePath = Annotated[str, AfterValidator(lambda path: str(Path(path).expanduser().resolve()))]


class Section(BaseModel):
    """A table of settings: frozen, and closed to names it does not know."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,  # "3" is no number, and 3.5 rounds are not 3
        allow_inf_nan=False,
        use_attribute_docstrings=True,
    )


class Kind(Section):
    """A section that comes in kinds."""

    name: str


# [data]: name says which, the rest are the arguments of the function of that name in fedvarp.data.
# data.seed keys the split alone, so that runs with several seeds share one federation.


class Partitioned(Kind):
    """How labelled examples are split over clients."""

    partition: Literal["shards", "dirichlet", "iid"] = "shards"
    shards_per_client: Count = 2
    alpha: Positive = 0.1
    """Concentration of the Dirichlet label mixes."""
    seed: Seed = 0

    @field_validator("shards_per_client", "alpha")
    @classmethod
    def _of_this_partition(cls, value: Any, info: ValidationInfo) -> Any:
        name = str(info.field_name)
        partition = info.data.get("partition")  # None: it is wrong itself, and reported
        user = {"shards_per_client": "shards", "alpha": "dirichlet"}[name]
        # Defaults are no choice: config.toml holds those of all partitions.
        if partition not in (None, user) and value != cls.model_fields[name].default:
            raise ValueError(
                f'= {value} has no effect with data.partition = "{partition}": --set '
                f"data.partition={user} uses it, --set data.{name}=none leaves it out"
            )
        return value


class Cifar10(Partitioned):
    """CIFAR-10; the defaults are the paper's split."""

    name: Literal["cifar10"]
    num_clients: Count = 250
    augment: bool = False
    """Random crops and flips while training."""


class Digits(Partitioned):
    """scikit-learn's 8 x 8 digits."""

    name: Literal["digits"]
    num_clients: Count = 100


class Shakespeare(Kind):
    """Roles as clients, plays as clusters."""

    name: Literal["shakespeare"]
    window: Count = 20
    stride: Count = 1
    """Characters from one training example to the next."""
    train_fraction: Annotated[float, Field(gt=0, le=1)] = 0.8
    test_stride: Count | None = None
    """Like stride, for the test set; the same unless given."""
    min_characters: Count = 120


class Quadratics(Kind):
    """Quadratics whose every constant is known."""

    name: Literal["quadratics"]
    num_clients: Count = 20
    dim: Annotated[int, Field(ge=4)] = 10
    num_clusters: Count = 5
    sigma2: NotNegative = 1.0
    sigma_g2: NotNegative = 1.0
    sigma_K2: NotNegative = 0.1
    smoothness: Positive = 1.0
    strong_convexity: Positive = 0.1
    examples_per_client: Count = 10
    seed: Seed = 0


class Logistic(Kind):
    """Synthetic(alpha, beta) of Li et al. (2020)."""

    name: Literal["logistic"]
    alpha: NotNegative = 1.0
    beta: NotNegative = 1.0
    num_clients: Count = 30
    features: Count = 60
    classes: Annotated[int, Field(ge=2)] = 10
    examples_per_client: Count | None = None
    """The same for all; a heavy tail unless given."""
    test_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.1
    seed: Seed = 0


# [model]


class LeNet5(Kind):
    """62,006 parameters."""

    name: Literal["lenet5"]


class ResNet18(Kind):
    """11,173,962 parameters, GroupNorm in place of BatchNorm."""

    name: Literal["resnet18"]
    groups: Literal[1, 2, 4, 8, 16, 32, 64] = 2


class CharGRU(Kind):
    """The next character."""

    name: Literal["char_gru"]
    embedding: Count = 8
    hidden: Count = 128


class LogisticRegression(Kind):
    """One linear layer, as wide as the data asks."""

    name: Literal["logistic_regression"]


class Quadratic(Kind):
    """The point w itself."""

    name: Literal["quadratic"]


MODELS_FOR: Final[dict[str, tuple[str, ...]]] = {
    "cifar10": ("lenet5", "resnet18", "logistic_regression"),
    "shakespeare": ("char_gru",),
    "digits": ("logistic_regression",),
    "logistic": ("logistic_regression",),
    "quadratics": ("quadratic",),
}
"""The models that read each data set; the first is taken unless another is named."""


# [local_sgd.schedule]


class Constant(Kind):
    """The paper's choice."""

    name: Literal["constant"]


class Exponential(Kind):
    """decay^round."""

    name: Literal["exponential"]
    decay: Annotated[float, Field(gt=0, le=1)]
    """What the rate is multiplied by after each round, such as 0.999."""


class Cosine(Kind):
    """Down to a floor along half a cosine."""

    name: Literal["cosine"]
    rounds: Count
    """Over how many rounds the rate falls; a number of its own, so that rounds may grow later."""
    floor: Annotated[float, Field(gt=0, le=1)] = 0.01


# [sampling.availability]


class Always(Kind):
    """Everybody is online."""

    name: Literal["always"]


class Bernoulli(Kind):
    """Online or not, independently in each round."""

    name: Literal["bernoulli"]
    probability: Share | Shares
    """Of being online: one number, or a list with one for each client."""


class Markov(Kind):
    """Clients come and go."""

    name: Literal["markov"]
    on_to_off: Share | Shares
    """Probability that a client online is offline in the next round."""
    off_to_on: Share | Shares
    """Probability that a client offline is online in the next round."""


class Cyclic(Kind):
    """Day and night."""

    name: Literal["cyclic"]
    profile: Shares
    """Probability of being online in each round of a period, such as [1, 1, 0.1]."""


class Trace(Kind):
    """Who was online in a recorded federation."""

    name: Literal["trace"]
    file: AbsolutePath
    """A CSV file with the columns round,client."""
    after_end: Literal["repeat", "error"] = "error"


Data = Annotated[
    Cifar10 | Shakespeare | Digits | Quadratics | Logistic, Field(discriminator="name")
]
Model = Annotated[
    LeNet5 | ResNet18 | CharGRU | LogisticRegression | Quadratic, Field(discriminator="name")
]
Schedule = Annotated[Constant | Exponential | Cosine, Field(discriminator="name")]
Availability = Annotated[Always | Bernoulli | Markov | Cyclic | Trace, Field(discriminator="name")]
KINDS: Final = ("data", "model", "local_sgd.schedule", "sampling.availability")
"""Where the sections of this file stand in a config."""
