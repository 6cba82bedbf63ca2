"""What a reader sees of the sampled texts of a run."""

from dataclasses import replace

from ckv_core.experiment.sampled import MOST_CHARS, MOST_ROWS, sampled_table
from ckv_core.records.records import SampledText
from tests.factories.runs import done_result, sweep_result

REPEATS = "4:temperature=0.7,seed=3"


def drawn(*texts, found=None):
    return tuple(SampledText(text, "eos", found) for text in texts)


def shown(result, repeats=REPEATS):
    """The cells of each row, in words."""
    value = sampled_table(result, repeats).value()
    cells = [row["cells"] for row in value["rows"]]
    return [{key: cell["text"] for key, cell in each.items()} for each in cells], value


def test_equal_texts_of_a_method_are_one_row_the_most_frequent_first():
    result = done_result()
    full, *others = result.variants
    answers = drawn("no", found=False) + drawn("yes", "yes", found=True)
    cut = (SampledText("ye", "length", False),)
    result.variants = [replace(full, sampled_texts=answers + cut), *others]
    rows, value = shown(result)
    assert [(each["text"], each["times"]) for each in rows] == [
        ("yes", "2"),
        ("no", "1"),
        ("ye", "1"),
    ]
    outcomes = [row["cells"]["text"]["outcome"] for row in value["rows"]]
    assert outcomes == ["answered", "missed", "cut"]
    assert value["columns"][1]["unit"] == "of 4"
    note = "4 texts of each method: temperature 0.7, top_p 1, seed 3. Equal texts are one row."
    assert value["note"] == note


def test_without_sampled_texts_there_is_no_table():
    assert sampled_table(done_result(), REPEATS) is None


def test_many_and_long_texts_are_bounded_and_the_reader_learns_where_they_are():
    result = done_result()
    result.variants = [replace(each, sampled_texts=drawn("a b " * 900)) for each in result.variants]
    rows, value = shown(result, "")  # of an imported result
    assert max(len(each["text"]) for each in rows) <= MOST_CHARS + 1
    assert value["note"].startswith("1 text of each method. ")
    assert "cut at 1,000 characters" in value["note"]
    many = [drawn(*(f"{at}/{n}" for n in range(32))) for at in range(len(sweep_result().variants))]
    result = sweep_result()
    pairs = zip(result.variants, many, strict=True)
    result.variants = [replace(each, sampled_texts=texts) for each, texts in pairs]
    rows, value = shown(result)
    assert len(rows) == MOST_ROWS
    assert "The first 200 of 544 rows." in value["note"]
    assert {each["budget"] for each in rows} >= {"all", "64 tokens", "512 tokens"}
