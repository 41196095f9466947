"""Clusters found in sketches of gradients and of updates."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pytest
import torch
from torch import Tensor

from fedvarp import FlatModel, LocalSGD
from fedvarp.clients.gradients import Track, untracked
from fedvarp.clusters import by_gradients
from fedvarp.clusters.from_gradients import SketchOf
from fedvarp.models import Quadratic, quadratic_loss
from small_problems import planted_clusters, same_partition


def found(
    num_clusters: int = 6,
    of: SketchOf = "gradients",
    sketch_size: int = 16,
    track: Track = untracked,
) -> Tensor:
    return by_gradients(
        planted_clusters(), FlatModel(Quadratic(40)), quadratic_loss, w=torch.ones(40),
        local_sgd=LocalSGD(lr=0.05, batch_size=5, epochs=1), num_clusters=num_clusters, of=of,
        sketch_size=sketch_size, track=track,
    )  # fmt: skip


@pytest.mark.parametrize("of", ["gradients", "updates"])
@pytest.mark.parametrize("sketch_size", [16, 1024])
def test_planted_clusters_are_found(of: SketchOf, sketch_size: int) -> None:
    planted = planted_clusters().cluster_of
    assert planted is not None
    assert same_partition(found(of=of, sketch_size=sketch_size), planted)


def test_progress_is_shown_by_whoever_is_given_and_changes_nothing() -> None:
    titles: list[str] = []

    def track(clients: Sequence[int], title: str) -> Iterable[int]:
        titles.append(title)
        assert list(clients) == list(range(30))
        return clients

    assert torch.equal(found(track=track), found())
    assert titles == ["Sketching gradients"]


@pytest.mark.parametrize("num_clusters", [0, 31])
def test_too_many_clusters_are_refused_before_any_gradient(num_clusters: int) -> None:
    def track(clients: Sequence[int], title: str) -> Iterable[int]:
        pytest.fail("asked clients in vain")

    with pytest.raises(
        ValueError, match=r"num_clusters = 0|30 .* 31 clusters: choose from 1 to 30"
    ):
        found(num_clusters, track=track)
