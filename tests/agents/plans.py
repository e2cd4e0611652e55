"""Plans of turns for the tests of engines: what each row reads and how much it may say."""

from hypothesis import strategies as st

from stepcredit.agents.engines.base import Completion
from stepcredit.agents.engines.transformers import TransformersEngine
from tests.agents.worlds import char_renderer

VOCABULARY = len(char_renderer().tokenizer)


def histories(
    made: TransformersEngine, plan: list[list[tuple[list[int], int]]], seed: int
) -> list[list[tuple[list[int], Completion]]]:
    """Run a plan: per row, per turn, the new ids and the token limit. Rows end when theirs do."""
    session = made.start(len(plan))
    out: list[list[tuple[list[int], Completion]]] = [[] for _ in plan]
    for turn in range(max(map(len, plan))):
        rows = [r for r in range(len(plan)) if turn < len(plan[r])]
        new = [plan[r][turn][0] for r in rows]
        done = session.generate(
            rows, new, [plan[r][turn][1] for r in rows], [seed + 1000 * r + turn for r in rows]
        )
        for r, ids, completion in zip(rows, new, done, strict=True):
            out[r].append((ids, completion))
    return out


def flat(history: list[tuple[list[int], Completion]]) -> tuple[list[int], dict[int, float]]:
    ids: list[int] = []
    logprobs: dict[int, float] = {}
    for new, completion in history:
        ids += new
        logprobs |= {len(ids) + i: p for i, p in enumerate(completion.logprobs)}
        ids += completion.token_ids
    return ids, logprobs


NEW = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=7)
PLAN = st.lists(
    st.lists(st.tuples(NEW, st.integers(1, 6)), min_size=1, max_size=4), min_size=1, max_size=5
)
