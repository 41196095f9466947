"""How rows are written down."""

from __future__ import annotations

import pytest
import torch

from fedvarp import MemoryTable
from fedvarp.tables import CODECS, blocks
from rows import assert_law

N, D = 7, 300  # 300 numbers: one whole block of the int8 codec and a part of one


@pytest.mark.parametrize("codec", ["bfloat16", "float16", "int8"])
def test_numbers_too_large_for_the_codec_are_clipped_not_infinite(codec: str) -> None:
    table = MemoryTable(2, 3, codec)
    table.put(torch.tensor([0]), torch.tensor([[3.4e38, -3.4e38, 1.0]]))
    assert table.get(torch.tensor([0])).isfinite().all()
    assert_law(table)


def test_a_codec_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(ValueError, match=r"'int4'.*float64, float32, bfloat16, float16, int8"):
        MemoryTable(2, D, "int4")


def test_a_block_of_a_vector_is_whole_blocks_of_every_codec() -> None:
    assert all(blocks.BLOCK % codec.block == 0 for codec in CODECS.values())
