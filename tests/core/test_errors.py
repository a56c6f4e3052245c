from __future__ import annotations

import pytest

from lookalike.core.errors import Exit, LookalikeError, choose, suggest


def test_nearest_names_the_closest_and_nothing_when_all_are_far() -> None:
    assert suggest("--lerning-rate", ["--learning-rate", "--steps"]) == "; did you mean `--learning-rate`?"
    assert suggest("zebra", ["supcon", "triplet"]) == ""


def test_choose_gives_the_name_back_or_an_error_message() -> None:
    assert choose("gem", ["avg", "gem"], "a pooling") == "gem"
    with pytest.raises(LookalikeError, match=r"^`gme` is not a pooling; did you mean `gem`\?$"):
        choose("gme", ["avg", "gem"], "a pooling")
    with pytest.raises(LookalikeError, match=r"^`qqq` is not a pooling: there are avg, gem\.$"):
        choose("qqq", ["gem", "avg"], "a pooling")


def test_exit_codes_are_what_the_documents_promise() -> None:
    assert {e.name: int(e) for e in Exit} == {
        "OK": 0,
        "BUG": 1,
        "USER": 2,
        "BUSY": 3,
        "FAILED": 4,
        "STOPPED": 130,
        "TERMINATED": 143,
    }
    assert LookalikeError("x").exit_code == 2


def test_a_single_choice_is_not_several() -> None:
    with pytest.raises(LookalikeError, match=r"`zzz` is not a column: there is path\.$"):
        choose("zzz", ["path"], "a column")
    with pytest.raises(LookalikeError, match=r": there are a, b\.$"):
        choose("zzz", ["a", "b"], "a column")
