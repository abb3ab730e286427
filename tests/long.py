"""What takes too long for every run: `make test-long` runs it, with longer forms of what has them."""

import os

import pytest

IS_LONG = bool(os.environ.get("LONG"))
long_only = pytest.mark.skipif(not IS_LONG, reason="make test-long runs it")
