"""Models of the zoo with a feature description that has every kind of input, and batches for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from tests.unit.zoo import references
from torch import Tensor, nn

from sparsefleet import zoo
from sparsefleet.data.features import Categorical, Features, MultiValued, Numeric, Sequence

NUM_IDS = 12
DIM = 6
LENGTH = references.MAX_LENGTH

FEATURES = Features(
    Numeric("age", transform="log", mean=references.AGE_MEAN, std=references.AGE_STD),
    Numeric("counts", columns=("I1", "I2")),
    Categorical("user", dim=DIM),
    Categorical("cats", columns=("C1", "C2"), dim=DIM),
    MultiValued("tags", dim=DIM, pooling="sqrtn", max_length=LENGTH),
    Categorical("movie", dim=DIM),
)
HISTORY = Features(*FEATURES, Sequence("seen", table="movie", dim=DIM, max_length=LENGTH))
NEGATIVES = Features(*HISTORY, Sequence("unseen", table="movie", dim=DIM, max_length=LENGTH))
NEXT = Features(*NEGATIVES, Sequence("next", table="movie", dim=DIM, max_length=LENGTH))
RETRIEVAL = Features(*HISTORY, Numeric("log_share"))


class Case(NamedTuple):
    """A model, how to get a differentiable scalar from its output, and its plain torch twin."""

    build: Callable[[Features], nn.Module]
    features: Features
    reference: Callable[..., Any]
    loss: Callable[[Any, Tensor], Tensor] = nn.functional.binary_cross_entropy_with_logits
    tasks: int = 0
    finish: Callable[[Any], Any] | None = None
    """Selects the part of the model's output to compare; None: all of it."""
    without: tuple[str, ...] = ("next", "unseen")
    """Inputs that the batch lacks."""

    def make(self) -> nn.Module:
        return self.build(self.features)


def in_batch(temperature: float) -> Callable[[Any], Tensor]:
    return lambda output: zoo.InBatchSoftmax(temperature)(output, torch.ones(len(output.user)))


CASES = {
    "ctr_dnn": Case(lambda f: zoo.CtrDnn(f, hidden=(9, 5)), FEATURES, references.ctr_dnn),
    "wide_deep": Case(lambda f: zoo.WideDeep(f, hidden=(9, 5)), FEATURES, references.wide_deep),
    "deepfm": Case(lambda f: zoo.DeepFM(f, hidden=(9, 5)), FEATURES, references.deepfm),
    "xdeepfm": Case(
        lambda f: zoo.XDeepFM(f, maps=(4, 3), hidden=(9, 5)), FEATURES, references.xdeepfm
    ),
    "dcn_v2": Case(
        lambda f: zoo.DCNv2(f, cross_layers=2, rank=3, hidden=(9, 5)), FEATURES, references.dcn_v2
    ),
    "autoint": Case(
        lambda f: zoo.AutoInt(f, layers=2, heads=2, head_dim=3, hidden=(9,)),
        FEATURES,
        references.autoint,
    ),
    "dlrm": Case(lambda f: zoo.DLRM(f, bottom=(7,), top=(9, 5)), FEATURES, references.dlrm),
    "din": Case(
        lambda f: zoo.DIN(f, history="seen", candidate="movie", relevance=(7,), hidden=(9,)),
        HISTORY,
        references.din,
    ),
    "dien": Case(
        lambda f: zoo.DIEN(f, history="seen", candidate="movie", negatives="unseen", hidden=(9,)),
        NEGATIVES,
        references.dien,
        loss=zoo.DienLoss(),
        finish=tuple,
        without=("next",),
    ),
    "mmoe": Case(
        lambda f: zoo.MMoE(f, tasks=2, experts=3, expert=(7,), tower=(5,)),
        FEATURES,
        references.mmoe,
        tasks=2,
    ),
    "ple": Case(
        lambda f: zoo.PLE(f, tasks=2, layers=2, experts=2, expert=(7,), tower=(5,)),
        FEATURES,
        references.ple,
        tasks=2,
    ),
    "esmm": Case(lambda f: zoo.ESMM(f, hidden=(9, 5)), FEATURES, references.esmm, tasks=2),
    "two_tower": Case(
        lambda f: zoo.TwoTower(
            f,
            user=["user", "seen"],
            item=["movie", "tags"],
            item_id="movie",
            log_frequency="log_share",
            hidden=(9,),
            dim=5,
        ),
        RETRIEVAL,
        references.two_tower,
        loss=zoo.InBatchSoftmax(0.1),
        finish=in_batch(0.1),
    ),
    "youtube_dnn": Case(
        lambda f: zoo.YouTubeDNN(f, user=["user", "seen"], item="movie", hidden=(9,), dim=5),
        HISTORY,
        references.youtube_dnn,
        loss=zoo.InBatchSoftmax(1.0),
        finish=in_batch(1.0),
    ),
    "sasrec": Case(
        lambda f: zoo.SASRec(f, history="seen", candidate="movie", heads=2, dropout=0.0),
        HISTORY,
        references.sasrec,
        loss=zoo.NextItemLoss(),
    ),
    "sasrec_training": Case(
        lambda f: zoo.SASRec(
            f,
            history="seen",
            candidate="movie",
            chosen="next",
            refused="unseen",
            heads=2,
            dropout=0.0,
        ),
        NEXT,
        references.sasrec_loss,
        loss=zoo.NextItemLoss(),
        finish=lambda output: zoo.NextItemLoss()(output, torch.ones(1)),
        without=(),
    ),
}


def ragged(lengths: list[int], generator: torch.Generator) -> tuple[Tensor, Tensor]:
    values = torch.randint(NUM_IDS, (sum(lengths),), generator=generator)
    return values, torch.tensor([0, *lengths[:-1]]).cumsum(0)


def make_batch(seed: int = 0, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    """Six examples; some have no tags and no history, some have more than the longest kept."""
    generator = torch.Generator().manual_seed(seed)
    lengths = [2, 0, LENGTH + 3, 1, LENGTH, 3]
    size = len(lengths)
    batch = {
        "age": torch.rand(size, generator=generator) * 50,
        "counts": torch.randn(size, 2, generator=generator),
        "user": torch.randint(NUM_IDS, (size,), generator=generator),
        "cats": torch.randint(NUM_IDS, (size, 2), generator=generator),
        "tags": ragged([1, LENGTH + 2, 0, 3, 0, 2], generator),
        "movie": torch.tensor([3, 4, 3, 5, 6, 7]),
        "seen": ragged(lengths, generator),
        "unseen": ragged(lengths, generator),
        "next": ragged(lengths, generator),
        "log_share": -torch.rand(size, generator=generator) * 3,
    }
    return {name: column for name, column in batch.items() if name not in without}


def labels_of(case: Case, size: int = 6) -> Tensor:
    if case.finish is not None and case.finish is not tuple:
        return torch.ones(size)
    labels = torch.tensor([1.0, 0.0, 0.0, 1.0, 1.0, 0.0])[:size]
    return (
        torch.stack([labels, labels * torch.tensor([1.0, 1, 1, 0, 0, 1])], 1)
        if case.tasks
        else labels
    )
