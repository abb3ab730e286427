"""For all tests: a machine that is busy must not make one of them fail."""

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
