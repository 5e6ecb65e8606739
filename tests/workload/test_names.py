"""Names that are packed read as the tuple that they stand for."""

from hypothesis import given
from hypothesis import strategies as st

from sim.workload.names import PackedNames, RowNames

names = st.lists(st.text(), max_size=20).map(tuple)
slices = st.slices(20)


@given(names, slices)
def test_packed_names_are_the_tuple(given_names: tuple[str, ...], part: slice) -> None:
    """Any text, half a surrogate pair too; length, order, slices, slices of slices, single names, equality both ways."""
    packed = PackedNames.of(given_names)
    assert packed == given_names
    assert given_names == packed
    assert tuple(packed) == given_names
    assert tuple(packed[part]) == given_names[part]
    assert tuple(packed[part][1:]) == given_names[part][1:]
    assert [packed[row] for row in range(-len(packed), len(packed))] == [*given_names, *given_names]
    assert packed != (*given_names, "one more")
    assert packed != len(packed)


@given(st.integers(0, 20), slices)
def test_row_names_are_the_tuple(count: int, part: slice) -> None:
    spelt = tuple(f"r{row}" for row in range(count))
    assert spelt == RowNames(range(count))
    assert tuple(RowNames(range(count))[part]) == spelt[part]


def test_names_say_what_they_are() -> None:
    assert repr(RowNames(range(1000))) == "<1,000 names, 'r0' to 'r999'>"
    assert repr(PackedNames.of(())) == "<no names>"
