"""What one process writes, another that was forked before reads."""

from __future__ import annotations

import multiprocessing

import torch

from fedvarp.clients.local_training import LocalResult
from fedvarp.trainers.shared_memory import SharedRound, unpack_buffers

BUFFERS = {"count": torch.tensor(3), "mean": torch.tensor([0.5, -1.0])}
RESULT = LocalResult(
    delta=torch.tensor([1.0, -2.0]),
    num_steps=4,
    num_gradients=4.0,
    mean_loss=1.25,
    num_examples=7,
    magnitude=2.0,
)


def test_a_child_reads_the_model_and_its_result_comes_back() -> None:
    w = torch.tensor([3.0, 4.0])
    shared = SharedRound.allocate(2, w, BUFFERS, parts=0, scores=4)

    def child() -> None:
        assert torch.equal(shared.w, w)
        assert int(unpack_buffers(shared.buffers, BUFFERS)["count"]) == 3
        shared.write_result(1, RESULT, BUFFERS)

    process = multiprocessing.get_context("fork").Process(target=child)
    shared.write_model(w, BUFFERS)
    process.start()
    process.join()
    assert process.exitcode == 0
    found = shared.read_result(1)
    assert torch.equal(found.delta, RESULT.delta)
    for name in ("num_steps", "num_gradients", "mean_loss", "num_examples", "magnitude"):
        assert getattr(found, name) == getattr(RESULT, name)
    assert torch.equal(shared.deltas[0], torch.zeros(2))  # the other slot is another client's


def test_buffers_keep_their_types_and_shapes() -> None:
    shared = SharedRound.allocate(1, torch.zeros(1), BUFFERS, parts=0, scores=1)
    shared.write_model(torch.zeros(1), BUFFERS)
    found = unpack_buffers(shared.buffers, BUFFERS)
    for name, buffer in BUFFERS.items():
        assert torch.equal(found[name], buffer)
        assert found[name].dtype == buffer.dtype
    found["mean"].zero_()  # a copy
    assert torch.equal(unpack_buffers(shared.buffers, BUFFERS)["mean"], BUFFERS["mean"])
