"""`ckv export` and `import`: from one database to another, in several files."""

from contextlib import closing
from pathlib import Path

import pytest
from sqlalchemy import select, update

from ckv_core.records.run_request import RunRequest
from cli.main import main
from storage import bundle
from storage.database import default_url, open_database
from storage.models import Run
from storage.recorder import Recorder

pytestmark = pytest.mark.slow


@pytest.fixture
def runs(tmp_path, monkeypatch):
    """Five runs."""
    use(tmp_path / "old", monkeypatch)
    made: list[str] = []
    with closing(open_database(default_url(tmp_path / "old"))) as database:
        recorder = Recorder(database)
        for number in range(5):
            made.append(recorder.create(RunRequest(context=f"text {number}")))
            recorder.end(made[-1])
    return made


def use(home: Path, monkeypatch) -> None:
    monkeypatch.setenv("CKV_HOME", str(home))
    monkeypatch.delenv("CKV_DATABASE_URL", raising=False)


def stored(home: Path) -> list[tuple[str, str | None]]:
    with closing(open_database(default_url(home))) as database, database.read() as session:
        rows = session.execute(select(Run.slug, Run.owner).order_by(Run.id))
        return [tuple(row) for row in rows]


@pytest.mark.parametrize("bound", ["MAX_RUNS", "MAX_TOTAL_BYTES"])
def test_all_runs_move_to_another_database_in_several_files(
    runs, bound, tmp_path, monkeypatch, capsys
):
    most = 2
    if bound == "MAX_TOTAL_BYTES":
        url = default_url(tmp_path / "old")
        with closing(open_database(url)) as database, database.read() as session:
            sizes = [len(bundle._run_data(session, slug, with_notes=True)) for slug in runs]
        most = 2 * max(sizes)
    monkeypatch.setattr(bundle, bound, most)
    assert main(["export", "--all", "--out", str(tmp_path / "all.zip")]) == 0
    told = capsys.readouterr().out.splitlines()
    files = sorted(tmp_path.glob("all*.zip"))
    assert [file.name for file in files] == ["all-001.zip", "all-002.zip", "all-003.zip"]
    assert [line.split(": ")[1].split(",")[0] for line in told] == ["2 runs", "2 runs", "1 run"]
    use(tmp_path / "new", monkeypatch)
    for file in files:
        assert main(["import", str(file), "--owner", "ann"]) == 0
    assert stored(tmp_path / "new") == [(slug, "ann") for slug in runs]


@pytest.mark.parametrize("spoilt", [[1], [0, 1, 2, 3, 4]])
def test_a_spoilt_run_is_named_and_the_others_are_exported(runs, spoilt, tmp_path, capsys):
    with closing(open_database(default_url(tmp_path / "old"))) as database:
        bad = Run.slug.in_([runs[at] for at in spoilt])
        with database.write() as session:
            session.execute(update(Run).where(bad).values(request=["of another version"]))
    assert main(["export", "--all", "--out", str(tmp_path / "all.zip")]) == 1
    told = capsys.readouterr()
    assert told.out.count(": 4 runs, ") == len(list(tmp_path.glob("all*"))) == (len(spoilt) == 1)
    lines = told.err.splitlines()
    assert len(lines) == len(spoilt)
    for at, line in zip(spoilt, lines, strict=True):
        assert line.startswith(f"error: Run {runs[at]} is spoilt and cannot be read")


def test_export_and_import_from_the_command_line(runs, tmp_path, monkeypatch, capsys):
    file = str(tmp_path / "one.zip")
    assert main(["export", runs[0], runs[0], "--out", file]) == 0
    assert ": 1 run, " in capsys.readouterr().out
    for command, status in {
        ("import", str(tmp_path / "none.zip")): 1,
        ("export", "--out", str(tmp_path / "z.zip")): 2,
        ("export", "a" * 12, "--out", str(tmp_path / "z.zip")): 1,
    }.items():
        assert main([*command]) == status
        assert capsys.readouterr().err.count("\n") == 1
    assert main(["other"]) == 2
    assert main(["export", "--all", "--out", str(tmp_path / "all.zip")]) == 0
    assert f"{tmp_path / 'all.zip'}: 5 runs, " in capsys.readouterr().out
    use(tmp_path / "new", monkeypatch)
    assert main(["export", "--all", "--out", str(tmp_path / "none.zip")]) == 1
    assert "No run is over yet" in capsys.readouterr().err
    assert not (tmp_path / "none.zip").exists()
    assert main(["import", file]) == 0
    assert "Imported 1 of 1" in capsys.readouterr().out
