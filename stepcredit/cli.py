"""The `stepcredit` command: parses, calls one function of `commands`, turns mistakes into one line.

Exit codes: 0 done, 1 done with findings (a broken rule, a failed run, no backend), 2 a mistake of
the user's or a refusal, 130 stopped by Ctrl-C.
"""

import argparse
import errno
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from stepcredit import __version__, commands, jail_commands, train_command
from stepcredit.config import UserError
from stepcredit.explain import nearest

NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""A write that fails names no file."""

EXAMPLES = {
    "envs": """
  stepcredit envs
  stepcredit envs --json
""",
    "check": """
  stepcredit check stepcredit/Doors-v0
  stepcredit check stepcredit/Doors-v0 turns=4 reward=dense
  stepcredit check my_envs:my/Env-v0              import my_envs first, then check my/Env-v0

Exit code 1: a rule is broken. With --json each broken rule is one object; [] says that all hold.
""",
    "train": """
  stepcredit train studies/train.yaml
  stepcredit train studies/train.yaml env.turns=2 algo.preset=ppo_step --out runs/doors
  stepcredit train studies/train.yaml env.turns=2 algo.preset=ppo_step --out runs/doors --resume
  stepcredit train studies/train.yaml env.id=my_envs:my/Env-v0    my_envs.py lies in this folder
""",
    "compare": """
  stepcredit compare studies/quick.yaml
  stepcredit compare studies/quick.yaml seeds=[0,1] train.sampled_tokens=5000 --out runs/short
  stepcredit compare studies/quick.yaml budget.cpu_hours=1 --workers 4

Run it again after Ctrl-C or a failed run: finished runs are kept, the others start anew.
""",
    "memory": """
  stepcredit memory studies/train.yaml
  stepcredit memory studies/train.yaml algo.preset=ppo algo.beta=0.02 --tokens 512
  stepcredit memory studies/train.yaml --json
""",
    "sandbox": """
  stepcredit sandbox
  stepcredit sandbox --json
""",
    "grade": """
  stepcredit grade code answers.jsonl --out graded.jsonl
  stepcredit grade code answers.jsonl --backend bwrap > graded.jsonl

Each line of the file: {"code": "def f(x): ...", "tests": ["assert f(2) == 4"]}
Each line of the answer: the same, with "status", "passed" and "total", and with a "message" about
the first test that is not passed.
Exit code 1: a line could not be graded, because it is not JSON or has no tests. An answer that
fails its tests is graded all the same: code 0.
""",
}


class _Parser(argparse.ArgumentParser):
    """argparse with the nearest command suggested and one-line errors."""

    late_help: Callable[[], str] | None = None
    """What is too slow to load for anything but this command's own help."""

    def format_help(self) -> str:
        """Add the late part between the options and the examples."""
        if self.late_help is None:
            return super().format_help()
        text, (above, below) = self.late_help(), super().format_help().split("examples:\n")
        return f"{above}{text}\n\nexamples:\n{below}"

    def error(self, message: str) -> NoReturn:
        """Leave with code 2."""
        if self.prog.endswith(" grade") and ("invalid choice" in message or "required" in message):
            message = "only code is graded so far; write: stepcredit grade code FILE.jsonl"
        elif "invalid choice" in message:
            given = message.split("invalid choice: ")[1].split("'")[1]
            near = nearest(given, list(EXAMPLES))
            hint = f"did you mean {near}?" if near else f"commands: {', '.join(EXAMPLES)}"
            message = f"{given}: no such command; {hint}"
        message = re.sub(
            r"argument (\S+): invalid int value: '(.*)'", r"\1 \2: must be a whole number", message
        )
        # argparse counts `key=value` as required, though none may follow
        message = message.removesuffix(", key=value")
        self.exit(2, f"error: {message}\nSee {self.prog} --help\n")


def build_parser() -> argparse.ArgumentParser:
    """Every command with its arguments."""
    parser = _Parser(
        prog="stepcredit",
        description="Multi-step RL of language models: which token earned the reward?",
    )
    parser.add_argument("--version", action="version", version=f"stepcredit {__version__}")
    subparsers = parser.add_subparsers(metavar="COMMAND", required=True)

    def command(name: str, run: Any, about: str) -> _Parser:
        sub: _Parser = subparsers.add_parser(
            name,
            help=about,
            description=about[0].upper() + about[1:] + ".",
            epilog="examples:" + EXAMPLES[name],
            formatter_class=argparse.RawDescriptionHelpFormatter,
        )
        sub.set_defaults(run=run)
        return sub

    envs = command("envs", commands.run_envs, "list the registered environments")
    _json(envs)

    check = command("check", commands.run_check, "check an environment against its contract")
    check.add_argument("env_id", metavar="ENV_ID")
    check.add_argument("arguments", nargs="*", metavar="key=value", help="environment arguments")
    _json(check)

    train = command("train", train_command.run_train, "train one run into a run folder")
    train.late_help = train_command.presets_help
    train.add_argument("config", type=Path, metavar="CONFIG")
    train.add_argument("overrides", nargs="*", metavar="key=value", help="e.g. train.steps=20")
    train.add_argument("--out", type=Path, help="run folder; default: runs/<name of CONFIG>")
    train.add_argument("--resume", action="store_true", help="go on from the last checkpoint")
    _json(train)

    compare = command("compare", commands.run_compare, "run a study and write its report")
    compare.add_argument("study", type=Path, metavar="STUDY")
    compare.add_argument(
        "overrides",
        nargs="*",
        metavar="key=value",
        help="keys of the study (seeds=[0,1]) or, for all its runs, of a run (train.eval_every=5)",
    )
    compare.add_argument("--out", type=Path, help="study folder; default: runs/<name of STUDY>")
    compare.add_argument("--workers", type=int, help="processes; default: one for every core")
    compare.add_argument("--yes", action="store_true", help="run above the declared budget too")
    _json(compare)

    memory = command("memory", commands.run_memory, "show what a run keeps in memory, in bytes")
    memory.add_argument("config", type=Path, metavar="CONFIG")
    memory.add_argument("overrides", nargs="*", metavar="key=value", help="as of train")
    memory.add_argument(
        "--tokens", type=int, help="tokens of an episode; default: of a demonstrated one"
    )
    _json(memory)

    sandbox = command(
        "sandbox", jail_commands.run_sandbox, "show which jails work here, and how well"
    )
    _json(sandbox)

    grade = command(
        "grade", jail_commands.run_grade, "grade answers in a file by running their tests"
    )
    grade.add_argument("kind", choices=["code"], metavar="code")
    grade.add_argument("file", type=Path, metavar="FILE.jsonl")
    grade.add_argument("--backend", default="auto", help="default: auto; see stepcredit sandbox")
    grade.add_argument("--out", type=Path, help="default: standard output")
    return parser


def _json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON on standard output")


def _parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line; `key=value` may stand before or after an option."""
    parser = build_parser()
    args, later = parser.parse_known_args(argv)
    name = "arguments" if hasattr(args, "arguments") else "overrides"
    strange = [text for text in later if text.startswith("-") or "=" not in text]
    if strange or (later and not hasattr(args, name)):
        parser.error(f"unrecognized arguments: {' '.join(strange or later)}")
    if later:
        setattr(args, name, [*getattr(args, name), *later])
    return args


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    args = _parse(argv)
    # a user's own `module:name` is usually a file in the folder the command is called from
    sys.path.append(os.getcwd())
    try:
        return int(args.run(args))
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return 130
    except BrokenPipeError:
        # `stepcredit envs | head`: nobody reads on, which is no error
        sys.stderr.close()
        return 0
    except Exception as error:
        if not _is_mistake(error):
            raise
        print(f"error: {_text(error)}", file=sys.stderr)
        return 2


def _is_mistake(error: Exception) -> bool:
    """Whether the message alone helps the user, so that a traceback would only hide it."""
    if isinstance(error, UserError) or (isinstance(error, OSError) and error.filename):
        return True
    if isinstance(error, OSError) and error.errno in NO_ROOM:
        return True
    # not at the top: `stepcredit --help` must not wait for gymnasium
    from stepcredit.agents.errors import AgentError
    from stepcredit.envs import EnvError
    from stepcredit.sandbox import SandboxUnavailable

    return isinstance(error, AgentError | EnvError | SandboxUnavailable)


def _text(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename:
        return f"{error.filename}: {error.strerror}"
    if isinstance(error, OSError) and error.errno is not None:
        return f"nothing more could be written: {os.strerror(error.errno)}; free some space"
    return str(error)
