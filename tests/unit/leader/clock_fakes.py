"""A machine whose clocks the test moves."""

START_MS = 1_700_000_000_000
MINUTE_MS = 60_000
DAY_MS = 24 * 60 * 60 * 1000
YEAR_MS = 365 * DAY_MS


class FakeTime:
    def __init__(self, *, off_ms: float = 0.0, monotonic_ms: float = 5_000.0) -> None:
        self.wall = START_MS + off_ms
        self.monotonic = monotonic_ms

    def wall_ms(self) -> float:
        return self.wall

    def monotonic_ms(self) -> float:
        return self.monotonic

    def pass_ms(self, elapsed_ms: float, *, wall_ms: float | None = None) -> None:
        """Real time passes; the wall clock shows it unless told otherwise."""
        self.monotonic += elapsed_ms
        self.wall += elapsed_ms if wall_ms is None else wall_ms
