"""Text and times reach the database in a form that every database can hold."""

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy.dialects import sqlite

from storage.models import AnyText, UtcDateTime

DIALECT = sqlite.dialect()
HOSTILE = st.text(st.sampled_from("a0\x00\ud800\udfff\ue000\U0001f600")) | st.text()


@given(HOSTILE)
def test_any_text_survives_and_can_be_held(text):
    stored = AnyText().process_bind_param(text, DIALECT)
    assert "\x00" not in stored
    stored.encode("utf-8")
    assert AnyText().process_result_value(stored, DIALECT) == text


@given(st.text(st.characters(exclude_categories=["Cs", "Co"], exclude_characters="\x00")))
def test_usual_text_is_stored_as_it_is(text):
    assert AnyText().process_bind_param(text, DIALECT) == text


def test_a_time_without_zone_is_refused():
    with pytest.raises(ValueError, match="time zone"):
        UtcDateTime().process_bind_param(datetime(2026, 1, 1), DIALECT)


def test_none_stays_none():
    for kind in (AnyText(), UtcDateTime()):
        assert kind.process_bind_param(None, DIALECT) is None
        assert kind.process_result_value(None, DIALECT) is None


def test_a_naive_time_from_the_driver_is_utc():
    read = UtcDateTime().process_result_value(datetime(2026, 1, 1, 5), DIALECT)
    assert read == datetime(2026, 1, 1, 5, tzinfo=UTC)
