"""Whatever a file of JSON may hold where a number, a list or a name is expected."""

from __future__ import annotations

from hypothesis import strategies as st

_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 20),
    st.floats(),
    st.sampled_from([2**31, 2**53, 2**62, 2**63, 10**12, 10**400, -(10**400), 1e308, -1e308]),
    st.sampled_from(["", "x", "1", "<b>", "\x1b[2J", "train_loss"]),
)
_NAMES = st.sampled_from(["0", "client", "train_loss", "train_accuracy", "whole", "value"])

any_json = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_NAMES, inner, max_size=3)
    ),
    max_leaves=6,
)
"""Numbers beyond every range, NaN and infinities among it."""
