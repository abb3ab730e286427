"""Values of options: what is taken, and how what is wrong is refused."""

import doctest
from collections.abc import Callable

import pytest

from holdfast.cli import options, times
from holdfast.cli.options import number, one_of, shown_tenant, tenant, whole, words
from holdfast.cli.times import duration_between_ms, moment_ms, rate_per_second
from holdfast.client import CatchUp, RetryShape, TenantPolicy, UniqueScope


@pytest.mark.parametrize(
    ("parse", "text", "words_of_it"),
    [
        (whole(1, 100), "0", "from 1 to 100, but got '0'"),
        (whole(1, 100), "-1", "from 1 to 100"),
        (whole(1, 100), "101", "from 1 to 100"),
        (whole(1, 100), "1.5", "a whole number"),
        (whole(1, 100), "nan", "a whole number"),
        (whole(1, 100), "", "a whole number"),
        (whole(1, 100), "١", "a whole number"),
        (whole(1, 100), "9" * 100_000, "a whole number"),
        (number(1, 100), "nan", "a number from 1 to 100, but got 'nan'"),
        (number(1, 100), "inf", "a number from 1 to 100"),
        (number(0, 1), "-0.1", "a number from 0 to 1"),
        (number(0, 1), "1.01", "a number from 0 to 1"),
        (number(0, 1), "much", "a number from 0 to 1"),
        (one_of(RetryShape), "unknown", "one of exponential, linear, fixed"),
        (one_of(UniqueScope), "ever", "one of until-done, while-waiting"),
        (duration_between_ms("1s", "30d"), "0", "from 1s to 30d, but got '0'"),
        (duration_between_ms("1s", "30d"), "999ms", "from 1s to 30d"),
        (duration_between_ms("1s", "30d"), "31d", "from 1s to 30d"),
        (duration_between_ms("1s", "30d"), "-5s", "a duration such as"),
        (duration_between_ms("1s", "30d"), "nan", "a duration such as"),
        (rate_per_second, "0/s", "from 0.001/s"),
        (rate_per_second, "3/h", "from 0.001/s"),
        (rate_per_second, "1000001/s", "to 1000000/s"),
        (rate_per_second, "-1/s", "a rate such as 10/s"),
        (rate_per_second, "nan/s", "a rate such as 10/s"),
        (rate_per_second, "10", "a rate such as 10/s"),
        (rate_per_second, "10/w", "a rate such as 10/s"),
        (tenant, "acme", "NAME:SETTING"),
        (tenant, "acme:", "NAME:SETTING"),
        (tenant, ":weight=1", "NAME:SETTING"),
        (tenant, "acme:weight=0", "weight: Expected a whole number from 1 to 100"),
        (tenant, "acme:weight=101", "weight: Expected a whole number from 1 to 100"),
        (tenant, "acme:weight=nan", "weight: Expected a whole number"),
        (tenant, "acme:concurrency=-1", "concurrency: Expected a whole number"),
        (tenant, "acme:rate=0/m", "rate: Expected a rate"),
        (tenant, "acme:height=2", "weight=, concurrency=, rate= and burst="),
        (tenant, "acme:weight", "weight=, concurrency=, rate= and burst="),
        (tenant, "acme:weight=1,weight=2", "each once"),
        (lambda text: moment_ms(text, 0), "soon", "how long ago"),
        (lambda text: moment_ms(text, 0), "-2h", "how long ago"),
        (lambda text: moment_ms(text, 0), "2030-01-01T00:00:00", "how long ago"),
    ],
)
def test_what_is_wrong_is_refused_with_a_sentence(parse: Callable[[str], object], text: str, words_of_it: str) -> None:
    with pytest.raises(ValueError, match="Expected ") as refused:
        parse(text)
    assert words_of_it in str(refused.value)


def test_what_is_at_its_limit_is_taken() -> None:
    assert (whole(1, 100)("1"), whole(1, 100)("100")) == (1, 100)
    assert (number(0, 1)("0"), number(0, 1)("1")) == (0, 1)
    within = duration_between_ms("1s", "30d")
    assert (within("1s"), within("30d")) == (1_000, 2_592_000_000)
    assert duration_between_ms("0", "1d")("0") == 0


@pytest.mark.parametrize("text", ["while-waiting", "WHILE_WAITING", " While-Waiting "])
def test_words_may_be_written_in_several_ways(text: str) -> None:
    assert one_of(UniqueScope)(text) is UniqueScope.WHILE_WAITING
    assert words(CatchUp) == "none|one|all"


@pytest.mark.parametrize(
    "text", ["acme:weight=3,concurrency=5,rate=10/s,burst=20", "a:b:weight=1", "x:rate=90/m", "x:burst=2"]
)
def test_a_tenant_is_shown_as_it_is_written(text: str) -> None:
    assert shown_tenant(tenant(text)) == text
    assert tenant("a:b:weight=1") == TenantPolicy("a:b", weight=1)


def test_the_examples_are_right() -> None:
    results = [doctest.testmod(module) for module in (options, times)]
    assert [result.failed for result in results] == [0, 0]
    assert all(result.attempted >= 6 for result in results)
