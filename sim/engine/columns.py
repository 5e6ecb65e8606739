"""Columns of numbers."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.signedinteger[Any]]


class DraftColumns(NamedTuple):
    """Drafts that the decodes of each step verify, and how many of them are accepted."""

    num_drafts: Ints
    num_accepted: Ints
