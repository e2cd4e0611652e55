"""Every formula test is shown to fail on a fault: see tests/mutations."""

import ast
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mutations import MUTATIONS, Mutation

ROOT = Path(__file__).resolve().parents[1]
PRELOAD = ["torch", "transformers.generation", "transformers.models.llama.modeling_llama"]
PRELOAD += ["gymnasium", "hypothesis.strategies", "numpy", "pyarrow.parquet", "yaml"]
PRELOAD += ["pydantic.json_schema", "pydantic.plugin._loader", "pydantic.type_adapter"]
PRELOAD += ["tokenizers.trainers"]

each_mutation = pytest.mark.parametrize(
    "mutation", MUTATIONS, ids=[f"{n}-{Path(m.file).stem}" for n, m in enumerate(MUTATIONS)]
)


@dataclass(frozen=True)
class Verdict:
    """What pytest said: see mutation_server.py."""

    exit: int
    failed: list[str]
    broken: list[str]
    output: str


Run = Callable[[Path, list[str]], Verdict]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run a node in a copy, in a process that has loaded torch once for all of them."""
    yield from serve(PRELOAD)


@pytest.fixture(scope="module")
def run_bare() -> Iterator[Run]:
    """The same with nothing loaded: for the tests of the harness itself."""
    yield from serve([])


def serve(preload: list[str]) -> Iterator[Run]:
    server = [sys.executable, str(ROOT / "tests/mutation_server.py"), *preload]
    with subprocess.Popen(
        server,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as pipe:
        assert pipe.stdin and pipe.stdout
        requests, answers = pipe.stdin, pipe.stdout

        def ask(root: Path, nodes: list[str]) -> Verdict:
            print(json.dumps({"root": str(root), "nodes": nodes}), file=requests, flush=True)
            return Verdict(**json.loads(answers.readline()))

        yield ask
        os.killpg(pipe.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def unchanged_passes(
    run: Run, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Without a mutation the chosen nodes pass in a copy, so that a failure is the mutation's."""
    chosen = [item.callspec for item in request.session.items if hasattr(item, "callspec")]
    nodes = {call.params["mutation"].test for call in chosen if "mutation" in call.params}
    verdict = run(checkout_copy(tmp_path_factory.mktemp("unchanged") / "copy"), sorted(nodes))
    assert verdict.exit == 0, f"a test fails without any mutation:\n{verdict.output}"


def checkout_copy(target: Path) -> Path:
    """The package, its tests and pages, byte code included (it keeps the copies fast)."""
    for folder in ("stepcredit", "tests", "docs", "studies", "examples"):
        if (ROOT / folder).is_dir():
            shutil.copytree(ROOT / folder, target / folder)
    shutil.copy2(ROOT / "pyproject.toml", target)
    return target


def mutate(root: Path, mutation: Mutation) -> None:
    """Change the one place, and drop the byte code that would hide a change of equal length."""
    path = root / mutation.file
    path.write_text(path.read_text().replace(mutation.old, mutation.new))
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()


def caught(verdict: Verdict) -> bool:
    """A test ran and its assertion failed; an import or collection error proves nothing."""
    return verdict.exit == 1 and bool(verdict.failed) and not verdict.broken


@each_mutation
def test_mutation_fits(mutation: Mutation) -> None:
    source = (ROOT / mutation.file).read_text()
    assert source.count(mutation.old) == 1, "`old` must occur exactly once"
    before, after = ast.parse(source), ast.parse(source.replace(mutation.old, mutation.new))
    assert ast.dump(before) != ast.dump(after), "the mutation changes no code"
    file, _, function = mutation.test.partition("::")
    tests = ast.walk(ast.parse((ROOT / file).read_text()))
    names = {node.name for node in tests if isinstance(node, ast.FunctionDef)}
    assert function.partition("[")[0] in names, f"no such test: {mutation.test}"


def test_mutations_differ() -> None:
    assert len(set(MUTATIONS)) == len(MUTATIONS)


@pytest.mark.slow
@pytest.mark.usefixtures("unchanged_passes")
@each_mutation
def test_mutation_is_caught(mutation: Mutation, run: Run, tmp_path: Path) -> None:
    copy = checkout_copy(tmp_path / "copy")
    mutate(copy, mutation)
    verdict = run(copy, [mutation.test])
    assert caught(verdict), f"{verdict.broken or 'survived'}\n{verdict.output}"


TOY = "def double(x):\n    return x * 2\n"
TOY_TEST = "from stepcredit.toy import double\n\ndef test_double():\n    assert double(3) == 6\n"


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        pytest.param("x * 2", "x + 2", True, id="wrong number"),
        pytest.param("x * 2", "x + x", False, id="same number"),
        pytest.param("x * 2", "y * 2", False, id="name error in the test"),
        pytest.param("def double", "def triple", False, id="import error"),
        pytest.param("return", "return return", False, id="syntax error"),
        pytest.param("return", "import os; os._exit(1)", False, id="the process dies"),
    ],
)
def test_harness_tells_wrong_from_broken(
    old: str, new: str, expected: bool, run_bare: Run, tmp_path: Path
) -> None:
    (tmp_path / "stepcredit").mkdir()
    (tmp_path / "stepcredit/__init__.py").touch()
    (tmp_path / "stepcredit/toy.py").write_text(TOY)
    (tmp_path / "test_toy.py").write_text(TOY_TEST)
    (tmp_path / "pyproject.toml").write_text('[tool.pytest.ini_options]\npythonpath = ["."]\n')
    assert run_bare(tmp_path, ["test_toy.py"]).exit == 0
    mutate(tmp_path, Mutation("stepcredit/toy.py", old, new, ""))
    verdict = run_bare(tmp_path, ["test_toy.py"])
    assert caught(verdict) == expected, verdict
