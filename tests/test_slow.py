from tests.slow import merged_s


def test_what_was_measured_again_takes_the_place_of_what_is_listed() -> None:
    """Also where it is no longer slow, or no longer there; the slowest first."""
    listed_s = {"a.py::gone": 9.0, "b.py::other": 3.0, "a.py::quick": 1.0}
    measured_s = {"a.py::quick": 0.1, "a.py::new": 4.0, "c.py::quick": 0.2}
    assert list(merged_s(listed_s, measured_s).items()) == [("a.py::new", 4.0), ("b.py::other", 3.0)]
