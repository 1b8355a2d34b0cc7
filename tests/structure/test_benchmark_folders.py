"""What a benchmark wrote does not fill the disk of whoever runs it."""

from pathlib import Path

import pytest

from benchmarks.folders import benchmark_folder


def test_a_folder_is_gone_after_a_benchmark_that_ended_or_was_interrupted() -> None:
    with benchmark_folder("x") as folder:
        (folder / "segment").write_bytes(b"1")
    assert not folder.exists()
    with pytest.raises(KeyboardInterrupt), benchmark_folder("x") as folder:
        raise KeyboardInterrupt
    assert not folder.exists()


def test_a_benchmark_that_failed_says_where_its_logs_are(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(AssertionError), benchmark_folder("x") as folder:
        raise AssertionError
    assert folder.exists()
    assert str(folder) in capsys.readouterr().err
