"""Runs pytest in copies of the checkout, each in a fork that already has torch loaded.

Started as a script with the modules to load first. One JSON object per line comes in on standard
input, `{"root": folder of the copy, "nodes": [pytest node]}`, and one answer per line goes out,
`{"exit": pytest's exit status, "failed": [node], "broken": [why], "output": text}`.

It imports nothing of the checkout: a fork must find the copy's modules, never the original's.
"""

import gc
import importlib
import json
import os
import sys
from pathlib import Path

import pytest

# Finding the installed plugins takes pytest most of a second; these are the ones tests rely on.
os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
PLUGINS = ["pytest_timeout", "_hypothesis_pytestplugin"]

# Where these are set pytest explains a failure by the full difference of its two sides, which
# takes minutes on large ones: a fault that was caught would look like one that never ended.
for variable in ("CI", "BUILD_NUMBER"):
    os.environ.pop(variable, None)

# A mutation that ends in one of these did not compute a wrong number: it did not run at all.
NOT_A_VERDICT = (SyntaxError, ImportError, NameError)


class Recorder:
    """Tells tests that failed on what they assert from tests that never got there."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        self.broken: list[str] = []

    def pytest_exception_interact(
        self,
        node: pytest.Item | pytest.Collector,
        call: pytest.CallInfo[object],
        report: pytest.TestReport | pytest.CollectReport,
    ) -> None:
        assert call.excinfo is not None
        if report.when == "call" and not call.excinfo.errisinstance(NOT_A_VERDICT):
            self.failed.append(node.nodeid)
        else:
            self.broken.append(f"{node.nodeid} ({report.when}): {call.excinfo.exconly()}")


def run_nodes(root: Path, nodes: list[str]) -> None:
    """In the fork: run the nodes in the copy and leave `verdict.json` and `output.txt` there."""
    output = os.open(root / "output.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.chdir(root)
    os.environ["PYTHONPATH"] = str(root)
    # The copy's byte code is the original's; a changed file must not be written over it.
    sys.dont_write_bytecode = True
    sys.path.insert(0, str(root))
    recorder = Recorder()
    options = ["-q", "--tb=short", f"--rootdir={root}", "-c", "pyproject.toml"]
    options += ["-p", "no:cacheprovider", *(f"-p{plugin}" for plugin in PLUGINS)]
    # Below the limit of the test that waits for this: a fault that never ends is noticed, too.
    options += ["-o", "timeout=60"]
    options += ["-W", "ignore::pytest.PytestAssertRewriteWarning"]
    status = pytest.main([*options, *nodes], plugins=[recorder])
    verdict = {"exit": int(status), "failed": recorder.failed, "broken": recorder.broken}
    (root / "verdict.json").write_text(json.dumps(verdict))


def answer(root: Path, nodes: list[str]) -> dict[str, object]:
    """Fork, run, and read what the fork left."""
    pid = os.fork()
    if pid == 0:
        try:
            run_nodes(root, nodes)
        finally:
            # Not sys.exit: the fork must not run the server's own clean-up.
            os._exit(0)
    os.waitpid(pid, 0)
    verdict = root / "verdict.json"
    died = {"exit": -1, "failed": [], "broken": ["the process died"]}
    result: dict[str, object] = json.loads(verdict.read_text()) if verdict.exists() else died
    verdict.unlink(missing_ok=True)
    return {**result, "output": (root / "output.txt").read_text(errors="replace")}


def main() -> None:
    """Load what every test loads anyway, then serve until standard input closes."""
    for module in [*PLUGINS, *sys.argv[1:]]:
        importlib.import_module(module)
    # Else the first collection in each fork touches, and so copies, everything loaded here.
    gc.freeze()
    for line in sys.stdin:
        request = json.loads(line)
        print(json.dumps(answer(Path(request["root"]), request["nodes"])), flush=True)


if __name__ == "__main__":
    main()
