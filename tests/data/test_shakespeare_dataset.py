"""Windows over what each role says, split by time; the real clients are LEAF's and the paper's."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
import torch

from fedvarp.data import DataError, FederatedDataset, shakespeare
from fedvarp.data.shakespeare_dataset import ALPHABET, encode, federated_roles
from fedvarp.data.shakespeare_text import Play, Role, roles_of


def decode(codes: torch.Tensor) -> str:
    return "".join(ALPHABET[c] for c in codes.tolist())


def test_a_symbol_outside_the_alphabet_is_named() -> None:
    for symbol in ("é", "ł", "_"):
        with pytest.raises(DataError, match=rf"GHOST in HIGH SPIRITS says '{symbol}'"):
            encode(Role("HIGH SPIRITS", "GHOST", f"Boo{symbol}"))


def two_roles(**settings: float) -> FederatedDataset:
    text = "".join(chr(ord("a") + i % 26) for i in range(60))
    roles = [Role("P", "A", text), Role("Q", "B", text.upper()[:41])]
    defaults = {"window": 5, "stride": 1, "train_fraction": 1.0, "test_stride": 1}
    return federated_roles(roles, **(defaults | settings))  # type: ignore[arg-type]


@pytest.mark.parametrize("stride", [1, 2, 3, 5, 7, 60])
def test_windows_slide_over_each_role_alone(stride: int) -> None:
    data = two_roles(stride=stride)
    texts = ["".join(chr(ord("a") + i % 26) for i in range(60))]
    texts.append(texts[0].upper()[:41])
    assert data.num_examples is not None
    for i, text in enumerate(texts):
        x, y = data.client(i)
        starts = range(0, len(text) - 5, stride)
        assert [decode(row) for row in x] == [text[s : s + 5] for s in starts]
        assert decode(y) == "".join(text[s + 5] for s in starts)
        assert int(data.num_examples[i]) == len(starts)
        assert x.dtype == torch.uint8
        assert y.dtype == torch.int64
    assert data.test is None


def test_the_split_is_chronological_and_shares_no_input() -> None:
    data = two_roles(train_fraction=0.5, test_stride=2)
    # A: 55 windows, 27 for training (0..26), a gap of 4 (27..30), then 31, 33, ..., 53.
    # B: 36 windows, 18 for training, a gap of 4, then 22, 24, ..., 34.
    text = "".join(chr(ord("a") + i % 26) for i in range(60))
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [27, 18]
    assert decode(data.client(0)[0][-1]) == text[26:31]
    assert data.test is not None
    x, y = data.test
    expected = [text[s : s + 6] for s in range(31, 55, 2)]
    expected += [text.upper()[s : s + 6] for s in range(22, 36, 2)]
    assert [decode(a) + decode(b[None]) for a, b in zip(x, y, strict=True)] == expected


def test_windows_are_views_of_one_text() -> None:
    data = two_roles()
    first, second = data.client(0)[0], data.client(1)[0]
    assert first.untyped_storage().data_ptr() == second.untyped_storage().data_ptr()
    assert first.untyped_storage().nbytes() == 60 + 41
    copy = pickle.loads(pickle.dumps(data))  # noqa: S301 - our own bytes
    assert copy.client(1)[0].equal(second)


def test_settings_that_leave_nothing_are_explained() -> None:
    with pytest.raises(ValueError, match=r"1 roles are too short .* of 41, .* B in Q with 41"):
        two_roles(window=41)
    with pytest.raises(ValueError, match=r"No role has a test window left .* gap of 4"):
        two_roles(train_fraction=0.99)
    for wrong in ({"train_fraction": 0.0}, {"stride": 0}, {"window": 0}, {"test_stride": 0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            shakespeare(Path(), **wrong)


def test_the_papers_clients(real_data: Path) -> None:
    data = shakespeare(real_data, train_fraction=1.0)
    assert data.num_clients == 1089
    assert data.test is None
    assert data.num_examples is not None
    assert int(data.num_examples.sum()) == 4_290_682
    lengths = data.num_examples + 20
    assert int(lengths.sum()) == 4_312_462
    assert (int(lengths.min()), int(lengths.max())) == (121, 66_983)
    assert int(lengths.median()) == 1308
    assert data.cluster_of is not None
    assert data.num_clusters == 36
    per_play = data.cluster_of.bincount()
    assert (int(per_play.min()), int(per_play.max())) == (16, 49)
    assert data.num_classes == len(ALPHABET) == len(set(ALPHABET)) == 80
    assert len(set(data.client_names)) == 1089

    hamlet = list(data.client_names).index("THE TRAGEDY OF HAMLET, PRINCE OF DENMARK / HAM")
    x, _ = data.client(hamlet)
    assert x.untyped_storage().nbytes() == 4_312_462  # one byte a character for all clients
    assert "To be, or not to be- that is the question:" in decode(x[::20].flatten())


@pytest.mark.parametrize(("train_fraction", "with_test"), [(0.8, 1089), (0.9, 988)])
def test_clients_that_keep_test_data(
    plays: list[Play], train_fraction: float, with_test: int
) -> None:
    roles = [role for role in roles_of(plays) if len(role.text) >= 120]
    kept = 0
    for role in roles:
        windows = len(role.text) - 20
        kept += windows - int(train_fraction * windows) - 19 > 0
    assert kept == with_test
    data = federated_roles(roles, window=20, stride=1, train_fraction=train_fraction, test_stride=1)
    assert data.num_examples is not None
    assert data.test is not None
    gaps = sum(
        min(19, len(role.text) - 20 - int(own))
        for role, own in zip(roles, data.num_examples, strict=True)
    )
    assert int(data.num_examples.sum()) + gaps + len(data.test[0]) == 4_290_682
