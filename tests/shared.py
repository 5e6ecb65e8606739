"""Where the reference material stands beside a checkout; tests that need it skip where it is absent."""

from pathlib import Path

import pytest

SHARED = Path(__file__).resolve().parents[2] / "shared"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="the reference material (../shared) is not here")
