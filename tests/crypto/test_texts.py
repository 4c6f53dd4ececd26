"""JSON of others is read, or refused by ValueError alone."""

import pytest

from crypto.texts import DEEPEST, deeper_than, json_of


def nested(levels):
    return "[" * levels + "]" * levels


def test_what_is_nested_as_deep_as_it_may_is_read():
    assert json_of('{"a": [1, {"b": null}]}') == {"a": [1, {"b": None}]}
    assert json_of("1") == 1
    value = json_of(nested(DEEPEST))
    assert not deeper_than(DEEPEST, value) and deeper_than(DEEPEST - 1, value)


@pytest.mark.parametrize("text", [nested(DEEPEST + 1), nested(100_000), "[" * 100_000, '{"a":' * 100_000])
def test_what_is_nested_deeper_is_refused(text):
    with pytest.raises(ValueError, match=f"nested deeper than {DEEPEST}"):
        json_of(text)


@pytest.mark.parametrize("text", ["", "{", "9" * 5000, b"\xff\xfe"])
def test_what_is_no_json_is_refused(text):
    with pytest.raises(ValueError):
        json_of(text)
