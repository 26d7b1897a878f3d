"""A condition checks its shapes, and cutting or joining rows loses nothing."""

from __future__ import annotations

import pytest
import torch

from hymotion_ray.errors import TextEncoderError
from hymotion_ray.text.condition import TextCondition, TextRow, stack_rows


def some_rows() -> list[TextRow]:
    torch.manual_seed(0)
    return [
        TextRow(context=torch.randn(n, 3), vector=torch.randn(2), vector_truncated=n == 4)
        for n in (2, 4, 1)
    ]


def test_stacked_rows_come_back():
    rows = some_rows()
    condition = stack_rows(rows)
    assert len(condition) == 3
    assert condition.num_tokens == 4
    for i, row in enumerate(rows):
        back = condition.row(i)
        assert torch.equal(back.context, row.context)
        assert torch.equal(back.vector, row.vector)
        assert back.vector_truncated == row.vector_truncated
        assert not back.context_truncated
    assert condition.truncated == (False, True, False)
    assert condition.truncation(1) == "vector"


def test_select_takes_rows_in_the_order_asked():
    condition = stack_rows(some_rows())
    chosen = condition.select([1, 1, 0])
    assert torch.equal(chosen.context, condition.context[[1, 1, 0]])
    assert chosen.length.tolist() == [4, 4, 2]
    assert chosen.truncated == (True, True, False)


def test_to_changes_features_but_not_lengths():
    half = stack_rows(some_rows()).to(dtype=torch.bfloat16)
    assert half.context.dtype == half.vector.dtype == torch.bfloat16
    assert half.length.dtype == torch.int64
    assert half.truncated == (False, True, False)


@pytest.mark.parametrize(
    "wrong",
    [
        {"context": torch.zeros(2, 4)},
        {"vector": torch.zeros(2, 5)},
        {"vector": torch.zeros(3, 1, 5)},
        {"length": torch.tensor([1, 5])},
        {"length": torch.tensor([1, -1])},
        {"length": torch.tensor([1.0, 1.0])},
        {"truncated": (True,)},
    ],
)
def test_shapes_that_do_not_fit_are_refused(wrong):
    fits = {
        "context": torch.zeros(2, 4, 3),
        "vector": torch.zeros(2, 1, 5),
        "length": torch.tensor([4, 0]),
    }
    TextCondition(**fits)
    with pytest.raises(TextEncoderError, match="text condition"):
        TextCondition(**{**fits, **wrong})
