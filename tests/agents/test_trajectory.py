from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stepcredit.agents.errors import TrajectoryFileError
from stepcredit.agents.trajectory import Trajectory, load_trajectories, save_trajectories
from tests.agents.worlds import Ragged, play


def equal(a: Any, b: Any) -> bool:
    if isinstance(a, np.ndarray):
        return isinstance(b, np.ndarray) and a.dtype == b.dtype and np.array_equal(a, b)
    return type(a) is type(b) and a == b


def test_a_file_gives_back_exactly_what_was_saved(tmp_path: Path) -> None:
    groups, _ = play(Ragged)
    saved = [t for g in groups for t in g.trajectories]
    length = len(saved[0].token_ids)
    saved[0] = replace(
        saved[0],
        values=np.linspace(-1, 1, length, dtype=np.float32),
        advantages=np.zeros(length, np.float32),
        topk_ids=np.arange(3 * length, dtype=np.int32).reshape(length, 3),
        topk_logprobs=-np.arange(3 * length, dtype=np.float32).reshape(length, 3),
        mix_ids=np.arange(length, dtype=np.int32)[:, None],
        mix_weights=np.linspace(0, 1, 2 * length, dtype=np.float32).reshape(length, 2),
        outcome=None,
        success=None,
        error="bad → worse",
        status="error",
    )
    save_trajectories(tmp_path / "t.parquet", saved)
    loaded = load_trajectories(tmp_path / "t.parquet")
    assert len(loaded) == len(saved)
    for a, b in zip(saved, loaded, strict=True):
        for f in fields(Trajectory):
            assert equal(getattr(a, f.name), getattr(b, f.name)), f.name


def test_columns_are_the_fields_in_order(tmp_path: Path) -> None:
    save_trajectories(tmp_path / "t.parquet", [])
    schema = pq.read_schema(tmp_path / "t.parquet")
    assert schema.names == [f.name for f in fields(Trajectory)]
    assert schema.metadata[b"stepcredit.schema_version"] == b"2"
    assert load_trajectories(tmp_path / "t.parquet") == []


@pytest.mark.parametrize("version", ["1", "99"])
def test_another_schema_version_is_refused(tmp_path: Path, version: str) -> None:
    path = tmp_path / "t.parquet"
    save_trajectories(path, [])
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"stepcredit.schema_version": version}), path)
    expected = rf"schema version {version}: this version .* reads 2"
    with pytest.raises(TrajectoryFileError, match=expected):
        load_trajectories(path)


def test_other_files_are_refused(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1]}), tmp_path / "other.parquet")
    with pytest.raises(TrajectoryFileError, match="schema version none"):
        load_trajectories(tmp_path / "other.parquet")
    (tmp_path / "text.parquet").write_text("no")
    with pytest.raises(TrajectoryFileError, match="not a Parquet file of trajectories"):
        load_trajectories(tmp_path / "text.parquet")


def test_a_damaged_file_is_refused_whatever_is_damaged(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    save_trajectories(path, [t for g in play(Ragged, num_tasks=1)[0] for t in g.trajectories])
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 97):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0xFF]) + whole[at + 1 :])
        try:
            load_trajectories(path)
        except TrajectoryFileError as problem:
            assert str(path) in str(problem)
            refused += 1
    assert refused > len(whole) / 97 / 4, "the rest lies in what is not read"
    with pytest.raises(FileNotFoundError, match=r"nothing\.parquet"):
        load_trajectories(tmp_path / "nothing.parquet")


def test_a_file_without_a_column_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    save_trajectories(path, [])
    pq.write_table(pq.read_table(path).drop(["rewards"]), path)
    with pytest.raises(TrajectoryFileError, match="rewards"):
        load_trajectories(path)
