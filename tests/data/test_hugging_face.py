"""Hugging Face data sets become clients."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from fedvarp.data import DataError, from_hugging_face


def test_hugging_face_partitions() -> None:
    datasets = pytest.importorskip("datasets")
    columns = {
        "pixels": [[[i, 1], [2, 3]] for i in range(6)],
        "age": [float(i) for i in range(6)],
        "height": [i / 2 for i in range(6)],
        "label": [i % 2 for i in range(6)],
        "remark": ["none"] * 6,
    }
    whole = datasets.Dataset.from_dict(columns)
    parts = [whole.shard(3, i, contiguous=True) for i in range(3)]

    data = from_hugging_face(
        parts, features="pixels", label="label", prepare=Tensor.float, test=whole, num_classes=2
    )
    x, y = data.client(1)
    assert x.tolist() == [[[2.0, 1.0], [2.0, 3.0]], [[3.0, 1.0], [2.0, 3.0]]]
    assert x.dtype == torch.float32
    assert y.tolist() == [0, 1]
    assert data.num_examples is not None
    assert data.num_examples.tolist() == [2, 2, 2]
    assert data.test is not None
    assert len(data.test[0]) == 6

    table = from_hugging_face(parts, features=["age", "height"], label="label")
    assert table.client(2)[0].tolist() == [[4.0, 2.0], [5.0, 2.5]]

    with pytest.raises(ValueError, match="Client 0 has no column 'image'; its columns are"):
        from_hugging_face(parts, features="image", label="label")
    with pytest.raises(ValueError, match="clients have no examples: 1"):
        from_hugging_face([whole, whole.select([])], features="age", label="label")
    with pytest.raises(DataError, match="'remark' does not form one tensor"):
        from_hugging_face(parts, features="remark", label="label").client(0)
    with pytest.raises(ValueError, match="Client 0 is a IterableDataset"):
        from_hugging_face([whole.to_iterable_dataset()], features="age", label="label")
    with pytest.raises(ValueError, match="Client 0 is a DatasetDict"):
        from_hugging_face([datasets.DatasetDict(train=whole)], features="age", label="label")


def test_hugging_face_images() -> None:
    datasets = pytest.importorskip("datasets")
    pytest.importorskip("PIL")
    images = [np.full((4, 5, 3), i, dtype=np.uint8) for i in range(3)]
    whole = datasets.Dataset.from_dict(
        {"image": images, "label": [0, 1, 2]},
        features=datasets.Features({"image": datasets.Image(), "label": datasets.Value("int64")}),
    )
    x, y = from_hugging_face([whole], features="image", label="label").client(0)
    assert x.shape == (3, 3, 4, 5)
    assert x.dtype == torch.uint8
    assert x[:, 0, 0, 0].tolist() == [0, 1, 2]
    assert y.tolist() == [0, 1, 2]
