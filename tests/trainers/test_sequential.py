"""The plain loop: LocalSGD at one client after the other."""

from __future__ import annotations

import torch

from fedvarp.clients import local_training
from fedvarp.trainers.sequential import DIVERGED, corrections_by_client
from small_federation import SGD, SIZES, Counting, broadcast_of, dataset, plain

CLIENTS = torch.tensor([4, 0, 2])


def test_it_is_local_sgd_at_each_client_by_itself() -> None:
    trainer = plain(dataset(augment=True))
    sent = broadcast_of(trainer.model, corrected=True)
    assert sent.corrections is not None
    found = trainer.train(sent, CLIENTS, 3)
    assert found.clients.tolist() == CLIENTS.tolist()
    for m, client in enumerate(CLIENTS.tolist()):
        alone = local_training.train(
            SGD,
            trainer.model,
            trainer.loss,
            sent.w,
            trainer.dataset.client(client),
            seed=trainer.seed,
            round=3,
            client=client,
            correction=sent.corrections[client],
            proximal=sent.proximal,
            augment=trainer.dataset.augment,
        )
        assert torch.equal(found.deltas[m], alone.delta)
        assert int(found.num_steps[m]) == alone.num_steps
        assert int(found.num_examples[m]) == SIZES[client]
        assert found.losses[client] == alone.mean_loss
        assert float(found.gradient_counts[m]) == alone.num_gradients == alone.num_steps
    assert found.scale == SGD.lr


def test_every_client_starts_from_the_buffers_that_were_sent() -> None:
    trainer = plain(module=Counting())
    found = trainer.train(broadcast_of(trainer.model), CLIENTS, 0)
    steps = {client: int(buffers["count"]) for client, buffers in found.buffers.items()}
    assert steps == dict(zip(CLIENTS.tolist(), found.num_steps.tolist(), strict=True))


def test_a_diverging_client_is_refused_and_the_others_stay() -> None:
    trainer = plain(dataset(diverging=0))
    found = trainer.train(broadcast_of(trainer.model), CLIENTS, 0)
    assert found.refused == {0: DIVERGED}
    assert found.clients.tolist() == [4, 2]


def test_corrections_go_to_those_they_were_made_for() -> None:
    model = plain().model
    assert corrections_by_client(broadcast_of(model)) == {}
    sent = broadcast_of(model, corrected=True)
    assert sent.corrections is not None
    rows = corrections_by_client(sent)
    assert all(
        torch.equal(rows[i], sent.corrections[m]) for m, i in enumerate(sent.clients.tolist())
    )
