"""One episode as flat arrays, its group, and the Parquet file that holds many of them."""

import json
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from stepcredit.agents.errors import TrajectoryFileError

SCHEMA_VERSION = 2

Array = npt.NDArray[Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Trajectory:
    """An episode of L tokens; the fields, in their order, are the columns of the file."""

    group_id: str
    sample_id: int
    env_id: str
    task: int
    split: str
    seed: int
    chance_seed: int
    """What differs between the members of a group."""

    token_ids: Array
    """[L] int32: prompt, replies and observations, exactly as the policy saw and sampled them."""
    action_mask: Array
    """[L] bool: True where the policy sampled the token."""
    turn_ids: Array
    """[L] int32: 0-based turn; an observation carries the turn it precedes."""
    step_ids: Array
    """[L] int32: judged step, numbered through the episode; -1 in no judged step."""
    step_end: Array
    """[L] bool: True on a step's last policy token."""
    rewards: Array
    """[L] float64: the reward that is trained on, on the step ends."""
    env_rewards: Array
    """[L] float64: the environment's own dense reward, whatever is trained on."""
    logprobs: Array
    """[L] float32: log-probability under the distribution sampled from; 0 where not sampled."""
    policy_version: Array
    """[L] int32: version of the weights that sampled the token; -1 where not sampled."""

    messages: list[dict[str, str]]
    state_keys: list[str]
    """The environment's `state_key` before each turn; empty where it has none."""
    turn_cut: list[bool]
    """Per turn: True where the token limit cut the reply before its stop token."""

    outcome: float | None
    """Graded result in [0, 1]; None where the episode was never graded (error, cut short)."""
    success: bool | None
    """All right or not; False for an episode cut short, None for an error."""
    reward_components: dict[str, float]
    """Totals by name: the environment's own parts and the three reward set-ups."""
    terminated: bool
    truncated: bool
    stop_reason: str
    """terminated | env_truncated | turn_limit | token_limit | context | wall_clock | error."""
    status: str
    """ok | error: an episode that could not be scored counts nowhere."""
    error: str
    sampling: dict[str, Any]

    values: Array | None = None
    """[L] float32: the critic's value of the state before each token, where one is kept."""
    advantages: Array | None = None
    """[L] float32: what the algorithm made of the rewards."""
    topk_ids: Array | None = None
    """[L, K] int32: the K likeliest tokens in each sampled token's place, where recorded."""
    topk_logprobs: Array | None = None
    """[L, K] float32: their log-probabilities; like the ids, 0 where not sampled."""
    mix_ids: Array | None = None
    """[L, k] int32: the tokens whose embeddings were mixed to read each token, where any are."""
    mix_weights: Array | None = None
    """[L, k] float32: their weights; all 0 where the token was read as itself."""

    @property
    def ret(self) -> float:
        """The undiscounted return that is trained on."""
        return float(self.rewards.sum())

    @property
    def num_action_tokens(self) -> int:
        """How many tokens the policy sampled."""
        return int(self.action_mask.sum())

    @property
    def live(self) -> bool:
        """Whether the episode counts in training and statistics."""
        return self.status == "ok"


@dataclass(frozen=True)
class Group:
    """Samples of the same task, each with its own chance."""

    group_id: str
    trajectories: tuple[Trajectory, ...]


_ARRAYS = {
    "token_ids": np.int32,
    "action_mask": np.bool_,
    "turn_ids": np.int32,
    "step_ids": np.int32,
    "step_end": np.bool_,
    "rewards": np.float64,
    "env_rewards": np.float64,
    "logprobs": np.float32,
    "policy_version": np.int32,
    "values": np.float32,
    "advantages": np.float32,
}
_MATRICES = {
    "topk_ids": np.int32,
    "topk_logprobs": np.float32,
    "mix_ids": np.int32,
    "mix_weights": np.float32,
}
_SCALARS = {
    "group_id": pa.string(),
    "sample_id": pa.int32(),
    "env_id": pa.string(),
    "task": pa.int64(),
    "split": pa.string(),
    "seed": pa.int64(),
    "chance_seed": pa.int64(),
    "state_keys": pa.list_(pa.string()),
    "turn_cut": pa.list_(pa.bool_()),
    "outcome": pa.float64(),
    "success": pa.bool_(),
    "terminated": pa.bool_(),
    "truncated": pa.bool_(),
    "stop_reason": pa.string(),
    "status": pa.string(),
    "error": pa.string(),
}
# Open-ended values are one JSON text each, so that every file has the same columns.
_JSON = {"messages", "reward_components", "sampling"}
_NAMES = [f.name for f in fields(Trajectory)]


def _arrow(name: str) -> pa.DataType:
    if name in _ARRAYS:
        return pa.list_(pa.from_numpy_dtype(_ARRAYS[name]))
    if name in _MATRICES:
        return pa.list_(pa.list_(pa.from_numpy_dtype(_MATRICES[name])))
    return pa.string() if name in _JSON else _SCALARS[name]


_SCHEMA = pa.schema(
    [pa.field(name, _arrow(name)) for name in _NAMES],
    metadata={"stepcredit.schema_version": str(SCHEMA_VERSION)},
)


def save_trajectories(path: str | Path, trajectories: Sequence[Trajectory]) -> None:
    """Write the trajectories as one Parquet file (zstd), whole or not at all."""
    columns = [
        pa.array([_stored(name, getattr(t, name)) for t in trajectories], _arrow(name))
        for name in _NAMES
    ]
    path = Path(path)
    part = path.with_name(f".{path.name}.part")
    pq.write_table(pa.Table.from_arrays(columns, schema=_SCHEMA), part, compression="zstd")
    part.replace(path)


def load_trajectories(path: str | Path) -> list[Trajectory]:
    """Read what `save_trajectories` wrote.

    Raises TrajectoryFileError for any other file and FileNotFoundError for none.
    """
    try:
        return _read(path)
    except FileNotFoundError:
        raise
    # Damage shows in many ways: in pages (OSError), names (KeyError), or texts (ValueError).
    except (pa.ArrowException, OSError, KeyError, ValueError) as problem:
        if isinstance(problem, TrajectoryFileError):
            raise
        raise TrajectoryFileError(
            f"{path}: not a Parquet file of trajectories, or a damaged one ({problem}); restore it "
            "from a copy or run again"
        ) from problem


def _read(path: str | Path) -> list[Trajectory]:
    table = pq.read_table(path)
    found = (table.schema.metadata or {}).get(b"stepcredit.schema_version", b"none").decode()
    if found != str(SCHEMA_VERSION):
        raise TrajectoryFileError(
            f"{path}: trajectory schema version {found}: this version of stepcredit reads "
            f"{SCHEMA_VERSION}; read the file with the version that wrote it"
        )
    # The cast refuses a column that damage has given another type.
    columns = {name: table.column(name).cast(_arrow(name)) for name in _NAMES}
    return [
        Trajectory(**{name: _restored(name, column[row]) for name, column in columns.items()})
        for row in range(table.num_rows)
    ]


def _stored(name: str, value: Any) -> Any:
    if name in _MATRICES:
        return None if value is None else list(value)
    return json.dumps(value, ensure_ascii=False) if name in _JSON else value


def _restored(name: str, scalar: Any) -> Any:
    if name in _ARRAYS:
        if not scalar.is_valid:
            return None
        return scalar.values.to_numpy(zero_copy_only=False).astype(_ARRAYS[name])
    if name in _MATRICES:
        if not scalar.is_valid:
            return None
        flat = scalar.values.flatten().to_numpy(zero_copy_only=False)
        return flat.astype(_MATRICES[name]).reshape(len(scalar.values), -1)
    value = scalar.as_py()
    return json.loads(value) if name in _JSON else value
