"""The sections that say what is learned, from which data, by whom, where it runs and what it leaves behind."""

import math
from typing import Annotated, Literal

from pydantic import Field

from fedsim._config.base import (
    BelowOne,
    Count,
    CountOrZero,
    Fraction,
    FractionOrZero,
    NotNegative,
    Options,
    Positive,
    Section,
    Texts,
)

Scheme = Literal["iid", "dirichlet", "inner-dirichlet", "shard", "pathological", "natural-id", "quantity-skew"]
Name = Annotated[str, Field(pattern=r"^([a-z0-9][a-z0-9._:-]*|[A-Za-z_][A-Za-z0-9_.]*:[A-Za-z_][A-Za-z0-9_]*)$")]
Threads = Annotated[int, Field(ge=1, le=1024)]
FolderName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=120)]


class TaskConfig(Section):
    """What is learned."""

    name: Name = Field(
        default="fashion-mnist", description="data set; `fedsim list tasks` shows all; or your own as module:function"
    )
    options: Options = Field(default={}, description="settings of this data set's loader")


class ModelConfig(Section):
    """What is trained."""

    name: Name = Field(
        default="cnn", description="model; `fedsim list models` shows all; or your own as module:function"
    )
    options: Options = Field(default={}, description="settings of this model, such as widths")
    weights: str | None = Field(
        default=None,
        min_length=1,
        description="safetensors file to start from, such as a run's model; arrays of other shapes start afresh",
    )


class DataConfig(Section):
    """How the training set is dealt out to the clients."""

    scheme: Scheme = Field(default="dirichlet", description="partitioner")
    alpha: Positive = Field(
        default=0.3,
        description="concentration of dirichlet, inner-dirichlet and quantity-skew; smaller is more uneven",
    )
    policy: Literal["resample", "steal", "allow-empty"] = Field(
        default="steal",
        description="clients with less than min_size samples: draw all again, take from the largest, or accept",
    )
    min_size: Count = Field(default=10, description="fewest samples of a client that the policy aims at")
    shards_per_client: Count = Field(default=2, description="shard: number of label-sorted shards a client gets")
    classes_per_client: Count = Field(default=2, description="pathological: number of classes a client holds")
    proxy_examples: CountOrZero | None = Field(
        default=None,
        description="training samples that the server keeps as its own, dealt to no client; not set: 256 under leff "
        "without a proxy_task, else none",
    )

    @property
    def scheme_options(self) -> dict[str, float]:
        """Those of the keys that the scheme takes."""
        options = {
            "dirichlet": ("alpha",),
            "inner-dirichlet": ("alpha",),
            "quantity-skew": ("alpha",),
            "shard": ("shards_per_client",),
            "pathological": ("classes_per_client",),
        }
        return {name: getattr(self, name) for name in options.get(self.scheme, ())}


class TrainingConfig(Section):
    """What one client does in one round."""

    epochs: Count = Field(default=1, description="passes over the client's samples in a round")
    max_steps: Count | None = Field(default=None, description="stop a round's training after so many steps")
    batch_size: Count = Field(default=32, description="samples in a step")
    optimizer: Literal["sgd", "adamw"] = Field(default="sgd", description="local optimiser; its state starts afresh")
    lr: Positive = Field(default=0.05, description="learning rate of round 1")
    momentum: BelowOne = Field(default=0.9, description="sgd: momentum; others ignore it")
    nesterov: bool = Field(default=False, description="sgd: Nesterov's momentum")
    weight_decay: NotNegative = Field(default=0.0, description="weight decay (decoupled for adamw)")
    schedule: Literal["constant", "cosine", "step", "inverse-sqrt"] = Field(
        default="constant", description="learning rate over the rounds"
    )
    schedule_rounds: Count | None = Field(
        default=None, description="length of a cosine or step schedule in rounds; not set: the run's rounds"
    )
    clip_norm: Positive | None = Field(default=None, description="clip each gradient to this L2 norm")
    precision: Literal["float32", "bf16"] = Field(
        default="float32", description="of the forward and backward pass; bf16 keeps weights and optimiser in float32"
    )
    compile: bool = Field(default=False, description="compile the model by torch.compile, in each process anew")


class FederationConfig(Section):
    """Who takes part and how replies are averaged and evaluated."""

    num_clients: Count = Field(default=20, description="clients in the federation")
    rounds: Count = Field(default=10, description="rounds of training")
    participation: Fraction = Field(default=1.0, description="share of the clients sampled in a round")
    clients_per_round: Count | None = Field(
        default=None, description="number of clients sampled in a round, instead of participation"
    )
    min_replies: Count | Fraction = Field(
        default=0.5,
        description="usable replies that a round needs: a count (3), or a share of those sampled (0.5; 1.0 means all)",
    )
    deadline_s: Positive | None = Field(
        default=None, description="seconds after which a round goes on without the clients that did not reply"
    )
    weighting: Literal["examples", "uniform"] = Field(
        default="examples", description="weight of a client in the average (default uniform under preamble)"
    )
    update_norm: Positive | None = Field(
        default=None,
        description="largest L2 norm of a client's change: clients clip to it, and under plain the server refuses more",
    )
    buffers: Literal["average", "local", "first"] = Field(
        default="average",
        description="model buffers such as BatchNorm statistics: averaged, kept by each client, or the first client's",
    )
    server_evaluation: bool = Field(
        default=True,
        description="the server evaluates on the test set (default false where only clients can open the sum)",
    )
    client_evaluation_fraction: FractionOrZero = Field(
        default=0.0,
        description="share of the clients that evaluate the model (default 1.0 where the server cannot)",
    )
    evaluate_received: bool = Field(
        default=False,
        description="clients also evaluate the model that a training message brings, before they train: no message and "
        "no download more, of the model that the round begins with",
    )
    evaluate_every: Count = Field(default=1, description="rounds between two evaluations; the last is always evaluated")

    @property
    def sampled(self) -> int:
        """Number of clients that are asked in a round, at least 1."""
        if self.clients_per_round is not None:
            return self.clients_per_round
        return max(1, math.floor(self.participation * self.num_clients + 0.5))

    @property
    def needed_replies(self) -> int:
        """Number of usable replies without which a round of all those sampled fails, at least 1."""
        return self.needed_of(self.sampled)

    def needed_of(self, clients: int) -> int:
        """Return the number of usable replies without which a round of `clients` fails, at least 1."""
        if isinstance(self.min_replies, int):
            return self.min_replies
        # 0.1 * 30 is 3.0000000000000004: without the rounding it would need 4 replies.
        return max(1, math.ceil(round(self.min_replies * clients, 9)))


class EngineConfig(Section):
    """Where the clients run."""

    name: Literal["auto", "inline", "ray", "flower"] = Field(
        default="auto",
        description="auto picks inline for small jobs and ray otherwise; flower is Flower's own engine",
    )
    workers: Count | None = Field(default=None, description="worker processes; not set: as many as fit")
    cpus_per_worker: Positive = Field(default=1.0, description="ray: share of the CPUs of one worker")
    gpus_per_worker: NotNegative = Field(default=0.0, description="ray: share of a GPU of one worker")
    worker_memory_mb: Count | None = Field(
        default=None, description="ray: memory that is set aside for each worker; not set: none"
    )
    shares: Options = Field(
        default={},
        description="ray: tier of devices = [CPUs, GPUs, MB, workers] for its clients; 0 workers: as many as fit",
    )
    threads_per_worker: Threads = Field(default=1, description="threads of torch and OpenMP in a worker")
    shortage: Literal["refuse", "warn"] = Field(
        default="refuse", description="where memory, shared memory or disk look too small for the run"
    )
    ray_address: str | None = Field(
        default=None, min_length=1, description="address of a running Ray cluster, such as ray://host:10001"
    )
    cohort: Literal["off", "on", "auto"] = Field(
        default="off",
        description="train the clients of a chunk at once where the model allows (changes last bits); auto tries first",
    )
    chunk: Count = Field(
        default=8, description="clients whose updates are summed as one; fixes the order of the sums, so changes bits"
    )


class OutputConfig(Section):
    """What a run leaves behind."""

    folder: str = Field(default="runs", min_length=1, description="folder in which each run gets its own")
    name: FolderName | None = Field(
        default=None, description="name of the run's folder; not set: made from time, task, strategy and protection"
    )
    report: bool = Field(default=True, description="write report.html and its pictures")
    checkpoint_every: CountOrZero = Field(
        default=1, description="rounds between two checkpoints; 0 keeps the last only"
    )
    keep: Count = Field(default=2, description="checkpoints that are kept")
    loggers: Texts = Field(default=(), description="other tools that get the metrics: tensorboard, wandb, mlflow")
